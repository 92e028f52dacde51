"""The texts that sentence vectors of small-zh are distilled from, as token ids and as simplified text for teachers.

In: the shards of a corpus, sentences of Tatoeba, and `everyday.json`, a grammar of everyday Chinese. Out: `Passages`.
Tokens are normalised (simplified characters, ASCII punctuation), so `TextDecoder` restores the punctuation of Chinese.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.data.passages import Passages, PassageShares, draw_passages, everyday_sentences, gather_spans  # noqa: E402
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
PLAIN = re.compile(f"[{IDEOGRAPH}A-Za-z0-9 ]{{2,}}")  # without punctuation
PHRASE_TOKENS = 6  # of the longest phrase in a question
CLOZE_TOKENS = range(6, 33)  # of a sentence that becomes a question
QUESTIONS = (
    "什么是{}", "{}是什么", "{}是什么意思", "为什么{}", "{}怎么办", "请问{}在哪里", "如何{}", "怎么{}", "{}吗", "有没有{}", "{}多少钱", "我想{}", "你知道{}吗", "{}有哪些",
    "{}是谁", "{}是哪一年", "谁{}", "哪里{}", "{}有什么用", "{}有几个", "能不能{}", "可以{}吗", "怎样{}", "帮我查一下{}", "介绍一下{}", "{}什么时候开始", "{}属于什么", "{}好不好",
    "{}和{}有什么区别", "{}为什么{}", "{}的{}是什么", "{}怎么{}", "{}什么时候{}", "在{}谁{}", "{}有没有{}", "{}能不能{}", "{}哪个{}", "{}跟{}有什么关系",
)  # fmt: skip
QUESTION_WORDS = ("什么", "谁", "哪里", "哪个", "多少", "什么时候", "哪一年", "哪些", "几", "怎样")


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


def question_texts(corpus: Shards, count: int, seed: int = 0) -> list[str]:
    """Questions about the corpus: phrases in a frame of `QUESTIONS`, and sentences with a question word for a phrase."""
    rng, decoder = np.random.default_rng([seed, 5]), TextDecoder(corpus.tokenizer())
    whole = np.concatenate([token_ids(np.asarray(shard.tokens)) for shard in corpus.split("train")])
    sizes = rng.integers(1, PHRASE_TOKENS + 1, 2 * count)
    begins = rng.integers(0, len(whole) - PHRASE_TOKENS, 2 * count)
    texts = decoder.decode(gather_spans(whole, begins, sizes), np.cumsum(sizes))
    phrases = iter([text for text in texts if PLAIN.fullmatch(text)])
    frames, marks, out = rng.integers(0, len(QUESTIONS), count // 2), ("", "？"), []
    for number, frame in enumerate(frames):
        needed = list(itertools.islice(phrases, QUESTIONS[frame].count("{}")))
        if len(needed) == QUESTIONS[frame].count("{}"):
            out.append(QUESTIONS[frame].format(*needed) + marks[number % 2])
    return list(dict.fromkeys(out + cloze_questions(corpus, decoder, count - count // 2, rng)))


def cloze_questions(corpus: Shards, decoder: TextDecoder, count: int, rng: np.random.Generator) -> list[str]:
    """Sentences in which a question word stands for one to three tokens."""
    out, wanted = [], count / sum(len(shard.sentences) for shard in corpus.split("train"))
    for flat, ends in sentences(corpus, "train"):
        starts = np.concatenate([[0], ends[:-1]])
        lengths = ends - starts
        is_drawn = (
            (lengths >= CLOZE_TOKENS.start) & (lengths < CLOZE_TOKENS.stop) & (rng.random(len(ends)) < 2 * wanted)
        )
        for start, end in zip(starts[is_drawn], ends[is_drawn], strict=True):
            begin = int(rng.integers(start, end - 3))
            stop = begin + int(rng.integers(1, 4))
            parts = [flat[start:begin], flat[stop:end]]
            before, after = decoder.decode(np.concatenate(parts), np.cumsum([len(part) for part in parts]))
            word = QUESTION_WORDS[int(rng.integers(len(QUESTION_WORDS)))]
            out.append(before + word + after.rstrip("。？！；，") + "？")
    return out[:count]


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


@dataclass(frozen=True)
class TextCounts:
    """How many texts of our own to add to those of the corpus."""

    everyday: int = 600_000  # sentences of the grammar
    questions: int = 400_000  # about the corpus
    variants: int = 10  # of each sentence of Tatoeba
    passages: float = 0.3  # of two to eight sentences, per sentence of the corpus


def draw_texts(
    corpus: Shards, tatoeba: Path | None, counts: TextCounts, excluded: frozenset[str], seed: int = 0
) -> Passages:
    """Sentences, passages, phrases, questions, openings of documents, words; Tatoeba and its variants; the grammar.

    excluded: keys of texts (`text_key`) that questions, Tatoeba, the variants and the grammar must not contribute.
    """
    tokenizer = corpus.tokenizer()
    decoder = TextDecoder(tokenizer)
    own = everyday_texts(counts.everyday, tokenizer, seed) + question_texts(corpus, counts.questions, seed)
    more = [list(row) for row in tokenizer.ids_batch(own)]
    if tatoeba is not None:
        rows = [list(row) for row in tokenizer.ids_batch(read_tatoeba(tatoeba)) if len(row)]
        more += rows + token_variants(rows, tokenizer, counts.variants, seed)
    shares = PassageShares(longest=MAX_TOKENS, phrases=0.3, passages=counts.passages)
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
