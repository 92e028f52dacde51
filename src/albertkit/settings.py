"""A dataclass field with its help text: one sentence documents it, in the code and in `--help`."""

from __future__ import annotations

import dataclasses
from typing import Any

ADVANCED = "Advanced options"


def setting(default: Any, help_text: str, advanced: bool = False) -> Any:
    """A dataclass field with a default and the sentence that explains it; `--help` lists advanced ones at the end."""
    heading = {"heading": ADVANCED} if advanced else {}
    return dataclasses.field(default=default, metadata={"help": help_text, **heading})
