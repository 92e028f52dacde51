"""Texts, examples and token ids of requests: their sizes, and their way to the engine's inputs.

In: fields of requests. Out: lists of texts, numbers of characters, windows and features. Imports `served_models.py`;
`inference.py` and the endpoints use it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.runtime.embed import EmbedOptions, TokenWindows, split_texts, split_tokens
from albertkit.runtime.predict import task_features
from albertkit.serve.schemas import HttpError
from albertkit.serve.served_models import ServedModel
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer

Text = str | list[int]
"""A text, or its token ids."""
TaskExample = TextExample | TaggedExample | QuestionExample | ChoiceExample
MAX_EXPANSION = 18  # characters that one becomes in normalization, at most
SLICE = 4096  # characters that are normalized at a time


def split_into_windows(model: ServedModel, options: EmbedOptions, texts: Sequence[Text], start: int) -> TokenWindows:
    """Texts or token ids as windows; `start` is the place of the first in the request, for errors."""
    ids = [strip_special_tokens(model.albert.tokenizer, text) for text in texts if not isinstance(text, str)]
    if ids:
        return split_tokens(model.albert, ids, options.long_texts, start)
    return split_texts(model.albert, [text for text in texts if isinstance(text, str)], options, start)


def features_of_group(albert: Albert, task: str, examples: list[Any], start: int) -> list[Feature]:
    """The features of some examples; `start` is the place of the first in the request."""
    features = task_features(albert, examples, task)
    return [replace(feature, example=feature.example + start) for feature in features] if start else features


def characters(item: Text | TaskExample, count: Callable[[str], int] = len) -> int:
    """Characters of a text, an example or token ids that are tokenized."""
    if isinstance(item, str):
        return count(item)
    if isinstance(item, list):
        return len(item)
    if isinstance(item, ChoiceExample):
        return count(item.context) + len(item.choices) * count(item.question) + sum(map(count, item.choices))
    if isinstance(item, QuestionExample):
        return count(item.question) + count(item.context)
    return count(item.text) + count(getattr(item, "pair", None) or "")


def normalized_length(text: str) -> int:
    """Characters after normalization, in which one character may become 18. No tokenizer makes more tokens of them."""
    if text.isascii():
        return len(text)
    parts = (text[start : start + SLICE] for start in range(0, len(text), SLICE))
    return sum(max(len(part), len(unicodedata.normalize("NFKC", part))) for part in parts)


def strip_special_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Token ids of a text without the special tokens around it."""
    for token in ids:
        if not 0 <= token < tokenizer.vocab_size:
            raise AlbertkitError(
                f"token id {token} is not in this model's vocabulary of {tokenizer.vocab_size:,}; "
                "send text, or ids from /tokenize"
            )
    start = int(len(ids) > 0 and ids[0] == tokenizer.cls_id)
    stop = len(ids) - int(len(ids) > start and ids[-1] == tokenizer.sep_id)
    return list(ids[start:stop])


def as_texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def as_texts_or_tokens(value: str | list[str | int | list[int]], name: str) -> list[Text]:
    """One text or several, or the token ids of one or several, as a list."""
    if isinstance(value, str):
        return [value]
    kinds = {type(item) for item in value}
    if len(kinds) > 1:
        raise HttpError(422, f"{name} contains texts and token ids; send either", param=name)
    return cast(list[Text], [value] if kinds == {int} else value)
