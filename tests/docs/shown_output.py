"""Compare the output that a page shows with what its commands and scripts print.

In: a page. Out: `shown_after` pairs each block of code with the output below it; `missing_lines` are the shown lines that
the block did not print. Numbers may differ as they do between processors. Only blocks that run as they are written are
compared: what a shortened training prints is not what the page shows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import zip_longest

from tests.docs.doc_commands import joined

EXACT = ("embed", "similar", "index", "search", "fill", "explain", "tokenize", "classify", "evaluate")  # run as written
FROZEN = {"--freeze", "--nearest"}  # fine-tuning that takes seconds, also run as written
NUMBER = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?)(%?)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)


def shown_after(text: str, kind: str) -> Iterator[tuple[str, str]]:
    """Each block of a kind, with the ```text block below it in the same section, before other code ("" if none is)."""
    found = [block for block in BLOCK.finditer(text) if block[1] in ("bash", "python", "py", "text")]
    for block, below in zip_longest(found, found[1:]):
        if block[1] == kind:
            is_shown = below and below[1] == "text" and "\n#" not in text[block.end() : below.start()]
            yield block[2], below[2] if is_shown else ""


def is_exact(block: str, models: set[str]) -> bool:
    """Whether a block of commands prints here what it prints for a reader. `models` are those that do so, to begin with
    `BUILTINS`; classifiers on frozen vectors are added to it.
    """
    for line in joined(block):
        words = shlex.split(line, comments=True)
        model = words[words.index("-m") + 1] if "-m" in words else "small"
        if words[0] != "albertkit" or model not in models or "--engine" in words:  # which prints its speed
            return False
        if words[1] == "finetune" and FROZEN & set(words):
            models.add(words[words.index("-o") + 1])
        elif words[1] not in EXACT:
            return False
    return True


def missing_lines(shown: str, printed: str, tolerance: float) -> list[str]:
    """The shown lines that were not printed, in this order. A line `…` stands for lines that are not shown."""
    rest = iter(printed.splitlines())
    wanted = [line for line in shown.splitlines() if line.strip() != "…"]
    return [line for line in wanted if not any(is_like(line, other, tolerance) for other in rest)]


def is_like(shown: str, printed: str, tolerance: float) -> bool:
    """Whether two lines are equal but for the last digits of their numbers and the length of bars. A shown line may end
    early, with `…`.
    """
    if shown.endswith("…"):
        shown = shown.removesuffix("…").rstrip()
        printed = printed[: len(shown)]
    if outline(shown) != outline(printed):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(
        is_near(float(a.replace(",", "")), float(b.replace(",", "")), unit, tolerance) for (a, unit), (b, _) in pairs
    )


def is_near(shown: float, printed: float, unit: str, tolerance: float) -> bool:
    return abs(shown - printed) <= (1.5 if unit == "%" else tolerance) + abs(shown) / 20


def outline(line: str) -> str:
    return " ".join(re.sub("[█░]", "", NUMBER.sub("#", line)).split())
