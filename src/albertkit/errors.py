"""The one error of the project, and the checks that many modules share.

Every error a user can cause is an `AlbertkitError` whose text is one sentence with the value found, the rule it
breaks and the remedy. The command line prints that sentence on stderr and exits with code 2.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Iterable
from types import ModuleType


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


def nearest(word: str, choices: Iterable[str]) -> str:
    """A ready-made hint such as ` (did you mean 'hidden_size'?)`, or nothing when no choice is close."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `NAME is VALUE; choose one of …` if the value is none of the choices."""
    choices = list(choices)
    if value not in choices:
        raise AlbertkitError(f"{name} is {value!r}{nearest(str(value), choices)}; choose one of {', '.join(choices)}")


def check_keys(what: str, keys: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise if one of the keys is not known, with the nearest known one; a misspelt key is never ignored."""
    for key in keys:
        if key not in known:
            raise AlbertkitError(f"unknown {what} {key!r}{where}{nearest(key, known)}; correct its name or remove it")


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say in one sentence which pip line brings it.

    >>> need("json", "train", "reading this file").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise  # the module is there, and something it needs is broken: do not hide that
        raise AlbertkitError(
            f"{purpose} needs {module.split('.')[0]!r}, which is not installed: run  pip install 'albertkit[{extra}]'"
        ) from None
