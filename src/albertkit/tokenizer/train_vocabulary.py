"""Training of new vocabularies.

In: an iterator of texts, which is read once. Out: a `Vocabulary` with ids in ALBERT's order. Before this file:
`normalizer.py`, `vocabulary.py` and the trainers of the `tokenizers` library. After it: `Tokenizer.train`.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import trainers

from albertkit.errors import AlbertkitError
from albertkit.tokenizer.normalizer import SPACE, Normalizer, check_text
from albertkit.tokenizer.tokenizer_json import Step, bert_rules, metaspace_words, sequence, split, wordpiece_model
from albertkit.tokenizer.vocabulary import MAX_TOKENS, SPECIALS, Vocabulary, wordpiece_vocabulary

PUNCTUATION = r"[[\p{P}\p{S}]&&[^" + SPACE + "]]"  # with split_scripts, each is a separate token
SEPARATE_SYMBOLS = '()"-.–£€'  # always single tokens in ALBERT's English vocabulary
NO_VOCABULARY = "no vocabulary could be trained on these texts. Pass at least a few hundred lines of text."


def train_unigram(
    texts: Iterable[str], vocab_size: int, lower: bool, strip_accents: bool, split_scripts: bool
) -> Vocabulary:
    """A unigram vocabulary: special tokens, separate symbols, then tokens by falling probability.

    The library visits words and letters in hash-table order, which changes from run to run. Two steps reduce the
    effect. Scores are rounded far above the noise of the summation order. Letters without a token get the lowest score
    plus 0, 0.0001, 0.0002 and so on, in alphabetical order.
    """
    first = [*SPECIALS["unigram"], *("" if split_scripts else SEPARATE_SYMBOLS)]
    normalize = Normalizer(b"", lower, strip_accents, split_scripts)
    lines = (normalize(text)[0] for text in _checked(texts, vocab_size, len(first)))
    marks = "[" + "".join(f"\\x{{{ord(c):x}}}" for c in SEPARATE_SYMBOLS) + "]"
    separate = split(PUNCTUATION if split_scripts else marks)
    words = sequence("pretokenizers", [*metaspace_words(split_scripts), separate])
    tokenizer = open_tokenizer({"type": "Unigram", "unk_id": None, "vocab": []}, {"pre_tokenizer": words})
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=first, unk_token="<unk>", show_progress=False
    )
    trained = {token: round(score, 4) for token, score in _train(tokenizer, lines, trainer) if token not in first}
    if not trained:
        raise AlbertkitError(NO_VOCABULARY)
    letters = sorted(token for token in trained if len(token) == 1)
    least = min(trained.values())
    low = [c for c in letters if trained[c] <= least + 0.0001 * (len(letters) + 1)]
    trained |= dict(zip(low, sorted(trained[c] for c in low), strict=True))
    rest = sorted(trained, key=lambda token: (-trained[token], token))
    scores = array("f", [0.0] * len(first) + [trained[token] for token in rest]).tolist()
    specials = frozenset(range(len(SPECIALS["unigram"])))
    return Vocabulary("unigram", first + rest, scores, specials, 1, lower, strip_accents, split_scripts=split_scripts)


def train_wordpiece(
    texts: Iterable[str], vocab_size: int, lower: bool, strip_accents: bool, min_count: int
) -> Vocabulary:
    """A WordPiece vocabulary, trained in two passes over the texts: first letters, then tokens.

    The trainer numbers the letters inside words ("##a") in hash-table order and breaks ties by these numbers. So a
    single pass would give a different vocabulary each time. Letters that are passed in keep their order.
    """

    def train_round(lines: Iterable[str], size: int, fixed: list[str]) -> list[str]:
        tokenizer = open_tokenizer(wordpiece_model({}), bert_rules(lower, strip_accents))
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=fixed, min_frequency=min_count, show_progress=False
        )
        ids = _train(tokenizer, lines, trainer)
        return sorted(ids, key=ids.__getitem__)

    first = list(SPECIALS["wordpiece"])
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        file.writelines(text.replace("\n", " ") + "\n" for text in _checked(texts, vocab_size, len(first)))
        file.seek(0)
        letters = sorted(set(train_round(file, 0, first)) - set(first))
        if not letters:
            raise AlbertkitError(NO_VOCABULARY)
        if len(first + letters) > vocab_size:
            raise AlbertkitError(
                f"vocab_size={vocab_size} is too small for the characters of the texts. "
                f"Pass at least {len(first + letters)}."
            )
        file.seek(0)
        tokens = train_round(file, vocab_size, first + letters)
    return wordpiece_vocabulary(tokens, "the trained vocabulary", lower, strip_accents)


def open_tokenizer(model: Step, rules: dict[str, Step]) -> RustTokenizer:
    """A tokenizer of the library, with an empty model and the rules of a tokenizer.json."""
    return RustTokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **rules, "model": model}))


def _checked(texts: Iterable[str], vocab_size: int, specials: int) -> Iterator[str]:
    """The texts, each checked when it is read. The vocabulary size is checked at once."""
    if isinstance(texts, str | bytes):
        raise AlbertkitError("texts is a single text. Pass a list or an iterator of texts.")
    if type(vocab_size) is not int or not specials < vocab_size <= MAX_TOKENS:
        raise AlbertkitError(f"vocab_size={vocab_size!r} is out of range. Pass {specials + 1} to {MAX_TOKENS}.")
    return map(check_text, texts)


def _train(tokenizer: RustTokenizer, lines: Iterable[str], trainer: trainers.Trainer) -> Any:
    """The vocabulary that the library trains on some lines."""
    try:
        tokenizer.train_from_iterator(lines, trainer)
    except AlbertkitError:
        raise
    except Exception as error:  # the trainers raise bare exceptions
        raise AlbertkitError(f"{NO_VOCABULARY} (The trainer failed: {error})") from None
    return json.loads(tokenizer.to_str())["model"]["vocab"]
