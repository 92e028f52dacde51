"""A record as a point of Qdrant: its id, its payload, and the name of its vectors.

In: records. Out: ids and payloads, and the records of points. Before this file: `index_records.py`; after it:
`qdrant_collection.py`, `qdrant.py`.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from typing import Any

from albertkit.search.index_records import text_hash
from albertkit.search.vectors import Ranked
from albertkit.text_reader import Record

FIELDS = ("id", "text", "source", "line")
WORDS = "words"  # name of the sparse vectors
POINT_IDS = uuid.UUID("f7a3d1b2-5c0e-5e6f-9b1a-2c9d0d7f4a10")  # namespace of the ids of points
_plain_name = re.compile(r"[A-Za-z0-9_.+-]{1,80}")


def vector_name(model: str) -> str:
    """The name of the dense vectors of a model: its own, or a hash of it."""
    is_plain = _plain_name.fullmatch(model) and model != WORDS
    return model if is_plain else hashlib.blake2b(model.encode(), digest_size=16).hexdigest()


def point_id(id: str) -> str:
    """The id of the point of a record, which must be a UUID."""
    return str(uuid.uuid5(POINT_IDS, id))


def slot_of(point: Any) -> int:
    return uuid.UUID(str(point.id)).int


def record_of(point: Any) -> Record:
    """The record of a point; that of another program has an empty text."""
    payload = {"id": str(point.id), "text": "", "source": "", "line": 0, **(point.payload or {})}
    id, text, source, line = (payload[name] for name in FIELDS)
    return Record(id, text, source, line)


def payload_of(record: Record) -> dict[str, Any]:
    """The record, with a hash that finds equal texts and the folders of its file."""
    fields = {name: getattr(record, name) for name in FIELDS}
    return {**fields, "hash": text_hash(record.text), "folders": folders_of(record.source)}


def folders_of(source: str) -> list[str]:
    """The folders of a path, by which `delete_unseen` finds the files of a folder.

    >>> folders_of("notes/2024/may.txt")
    ['notes', 'notes/2024']
    """
    return [source[:place] for place, character in enumerate(source) if character == "/"]


def ranked_points(points: Iterable[Any]) -> Ranked:
    """Points by descending score; equal ones in the order of their ids."""
    return sorted(((float(point.score), slot_of(point)) for point in points), key=lambda pair: (-pair[0], pair[1]))
