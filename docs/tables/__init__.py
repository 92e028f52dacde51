"""Tables of measured numbers for the pages of docs/: each function reads recorded results and returns Markdown.

A page contains `<!-- table: NAME -->` and `<!-- /table -->`; `docs/generate.py` writes the table NAME between them. Every
number comes from a file in `studies/results/` or `bench/results/`, or from a built-in model. The prose is in the pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (ROOT / "studies" / "results", ROOT / "bench" / "results")


def read(name: str) -> Any:
    """A recorded result, by its file name."""
    path = next(folder / name for folder in FOLDERS if (folder / name).is_file())
    return json.loads(path.read_text(encoding="utf-8"))


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; None is an empty cell."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |\n" for line in lines)


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def megabytes(count: float, digits: int = 1) -> str:
    return f"{count / 1e6:,.{digits}f}"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}×" if value < 10 else f"{value:.1f}×"
