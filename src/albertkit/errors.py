"""The one error of the project, and the check for optional parts.

Every error a user can cause is an `AlbertkitError` whose text is one sentence with the value found, the rule it
breaks and the remedy. The command line prints that sentence on stderr and leaves with code 2; nothing else in the
package prints or exits.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


class AlbertkitError(ValueError):
    """Something the user can put right: the message says what was found, what is allowed and what to do."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """A ready-made hint such as ` (did you mean 'hidden_size'?)`, or nothing when no choice is close."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


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
