"""Checksums of the rows of an index: damage is an error, not a wrong hit.

In: bytes and numbers. Out: a CRC-32C, stored beside the row that `vectors.py`, `keywords.py` and `index.py` read.
"""

from __future__ import annotations

from pathlib import Path

import google_crc32c

from albertkit.errors import AlbertkitError


def checksum(*parts: bytes | str | int) -> int:
    """The CRC-32C of some values, with their types and lengths.

    >>> checksum("ab", 1) == checksum("a", "b1")
    False
    """
    total = 0
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        total = google_crc32c.extend(google_crc32c.extend(total, f"{type(part).__name__} {len(data)} ".encode()), data)
    return int(total)


def damage_error(path: Path, what: str) -> AlbertkitError:
    """The error for a wrong checksum."""
    return AlbertkitError(f"{path} is damaged: {what}. Index the files again (--force).")
