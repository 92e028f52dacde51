"""Texts that a model cannot read, because many of their characters are not in its vocabulary, or not to their end.

In: a tokenizer and texts. Out: an `UnreadableTextWarning` or `TruncatedTextWarning`, or an `UnreadableTextError` where
a model is trained or an index is built. Unreadable texts have nearly the same tokens, so results for them are
meaningless. Imports `tokenizer/` and `builtin.py`; `runtime/`, `search/`, `serve/` and `train/` use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from albertkit import builtin
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer

MAX_UNKNOWN_CHARACTERS = 0.4  # a text with a larger share of unknown characters is unreadable
MAX_UNREADABLE_TEXTS = 0.1  # training and indexing refuse a larger share of unreadable texts
CHECKED_CHARACTERS = 10_000  # of a text
CHECKED_TEXTS = 10_000  # of training data
SHOWN = 30  # characters of a text in a message
REMEDY_CHARACTERS = 200  # of a text, by which another model is chosen


class UnreadableTextWarning(UserWarning):
    """Texts contain many characters that the model does not know, so results for them are meaningless.

    >>> from albertkit import Albert, UnreadableTextWarning
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     vector = Albert("small").embed("我想退货")
    ...
    >>> found[0].category is UnreadableTextWarning
    True
    """


class UnreadableTextError(AlbertkitError):
    """Too many texts are unreadable for training a model or building an index.

    >>> from albertkit import TextExample, UnreadableTextError, finetune
    >>> examples = [TextExample("我想退货", label="return"), TextExample("今天天气很好", label="weather")]
    >>> try:
    ...     finetune("classify", examples * 10, output="chinese", model="small", freeze=True)
    ... except UnreadableTextError:
    ...     print("small cannot read Chinese")
    ...
    small cannot read Chinese
    """


class TruncatedTextWarning(UserWarning):
    """Texts are longer than a classifier reads, so its results depend on their beginnings only.

    >>> from albertkit import TruncatedTextWarning
    >>> import warnings
    >>> warnings.simplefilter("error", TruncatedTextWarning)  # an error instead of a warning
    >>> warnings.simplefilter("default", TruncatedTextWarning)
    """


@dataclass(frozen=True)
class UnreadableTexts:
    """How many of some texts a model cannot read, and the first of them; and how many it does not read to the end."""

    count: int
    total: int
    example: str = ""
    share: float = 0.0
    """Share of unknown characters in the example."""
    truncated: int = 0
    """Texts that are longer than the model reads."""
    limit: int = 0
    """Tokens that it reads."""

    def __add__(self, other: UnreadableTexts) -> UnreadableTexts:
        first, count, total = self if self.count else other, self.count + other.count, self.total + other.total
        cut = self.truncated + other.truncated
        return UnreadableTexts(count, total, first.example, first.share, cut, max(self.limit, other.limit))

    def messages(self, with_example: bool = True) -> list[str]:
        """What to warn of."""
        unreadable = [self.describe(with_example)] if self.count else []
        return [*unreadable, self.describe_truncated()] if self.truncated else unreadable

    def describe_truncated(self) -> str:
        """The message about long texts."""
        subject = "the text is" if self.total == 1 else f"{self.truncated:,} of {self.total:,} texts are"
        return (
            f"{subject} longer than the {self.limit} tokens that this model reads, so the rest has no effect. "
            "Split long texts, or train with a larger --max-length."
        )

    def describe(self, with_example: bool = True) -> str:
        """One message: the value, the rule and the remedy."""
        shown = f" {self.example[:SHOWN]!r}" if with_example else ""
        subject = f"the text{shown}" if self.total == 1 else f"{self.count:,} of {self.total:,} texts"
        example = f", such as{shown}" if shown and self.total > 1 else ""
        return (
            f"this model cannot read {subject}{example}: {self.share:.0%} of the characters are not in its vocabulary "
            f"(at most {MAX_UNKNOWN_CHARACTERS:.0%} may be), so the result is meaningless. {self.remedy()}"
        )

    def remedy(self) -> str:
        """A model that can read the example, or how to get one."""
        name = builtin.language_model(self.example)
        if name is None or unknown_share(_tokenizer(name), self.example[:REMEDY_CHARACTERS]) > MAX_UNKNOWN_CHARACTERS:
            return "No built-in model can read it: use an ALBERT model for its language, or pre-train one."
        return f"The built-in model {name} can read it: use {name}, or a model fine-tuned from it."


def find_unreadable(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Sequence[int]] | None = None
) -> UnreadableTexts:
    """The unreadable ones of some texts. ids: the tokens of each text; the default is to compute them."""
    unknown = tokenizer.unk_id
    if ids is None:
        ids = tokenizer.ids_batch([text[:CHECKED_CHARACTERS] for text in texts])
    shares = {
        place: unknown_share(tokenizer, text)
        for place, (text, tokens) in enumerate(zip(texts, ids, strict=True))
        if unknown is None or unknown in tokens
    }
    places = [place for place, share in shares.items() if share > MAX_UNKNOWN_CHARACTERS]
    if not places:
        return UnreadableTexts(0, len(texts))
    return UnreadableTexts(len(places), len(texts), texts[places[0]], shares[places[0]])


def unknown_share(tokenizer: Tokenizer, text: str) -> float:
    """The share of the visible characters of a text that the vocabulary does not contain.

    >>> from albertkit import Albert
    >>> unknown_share(Albert("small").tokenizer, "café 北京")
    0.333...
    """
    text = text[:CHECKED_CHARACTERS]
    visible = sum(not c.isspace() for c in text)
    encoding = tokenizer.encode(text, add_specials=False)
    if tokenizer.unk_id is None:  # such a tokenizer drops unknown characters
        unknown = visible - sum(not text[start].isspace() for start, _ in encoding.offsets)
    else:
        tokens = zip(encoding.ids, encoding.offsets, strict=True)
        spans = (text[start:end] for token, (start, end) in tokens if token == tokenizer.unk_id)
        unknown = sum(not c.isspace() for span in spans for c in span)
    return unknown / visible if visible else 0.0


@cache
def _tokenizer(name: str) -> Tokenizer:
    return Tokenizer.load(builtin.resolve(name), trusted=True)


# Reports ---------------------------------------------------------------------------------------------------------

_collector: ContextVar[list[UnreadableTexts] | None] = ContextVar("unreadable_texts", default=None)


@contextmanager
def collect_unreadable() -> Iterator[list[UnreadableTexts]]:
    """In this context, unreadable texts are appended to a list instead of a warning."""
    found: list[UnreadableTexts] = []
    token = _collector.set(found)
    try:
        yield found
    finally:
        _collector.reset(token)


def report_unreadable(found: UnreadableTexts, is_repeated: bool = False) -> None:
    """Warn about unreadable texts, or collect them. is_repeated: other texts of this call were reported before."""
    collector = _collector.get()
    if collector is not None:
        collector.append(found)
    elif not is_repeated:
        if found.count:
            warnings.warn(found.describe(), UnreadableTextWarning, stacklevel=2)
        if found.truncated:
            warnings.warn(found.describe_truncated(), TruncatedTextWarning, stacklevel=2)


def check_readable(found: UnreadableTexts, most: float) -> None:
    """Raise if more than this share of the texts is unreadable."""
    if found.count > most * found.total:
        limit = f"{most:.0%} of the texts may be unreadable here"
        raise UnreadableTextError(f"{found.describe()} At most {limit}; --max-unknown 1 accepts all.")


def check_training_texts(tokenizer: Tokenizer, texts: Sequence[str], most: float) -> None:
    """Raise if more than this share of training texts is unreadable, warn of fewer. Of many texts, some are checked."""
    found = find_unreadable(tokenizer, texts[:: len(texts) // CHECKED_TEXTS + 1])
    check_readable(found, most)
    report_unreadable(found)
