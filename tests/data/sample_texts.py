"""What the tests of the corpus share: made-up text, and the bytes of a folder."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path


def words(line: str) -> list[str]:
    """A list of words, easier to read than quotes and commas."""
    return line.split()


WORDS = words(
    "the a of and in to was is river city king water music small large old new young red green first last year day house "
    'people river\'s (north) south, e.g. U.S. 1,984 3.14 well-known naïve Zürich 北京 "quoted" painted ran wrote sang'
)


def text(documents: int, seed: int = 0) -> str:
    """Documents of a few paragraphs of a few sentences; no two are alike."""
    dice = random.Random(seed)

    def sentence() -> str:
        made = " ".join(dice.choices(WORDS, k=dice.randint(4, 14)))
        return made[0].upper() + made[1:] + dice.choice(".!?")

    def paragraph() -> str:
        return " ".join(sentence() for _ in range(dice.randint(1, 5)))

    return "\n\n".join(
        f"Document {seed} {number}.\n" + "\n".join(paragraph() for _ in range(dice.randint(1, 4)))
        for number in range(documents)
    )


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file in a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
