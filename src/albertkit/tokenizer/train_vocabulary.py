"""New vocabularies from texts.

In: an iterator of texts, which is read once. Out: a `Vocabulary`. Before this file: `normalise.py` and `vocabulary.py`,
and the trainers of the `tokenizers` library; after it: `Tokenizer.train`.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator

from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Rust

from albertkit.errors import AlbertkitError
from albertkit.tokenizer.normalizer import SPACE, Normalizer, check_text
from albertkit.tokenizer.tokenizer_json import bert, metaspace_words
from albertkit.tokenizer.vocabulary import PIECE_LIMIT, SPECIALS, Kind, Vocabulary, wordpiece

PUNCTUATION = r"[[\p{P}\p{S}]&&[^" + SPACE + "]]"  # what no token joins to its neighbours where scripts are split
APART = '()"-.–£€'  # symbols that are always a piece of their own in ALBERT's English vocabulary


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
        raise AlbertkitError("one text was given where many are needed: pass a list or an iterator of texts")
    if kind != "unigram" and (split_scripts or charsmap):
        raise AlbertkitError(f"split_scripts and charsmap are for kind 'unigram', and kind is {kind!r}: omit them")
    first = [*SPECIALS[kind], *(APART if kind == "unigram" and not split_scripts else "")]
    if type(vocab_size) is not int or not len(first) < vocab_size <= PIECE_LIMIT:
        raise AlbertkitError(
            f"vocab_size is {vocab_size!r} and must be a number from {len(first) + 1} to {PIECE_LIMIT}"
        )
    count = 0
    normalise = Normalizer(charsmap, lower, not keep_accents, split_scripts) if kind == "unigram" else None

    def stream() -> Iterator[str]:
        nonlocal count
        for text in texts:
            count += 1
            clean = check_text(text)
            yield normalise(clean)[0] if normalise else clean

    try:
        if kind == "wordpiece":
            tokens = _learn_wordpiece(stream(), vocab_size, min_count, lower, not keep_accents)
            scores: list[float] = []
        else:
            tokens, scores = _learn_unigram(stream(), first, vocab_size, split_scripts)
    except AlbertkitError:
        raise
    except Exception as error:  # the rust trainers raise bare exceptions
        raise AlbertkitError(f"{count} texts gave no vocabulary ({error}): give more text") from None
    if count == 0 or len(tokens) <= len(first):
        raise AlbertkitError(f"{count} texts gave no vocabulary: give at least a few hundred lines of text")
    if kind == "wordpiece":
        return wordpiece(tokens, "the trained vocabulary", lower, not keep_accents)
    specials = frozenset(range(5))
    rules = {"charsmap": charsmap, "split_scripts": split_scripts}
    return Vocabulary("unigram", tokens, scores, specials, 1, lower, not keep_accents, **rules)  # type: ignore[arg-type]


def _learn_unigram(
    texts: Iterator[str], first: list[str], vocab_size: int, split_scripts: bool
) -> tuple[list[str], list[float]]:
    """The given pieces, then those that were learnt, the likeliest first.

    The library meets words and letters in the order of a hash table, another one each time. Two things undo that: scores
    are rounded far above the noise of adding numbers in another order, and the letters that no piece was learnt for,
    which get the lowest score of all plus 0, 0.0001, 0.0002 and so on, get them in the order of the alphabet.
    """
    tokenizer = Rust(models.Unigram())
    marks = "[" + "".join(f"\\x{{{ord(c):x}}}" for c in APART) + "]"
    apart = pre_tokenizers.Split(Regex(PUNCTUATION if split_scripts else marks), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace_words(split_scripts), apart])
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=first, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = {token: round(score, 4) for token, score in json.loads(tokenizer.to_str())["model"]["vocab"]}
    learnt = {token: score for token, score in found.items() if token not in first}
    letters = sorted(token for token in learnt if len(token) == 1)
    least = min(learnt.values(), default=0.0)
    low = [c for c in letters if learnt[c] <= least + 0.0001 * (len(letters) + 1)]
    learnt |= dict(zip(low, sorted(learnt[c] for c in low), strict=True))
    rest = sorted(learnt, key=lambda token: (-learnt[token], token))
    return first + rest, array("f", [0.0] * len(first) + [learnt[token] for token in rest]).tolist()


def _learn_wordpiece(
    texts: Iterator[str], vocab_size: int, min_count: int, lower: bool, strip_accents: bool
) -> list[str]:
    """Two rounds over the texts, which wait in a temporary file: the letters, then the pieces.

    The rust trainer numbers the letters inside words ("##a") as it meets them in a hash table, and breaks ties by those
    numbers, so that one round gives another vocabulary each time. Letters that are given beforehand stay in order.
    """

    def learn(lines: Iterable[str], size: int, given: list[str]) -> list[str]:
        tokenizer = bert(Rust(models.WordPiece(unk_token="[UNK]")), lower, strip_accents)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=given, min_frequency=min_count, show_progress=False
        )
        tokenizer.train_from_iterator(lines, trainer)
        ids = json.loads(tokenizer.to_str())["model"]["vocab"]
        return sorted(ids, key=ids.__getitem__)

    first = list(SPECIALS["wordpiece"])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as waiting:
        waiting.writelines(text.replace("\n", " ") + "\n" for text in texts)
        waiting.seek(0)
        letters = sorted(set(learn(waiting, 0, first)) - set(first))
        if len(first + letters) > vocab_size:
            raise AlbertkitError(
                f"the texts have {len(letters)} letters, which do not fit a vocab_size of {vocab_size}: raise vocab_size"
            )
        waiting.seek(0)
        return learn(waiting, vocab_size, first + letters)
