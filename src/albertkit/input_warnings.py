"""Warnings about inputs whose results may be wrong: unreadable, truncated and blank texts, untrained depths and
vectors.

In: a tokenizer and texts. Out: a warning of each kind, or an `UnreadableTextError` where a model is trained or an index
is built. Unreadable texts have nearly the same tokens, so results for them are meaningless. Imports `tokenizer/` and
`builtin.py`; `tasks/`, `runtime/`, `search/`, `serve/` and `train/` use it.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache

from albertkit import builtin
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer

MAX_UNKNOWN_CHARACTERS = 0.4  # a text with a larger share of unknown characters is unreadable
MAX_UNREADABLE_TEXTS = 0.1  # training and indexing refuse a larger share of unreadable texts
CHECKED_CHARACTERS = 10_000  # of a text
CHECKED_TEXTS = 10_000  # of training data
SHOWN = 30  # characters of a text in a message
PART_TEXTS = 64  # calls that read their texts in parts have at least as many in the first of several
REMEDY_CHARACTERS = 200  # of a text, by which another model is chosen
UNTRAINED_DEPTH = (
    "this model was fine-tuned at its full depth only, so predictions at other depths may be wrong. Train every depth "
    "with  albertkit elastic."
)
UNTRAINED_VECTORS = (
    "this model was not trained for sentence vectors, so its cosines may be high for unrelated texts. Use a model that "
    "was, such as small (English) or small-zh (Chinese), or train one with  albertkit finetune match."
)


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
    """Texts are longer than a model reads for its task, in training or predictions, so only a part has an effect.

    >>> from albertkit import TruncatedTextWarning
    >>> import warnings
    >>> warnings.simplefilter("error", TruncatedTextWarning)  # an error instead of a warning
    >>> warnings.simplefilter("default", TruncatedTextWarning)
    """


class BlankTextWarning(UserWarning):
    """Texts have no visible character, so results for them have no meaning.

    >>> from albertkit import Albert, BlankTextWarning
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     vector = Albert().embed(" ")
    ...
    >>> found[0].category is BlankTextWarning
    True
    """


class UntrainedDepthWarning(UserWarning):
    """A model that was fine-tuned at its full depth only predicts at other depths, so predictions may be wrong.

    >>> from albertkit import UntrainedDepthWarning
    >>> import warnings
    >>> warnings.simplefilter("error", UntrainedDepthWarning)  # an error instead of a warning
    >>> warnings.simplefilter("default", UntrainedDepthWarning)
    """


class UntrainedVectorsWarning(UserWarning):
    """Sentence vectors of a model that was not trained for them are compared, so their cosines may have no meaning.

    >>> from albertkit import Albert, UntrainedVectorsWarning
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     cosine = Albert("small-pretrained").similarity("a cat", "the stock market")
    ...
    >>> found[0].category is UntrainedVectorsWarning
    True
    """


@dataclass(frozen=True)
class InputProblems:
    """Why results of a call may be wrong. `+` joins the problems of its parts."""

    unreadable: int = 0
    """Texts with many characters that the vocabulary does not contain."""
    total: int = 0
    """All texts of the call."""
    example: str = ""
    """The first unreadable text."""
    share: float = 0.0
    """Share of unknown characters in the example."""
    truncated: int = 0
    """Texts that are longer than the model reads."""
    limit: int = 0
    """Tokens that it reads."""
    longest: int = 0
    """Tokens that it could read, if it were trained with a larger maximum length."""
    where: str = ""
    """The file of the texts."""
    blank: int = 0
    """Texts without a visible character."""
    is_partial: bool = False
    """Whether more texts may follow those that were counted."""
    is_untrained_depth: bool = False
    """Whether predictions are those of a depth for which the model was not trained."""
    has_untrained_vectors: bool = False
    """Whether sentence vectors are compared for which the model was not trained."""

    def __add__(self, other: InputProblems) -> InputProblems:
        first = self if self.unreadable else other
        return InputProblems(
            self.unreadable + other.unreadable,
            self.total + other.total,
            first.example,
            first.share,
            self.truncated + other.truncated,
            max(self.limit, other.limit),
            max(self.longest, other.longest),
            self.where or other.where,
            self.blank + other.blank,
            is_untrained_depth=self.is_untrained_depth or other.is_untrained_depth,
            has_untrained_vectors=self.has_untrained_vectors or other.has_untrained_vectors,
        )

    @property
    def has_any(self) -> bool:
        """Whether there is a problem."""
        is_untrained = self.is_untrained_depth or self.has_untrained_vectors
        return bool(self.unreadable or self.truncated or self.blank or is_untrained)

    def without(self, reported: InputProblems) -> InputProblems:
        """What an earlier part of the same call did not report."""
        return replace(
            self,
            unreadable=0 if reported.unreadable else self.unreadable,
            truncated=0 if reported.truncated else self.truncated,
            blank=0 if reported.blank else self.blank,
            is_untrained_depth=self.is_untrained_depth and not reported.is_untrained_depth,
            has_untrained_vectors=self.has_untrained_vectors and not reported.has_untrained_vectors,
        )

    def messages(self, with_example: bool = True) -> list[str]:
        """What to warn of."""
        return [message for message, _ in self.warnings(with_example)]

    def warnings(self, with_example: bool = True) -> Iterator[tuple[str, type[UserWarning]]]:
        """Each message and its category."""
        if self.unreadable:
            yield self.describe(with_example), UnreadableTextWarning
        if self.truncated:
            yield self.describe_truncated(), TruncatedTextWarning
        if self.blank:
            remedy = "Pass a text with words." if self.total == 1 else "Remove blank texts, or skip their results."
            rest = "is blank, so its result has" if self.blank == 1 else "are blank, so their results have"
            yield f"{self._subject(self.blank)} {rest} no meaning. {remedy}", BlankTextWarning
        if self.is_untrained_depth:
            yield UNTRAINED_DEPTH, UntrainedDepthWarning
        if self.has_untrained_vectors:
            yield UNTRAINED_VECTORS, UntrainedVectorsWarning

    def _subject(self, count: int) -> str:
        """Some of the texts, as the subject of a sentence."""
        if self.total == 1:
            return "the text"
        return f"{count:,} of {'the first ' if self.is_partial else ''}{self.total:,} texts"

    def describe_truncated(self) -> str:
        """The message about long texts."""
        file = f"{self.where}: " if self.where else ""
        verb = "is" if self.truncated == 1 else "are"
        limit = f" (at most {self.longest})" if self.longest else ""
        longer = "" if self.longest and self.longest <= self.limit else f", or train with a larger --max-length{limit}"
        return (
            f"{file}{self._subject(self.truncated)} {verb} longer than the {self.limit} tokens that this model reads, "
            f"so the rest has no effect. Split long texts{longer}."
        )

    def describe(self, with_example: bool = True) -> str:
        """One message: the value, the rule and the remedy."""
        shown = f" {self.example[:SHOWN]!r}" if with_example else ""
        subject = f"the text{shown}" if self.total == 1 else self._subject(self.unreadable)
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


def find_problems(
    tokenizer: Tokenizer, texts: Sequence[str], ids: Sequence[Sequence[int]] | None = None
) -> InputProblems:
    """How many of the texts are unreadable or blank. ids: the tokens of each text; the default is to compute them."""
    unknown = tokenizer.unk_id
    if ids is None:
        ids = tokenizer.ids_batch([text[:CHECKED_CHARACTERS] for text in texts])
    shares = {
        place: unknown_share(tokenizer, text)
        for place, (text, tokens) in enumerate(zip(texts, ids, strict=True))
        if unknown is None or unknown in tokens
    }
    places = [place for place, share in shares.items() if share > MAX_UNKNOWN_CHARACTERS]
    problems = InputProblems(len(places), len(texts), blank=sum(map(is_blank, texts)))
    return replace(problems, example=texts[places[0]], share=shares[places[0]]) if places else problems


def is_blank(text: str) -> bool:
    r"""Whether a text has no visible character: only white space, control characters and marks such as U+200B.

    >>> is_blank(" \t\u200b"), is_blank(".")
    (True, False)
    """
    return all(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text)


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

_collector: ContextVar[list[InputProblems] | None] = ContextVar("input_problems", default=None)


@contextmanager
def collect_problems() -> Iterator[list[InputProblems]]:
    """In this context, problems are appended to a list instead of a warning."""
    problems: list[InputProblems] = []
    token = _collector.set(problems)
    try:
        yield problems
    finally:
        _collector.reset(token)


def report_problems(problems: InputProblems, reported: InputProblems | None = None) -> None:
    """Warn of problems, or collect them. reported: what was found in earlier texts of the same call, if it reads
    its texts in parts. Each problem is reported once.
    """
    collector = _collector.get()
    if collector is not None:
        collector.append(problems)
        return
    if reported is not None:
        total = reported.total + problems.total
        problems = replace(problems.without(reported), total=total, is_partial=total >= PART_TEXTS)
    for message, category in problems.warnings():
        warnings.warn(message, category, stacklevel=2)


def check_readable(problems: InputProblems, max_share: float) -> None:
    """Raise if more than this share of the texts is unreadable."""
    if problems.unreadable > max_share * problems.total:
        limit = f"{max_share:.0%} of the texts may be unreadable here"
        raise UnreadableTextError(f"{problems.describe()} At most {limit}; --max-unknown 1 accepts all.")


def check_training_texts(tokenizer: Tokenizer, texts: Sequence[str], max_share: float) -> None:
    """Raise if more than this share of training texts is unreadable, warn of fewer. Of many texts, some are checked."""
    problems = find_problems(tokenizer, texts[:: len(texts) // CHECKED_TEXTS + 1])
    check_readable(problems, max_share)
    report_problems(problems)
