"""The texts that sentence vectors of small-zh are distilled from, as token ids and as simplified text for teachers.

In: the shards of a corpus, sentences of Tatoeba, and `everyday.json`, a grammar of everyday Chinese. Out: `Passages`.
Tokens are normalised (simplified characters, ASCII punctuation), so `TextDecoder` restores the punctuation of Chinese.
"""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.data.passages import Passages, PassageShares, draw_passages, everyday_sentences  # noqa: E402
from albertkit.data.shards import Shards, token_ids  # noqa: E402
from albertkit.file_io import read_json  # noqa: E402
from albertkit.tokenizer import Tokenizer  # noqa: E402

GRAMMAR = Path(__file__).with_name("everyday.json")
MAX_TOKENS = 254  # of a text, without special tokens
CHUNK = 8_192  # texts at once
MAX_REPLACED = 3  # tokens of a variant
WIDE = str.maketrans(",?!:;()", "，？！：；（）")
IDEOGRAPH = "\u3400-\u9fff"
PUNCTUATION = re.compile(f"(?<=[{IDEOGRAPH}”》』」）)])[,?!:;()]|[,?!:;()](?=[{IDEOGRAPH}“《『「])")
NEEDLESS_SPACE = re.compile(r"(?<=[^\x00-\x7f]) | (?=[^\x00-\x7f])")
SEVERAL = re.compile(f"[{IDEOGRAPH}]{{2,4}}")


class TextDecoder:
    """Token ids to text as people write it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        hidden = tokenizer.vocabulary.hidden
        tokens = enumerate(tokenizer.vocabulary.tokens)
        self.strings = [" " if number in hidden else token.replace("▁", " ") for number, token in tokens]

    def decode(self, flat: np.ndarray, ends: np.ndarray) -> list[str]:
        """The texts of consecutive ids; `ends`: where each text ends."""
        strings, out = self.strings, []
        for row in np.split(flat, ends[:-1]):
            text = "".join([strings[token] for token in row.tolist()]).strip()
            text = PUNCTUATION.sub(lambda mark: mark[0].translate(WIDE), text)
            out.append(NEEDLESS_SPACE.sub("", text))
        return out


def sentences(corpus: Shards, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids and ends of the sentences of a corpus, `CHUNK` at a time."""
    for shard in corpus.split(split):
        ids, ends = token_ids(np.asarray(shard.tokens)), np.asarray(shard.sentences, np.int64)
        for start in range(0, len(ends), CHUNK):
            first = int(ends[start - 1]) if start else 0
            some = ends[start : start + CHUNK]
            yield ids[first : some[-1]], some - first


# Texts that are measured on ---------------------------------------------------------------------------------------


def text_key(text: str) -> str:
    """A hash of the letters, digits and ideographs of a text."""
    return hashlib.blake2b("".join(re.findall(r"\w", text.lower())).encode(), digest_size=6).hexdigest()


def read_excluded(file: Path | None) -> frozenset[str]:
    """The keys of texts that are not trained on, one per line; `evaluate.py --keys` writes them."""
    return frozenset(file.read_text(encoding="ascii").split()) if file else frozenset()


# Texts of our own ------------------------------------------------------------------------------------------------


def everyday_texts(count: int, tokenizer: Tokenizer, seed: int = 0) -> list[str]:
    """Different sentences of the grammar; `{word}` in it is a token of two to four ideographs."""
    grammar = dict(read_json(GRAMMAR))
    grammar["word"] = [token for token in tokenizer.vocabulary.tokens if SEVERAL.fullmatch(token)]
    return list(everyday_sentences(count, seed, grammar=grammar))


def token_variants(rows: Sequence[Sequence[int]], tokenizer: Tokenizer, times: int, seed: int = 0) -> list[list[int]]:
    """Each text `times` times with one to three words replaced by words of the other texts with as many characters."""
    rng, tokens = random.Random(seed), tokenizer.vocabulary.tokens
    sizes = {token: len(tokens[token]) for row in rows for token in row if SEVERAL.fullmatch(tokens[token])}
    pools = {size: sorted(t for t in sizes if sizes[t] == size) for size in set(sizes.values())}
    out = []
    for row in rows:
        words = [place for place, token in enumerate(row) if token in sizes]
        for _ in range(times if words else 0):
            changed = list(row)
            for place in rng.sample(words, min(len(words), rng.randint(1, MAX_REPLACED))):
                changed[place] = rng.choice(pools[sizes[row[place]]])
            out.append(changed)
    return out


def read_tatoeba(file: Path) -> list[str]:
    """The different Chinese sentences of a file of pairs: English, tab, Chinese."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(line.split("\t")[1] for line in lines if "\t" in line))


# Passages --------------------------------------------------------------------------------------------------------


def draw_texts(
    corpus: Shards, tatoeba: Path | None, everyday: int, variants: int, excluded: frozenset[str], seed: int = 0
) -> Passages:
    """Sentences, passages, phrases, questions, openings of documents, words; Tatoeba and its variants; the grammar.

    excluded: keys of texts (`text_key`) that Tatoeba, the variants and the grammar must not contribute.
    """
    tokenizer = corpus.tokenizer()
    decoder = TextDecoder(tokenizer)
    more = [list(row) for row in tokenizer.ids_batch(everyday_texts(everyday, tokenizer, seed))]
    if tatoeba is not None:
        rows = [list(row) for row in tokenizer.ids_batch(read_tatoeba(tatoeba)) if len(row)]
        more += rows + token_variants(rows, tokenizer, variants, seed)
    shares = PassageShares(longest=MAX_TOKENS, phrases=0.3)
    more = [row for row in more if 0 < len(row) <= MAX_TOKENS]
    texts = decoder.decode(np.concatenate([np.asarray(row) for row in more]), np.cumsum([len(row) for row in more]))
    more = [row for row, text in zip(more, texts, strict=True) if text_key(text) not in excluded]
    return draw_passages(corpus.split("train"), tokenizer.id_of("?"), shares, seed, more)


def held_out_sentences(corpus: Shards, count: int, seed: int = 0) -> Passages:
    """Sentences of documents that are not trained on, shortest first."""
    rows = [
        row
        for ids, ends in sentences(corpus, "held-out")
        for row in np.split(ids, ends[:-1])
        if 4 <= len(row) <= MAX_TOKENS
    ]
    chosen = np.random.default_rng(seed).permutation(len(rows))[:count]
    found = sorted((rows[place] for place in chosen), key=len)
    return Passages(np.concatenate(found), np.cumsum([len(row) for row in found]))
