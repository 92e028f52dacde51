"""A dataclass field with its help text: one sentence documents it, in the code and in `--help`."""

from __future__ import annotations

import dataclasses
from typing import Any


def setting(default: Any, help_text: str) -> Any:
    """A dataclass field with a default and the sentence that explains it."""
    return dataclasses.field(default=default, metadata={"help": help_text})
