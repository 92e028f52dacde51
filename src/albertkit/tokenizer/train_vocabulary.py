"""Training of new vocabularies.

In: an iterator of texts, which is read once. Out: a `Vocabulary`. Before this file: `normalizer.py`, `vocabulary.py`
and the trainers of the `tokenizers` library. After it: `Tokenizer.train`.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator

from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as RustTokenizer

from albertkit.errors import AlbertkitError
from albertkit.tokenizer.normalizer import SPACE, Normalizer, check_text
from albertkit.tokenizer.tokenizer_json import metaspace_words, set_bert_rules
from albertkit.tokenizer.vocabulary import MAX_TOKENS, SPECIALS, Kind, Vocabulary, wordpiece_vocabulary

PUNCTUATION = r"[[\p{P}\p{S}]&&[^" + SPACE + "]]"  # with split_scripts, no token contains one beside others
SEPARATE_SYMBOLS = '()"-.–£€'  # always single tokens in ALBERT's English vocabulary


def train(
    texts: Iterable[str],
    kind: Kind,
    vocab_size: int,
    *,
    lower: bool,
    keep_accents: bool,
    min_count: int,
    split_scripts: bool = False,
    charsmap: bytes = b"",
) -> Vocabulary:
    """A new vocabulary, at most `vocab_size` large, with ids in ALBERT's order; the texts are read once."""
    if kind not in SPECIALS:
        raise AlbertkitError(f"a vocabulary of kind {kind!r} cannot be trained: choose 'unigram' or 'wordpiece'")
    if isinstance(texts, str | bytes):
        raise AlbertkitError("texts is one text: pass a list or an iterator of texts")
    if kind != "unigram" and (split_scripts or charsmap):
        raise AlbertkitError(f"split_scripts and charsmap are for kind 'unigram', and kind is {kind!r}: omit them")
    first = [*SPECIALS[kind], *(SEPARATE_SYMBOLS if kind == "unigram" and not split_scripts else "")]
    if type(vocab_size) is not int or not len(first) < vocab_size <= MAX_TOKENS:
        raise AlbertkitError(f"vocab_size is {vocab_size!r} and must be a number from {len(first) + 1} to {MAX_TOKENS}")
    count = 0
    normalizer = Normalizer(charsmap, lower, not keep_accents, split_scripts) if kind == "unigram" else None

    def stream() -> Iterator[str]:
        nonlocal count
        for text in texts:
            count += 1
            clean = check_text(text)
            yield normalizer(clean)[0] if normalizer else clean

    try:
        if kind == "wordpiece":
            tokens = _train_wordpiece(stream(), vocab_size, min_count, lower, not keep_accents)
            scores: list[float] = []
        else:
            tokens, scores = _train_unigram(stream(), first, vocab_size, split_scripts)
    except AlbertkitError:
        raise
    except Exception as error:  # the trainers raise bare exceptions
        raise AlbertkitError(f"{count} texts gave no vocabulary ({error}): pass more text") from None
    if count == 0 or len(tokens) <= len(first):
        raise AlbertkitError(f"{count} texts gave no vocabulary: pass at least a few hundred lines of text")
    if kind == "wordpiece":
        return wordpiece_vocabulary(tokens, "the trained vocabulary", lower, not keep_accents)
    specials = frozenset(range(5))
    return Vocabulary(
        "unigram",
        tokens,
        scores,
        specials,
        1,
        lower,
        not keep_accents,
        charsmap=charsmap,
        split_scripts=split_scripts,
    )


def _train_unigram(
    texts: Iterator[str], first: list[str], vocab_size: int, split_scripts: bool
) -> tuple[list[str], list[float]]:
    """The tokens in `first`, then the trained ones, the most probable first.

    The library visits words and letters in the order of a hash table, which changes from run to run. Two steps undo
    that. Scores are rounded far above the noise of another order of addition. Letters without a token get the lowest
    score plus 0, 0.0001, 0.0002 and so on, here in alphabetical order.
    """
    tokenizer = RustTokenizer(models.Unigram())
    marks = "[" + "".join(f"\\x{{{ord(c):x}}}" for c in SEPARATE_SYMBOLS) + "]"
    separate = pre_tokenizers.Split(Regex(PUNCTUATION if split_scripts else marks), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace_words(split_scripts), separate])
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=first, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = {token: round(score, 4) for token, score in json.loads(tokenizer.to_str())["model"]["vocab"]}
    trained = {token: score for token, score in found.items() if token not in first}
    letters = sorted(token for token in trained if len(token) == 1)
    least = min(trained.values(), default=0.0)
    low = [c for c in letters if trained[c] <= least + 0.0001 * (len(letters) + 1)]
    trained |= dict(zip(low, sorted(trained[c] for c in low), strict=True))
    rest = sorted(trained, key=lambda token: (-trained[token], token))
    return first + rest, array("f", [0.0] * len(first) + [trained[token] for token in rest]).tolist()


def _train_wordpiece(
    texts: Iterator[str], vocab_size: int, min_count: int, lower: bool, strip_accents: bool
) -> list[str]:
    """Two rounds over the texts, kept in a temporary file: first the letters, then the tokens.

    The trainer numbers the letters inside words ("##a") in the order of a hash table, and breaks ties by these numbers,
    so one round gives another vocabulary each time. Letters that are passed in keep their order.
    """

    def train_round(lines: Iterable[str], size: int, fixed: list[str]) -> list[str]:
        tokenizer = set_bert_rules(RustTokenizer(models.WordPiece(unk_token="[UNK]")), lower, strip_accents)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=fixed, min_frequency=min_count, show_progress=False
        )
        tokenizer.train_from_iterator(lines, trainer)
        ids = json.loads(tokenizer.to_str())["model"]["vocab"]
        return sorted(ids, key=ids.__getitem__)

    first = list(SPECIALS["wordpiece"])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.writelines(text.replace("\n", " ") + "\n" for text in texts)
        file.seek(0)
        letters = sorted(set(train_round(file, 0, first)) - set(first))
        if len(first + letters) > vocab_size:
            raise AlbertkitError(
                f"the texts have {len(letters)} letters, which do not fit into a vocab_size of {vocab_size}: raise "
                "vocab_size"
            )
        file.seek(0)
        return train_round(file, vocab_size, first + letters)
