"""The exception class of the project, and shared checks.

Every user error is an `AlbertkitError`. Its message contains the value, the rule that it breaks and the remedy. The
command line prints the message to stderr and exits with code 2.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import reprlib
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class AlbertkitError(ValueError):
    """An error that the user can fix. The message contains the value, the rule and the remedy.

    >>> from albertkit import Albert, AlbertkitError
    >>> try:
    ...     Albert("no-such-folder")
    ... except AlbertkitError as error:
    ...     print("rejected")
    ...
    rejected
    """

    def __init__(self, message: str = "", *details: str) -> None:
        """message: one or two sentences. details: further lines, such as the problems of a file."""
        super().__init__("\n  ".join((message, *details)))
        self.lines = (message, *(f"  {line}" for line in details))
        """The lines, each of which may quote a text with line breaks."""


class NonFiniteError(AlbertkitError):
    """A model computed NaN or infinity."""


def check_finite(what: str, outputs: np.ndarray | Iterable[Any]) -> None:
    """Raise if an array, or one of several outputs (numbers, arrays or tuples of arrays), is not finite."""
    import numpy as np

    several = (outputs,) if isinstance(outputs, np.ndarray) else outputs
    parts = (part for output in several for part in (output if isinstance(output, tuple) else (output,)))
    if not all(np.isfinite(part).all() for part in parts):
        raise NonFiniteError(
            f"the model computed {what} with NaN or infinity; results must be finite. Its weights are damaged or too "
            "large: use another copy of the model."
        )


def nearest(word: str, choices: Iterable[str]) -> str:
    """A hint such as ` (did you mean 'hidden_size'?)`, or an empty string if no choice is similar."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `NAME is VALUE; choose one of …` if the value is not among the choices."""
    choices = list(choices)
    if value not in choices:
        raise AlbertkitError(f"{name} is {value!r}{nearest(str(value), choices)}; choose one of {', '.join(choices)}")


def check_type(name: str, value: object, kinds: tuple[type, ...], rule: str) -> None:
    """Raise `NAME=VALUE is a TYPE; pass RULE.` for a value of another type. True and False are not numbers.

    >>> check_type("k", "3", (Integral,), "a whole number")
    Traceback (most recent call last):
    albertkit.errors.AlbertkitError: k='3' is a str; pass a whole number.
    """
    is_bool = type(value).__name__ in ("bool", "bool_")  # numpy's too
    if not (bool in kinds if is_bool else isinstance(value, kinds)):
        shown = " ".join(reprlib.repr(value).split())
        raise AlbertkitError(f"{name}={shown} is {type_with_article(value)}; pass {rule}.")


def type_with_article(value: object) -> str:
    """The type of a value, for a sentence.

    >>> type_with_article("3"), type_with_article(3)
    ('a str', 'an int')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def check_string(name: str, value: object) -> None:
    """Raise unless a value is a text."""
    check_type(name, value, (str,), "a text in quotes")


def check_path(name: str, value: object) -> None:
    """Raise unless a value is a path, or a name."""
    check_type(name, value, (str, os.PathLike), "a path or a name, as a string or a Path")


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise unless a value is a whole number from `least` to `most`."""
    rule = f"a whole number of {least} or more" if most is None else f"a whole number from {least} to {most}"
    check_type(name, value, (Integral,), rule)
    if value < least or (most is not None and value > most):  # type: ignore[operator]
        raise AlbertkitError(f"{name}={value} is out of range. Pass {rule}.")


FIELD_TYPES: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "str": (str, "a text in quotes"),
    "None": (type(None), "None"),
}


def check_fields(settings: Any) -> None:
    """Raise for the first field of a settings dataclass whose value has another type than its annotation."""
    for field in dataclasses.fields(settings):
        names = str(field.type).split(" | ")
        if all(name in FIELD_TYPES for name in names):
            kinds, rules = zip(*(FIELD_TYPES[name] for name in names), strict=True)
            check_type(field.name, getattr(settings, field.name), kinds, " or ".join(rules))


def check_keys(what: str, keys: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise an error for an unknown key, with the most similar known key. A misspelt key is never ignored."""
    for key in keys:
        if key not in known:
            raise AlbertkitError(f"unknown {what} {key!r}{where}{nearest(key, known)}; correct its name or remove it")


def short_reason(error: Exception) -> str:
    """The first line of an error of another library, to quote in ours."""
    reason = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(reason).splitlines()[0][:200]


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or raise an error with the pip command that installs it.

    >>> need("json", "train", "reading this file").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise  # the module is installed, but one of its imports fails
        raise AlbertkitError(
            f"{purpose} needs {module.split('.')[0]!r}, which is not installed: run  pip install 'albertkit[{extra}]'"
        ) from None
