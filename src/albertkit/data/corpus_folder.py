"""The folder of a corpus: its settings, identity and resume log, and the deletion of old files.

In: a folder, inputs, settings, a tokenizer. Out: the identity of a corpus, or an error, and the `ResumeLog`, which
stores the progress of a run. Before this file: `shards.py`; after it: `corpus.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.data.shards import MANIFEST, TOKENIZER
from albertkit.errors import AlbertkitError
from albertkit.file_io import digest, flush
from albertkit.options import setting
from albertkit.text_reader import TextFile
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.tokenizer_json import to_json

RULES = 2  # version of the rules: a version that writes different shards does not resume an older run
RESUME_LOG = "unfinished.sqlite"
_CORPUS_FILE = re.compile(
    r"\.?((train|held-out)-\d{5,}\.(tokens|sentences|documents)|unigrams)\.npy(\.part)?|\.manifest\.json\.part"
)
Progress = Callable[[str, int, int, int], object]  # stage, bytes done, total bytes, tokens so far


@dataclass(frozen=True)
class CorpusSettings:
    """How to build a corpus from its inputs."""

    text_column: str | None = setting(None, "JSON field or Parquet column with the text  [default: text]")
    held_out: float = setting(0.005, "Share of the documents kept out of training.")
    min_tokens: int = setting(16, "Drop documents with fewer tokens.")
    skip_bad: bool = setting(False, "Skip and count bad lines instead of stopping.")
    max_unknown: float = setting(
        0.2, "Stop above this share of unknown tokens: the vocabulary does not fit the text.", advanced=True
    )
    max_sentence: int = setting(512, "Cut sentences with more tokens.", advanced=True)
    shard_tokens: int = setting(16_000_000, "Most tokens per shard.", advanced=True)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("min_tokens", 1, 2**31),
            ("held_out", 0, 0.5),
            ("max_sentence", 16, 2**16),
            ("shard_tokens", self.max_sentence, 2**30),
            ("max_unknown", 0, 1),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise AlbertkitError(f"{name}={value!r} is out of range: pass a number from {least:,} to {most:,}.")


def corpus_identity(
    files: list[TextFile], tokenizer: Tokenizer, settings: CorpusSettings, progress: Progress
) -> dict[str, Any]:
    """Everything that determines a corpus: the tokenizer, the settings, and the hash of each input."""
    inputs = []
    done, total = 0, sum(file.size for file in files)
    for file in files:
        try:
            sha256 = None if file.name == "-" else digest(Path(file.name))
        except OSError as error:
            raise AlbertkitError(f"{file.name} cannot be read: {error.strerror}. Check its permissions.") from None
        inputs.append({"name": file.name, "bytes": file.size if sha256 else None, "sha256": sha256})
        done += file.size
        progress("inputs", done, total, 0)
    values = {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("skip_bad", "max_unknown")}
    return {
        "tokenizer": hashlib.sha256(to_json(tokenizer.vocabulary).encode()).hexdigest(),
        "settings": {"rules": RULES, **values},
        "inputs": inputs,
    }


def check_same_corpus(current: dict[str, Any], stored: dict[str, Any], folder: Path) -> None:
    """Raise if a folder contains a corpus of another identity."""
    settings, inputs = stored.get("settings") or {}, stored.get("inputs") or []
    differences = [
        f"{name} ({settings.get(name)!r} there, {value!r} now)"
        for name, value in current["settings"].items()
        if settings.get(name) != value
    ]
    if [row["sha256"] for row in current["inputs"]] != [row["sha256"] for row in inputs]:
        differences.append(f"the inputs ({len(inputs)} there, {len(current['inputs'])} now, or other contents)")
    if any(row["name"] == "-" for row in current["inputs"]):
        differences.append("stdin, which cannot be compared")
    if current["tokenizer"] != stored["tokenizer"]:
        differences.append("the tokenizer")
    if differences:
        raise AlbertkitError(
            f"{folder} contains a corpus that was built with other options: {'; '.join(differences)}. Use --force to "
            "replace it, or another folder."
        )


def check_folder(folder: Path) -> None:
    """Raise if a folder contains something else."""
    if folder.exists() and not folder.is_dir():
        raise AlbertkitError(f"{folder} is a file. Pass a folder for the corpus.")
    if not folder.is_dir() or any((folder / name).is_file() for name in (MANIFEST, RESUME_LOG)):
        return
    if not all(path.name == TOKENIZER or _CORPUS_FILE.fullmatch(path.name) for path in folder.iterdir()):
        raise AlbertkitError(f"{folder} is not empty and contains no corpus. Choose another folder.")


def delete_corpus(folder: Path) -> None:
    """Delete a corpus, complete or not, and nothing else. The files that identify it as a corpus are deleted first."""
    if not folder.is_dir():
        return
    if is_locked(folder):
        raise AlbertkitError(f"another process is writing to {folder}. Wait for it, or choose another folder.")
    (folder / MANIFEST).unlink(missing_ok=True)
    delete_resume_log(folder)
    delete_arrays(folder)
    shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def delete_arrays(folder: Path) -> None:
    """Delete arrays that an earlier run left."""
    for path in folder.iterdir():
        if _CORPUS_FILE.fullmatch(path.name):
            path.unlink()


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a copy of the tokenizer beside the shards, and flush it to the disk."""
    tokenizer.save(folder / TOKENIZER)
    for path in sorted((folder / TOKENIZER).iterdir()):
        flush(path)
    flush(folder / TOKENIZER)


# The resume log -----------------------------------------------------------------------------------------------------


class ResumeLog:
    """The progress of a run and the hashes of all documents seen. Only one process can open it.

    It is an SQLite file in the corpus folder, and is deleted when the corpus is complete. Hashes and progress are
    written in one transaction per finished shard, so a killed run loses only the work after its last shard. Each hash
    takes about 20 bytes on disk. Memory use is limited to SQLite's cache of 64 MB.
    """

    def __init__(self, folder: Path):
        self.path = folder / RESUME_LOG
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=1)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA cache_size = -65536")
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BLOB)")
            self._db.execute("CREATE TABLE IF NOT EXISTS seen (hash INTEGER PRIMARY KEY)")
        except sqlite3.Error as error:
            self._db.close()
            if "locked" in str(error):
                reason = "another process is writing there. Wait for it, or choose another folder."
            else:
                reason = f"{error}. Use --force to start over, or another folder."
            raise AlbertkitError(f"{self.path} cannot be used: {reason}") from None

    def read(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The saved state: a JSON object, and arrays as bytes. Both are empty at the start."""
        rows = dict(self._db.execute("SELECT name, value FROM kept"))
        return json.loads(rows.pop("state", "{}")), rows

    def save(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Replace the saved state, and save the hashes seen since then."""
        rows: list[tuple[str, Any]] = [("state", json.dumps(state))]
        rows += [(name, np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()]
        self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
        self._db.execute("COMMIT")
        self._db.execute("BEGIN IMMEDIATE")

    def clear(self) -> None:
        """Start over."""
        self._db.execute("DELETE FROM kept")
        self._db.execute("DELETE FROM seen")

    def first_seen(self, hashes: np.ndarray) -> np.ndarray:
        """True for the first occurrence of each hash (uint64). All hashes are stored."""
        insert = "INSERT OR IGNORE INTO seen VALUES (?)"
        is_new = [self._db.execute(insert, (value,)).rowcount == 1 for value in hashes.view(np.int64).tolist()]
        return np.array(is_new, bool)

    def close(self) -> None:
        """Close the file. Unsaved state is lost."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")
        self._db.close()


def is_locked(folder: Path) -> bool:
    """Whether another process has the resume log of a folder open."""
    if not (folder / RESUME_LOG).is_file():
        return False
    with contextlib.closing(sqlite3.connect(folder / RESUME_LOG, isolation_level=None, timeout=0)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return "locked" in str(error)
    return False


def delete_resume_log(folder: Path) -> None:
    for name in (RESUME_LOG, f"{RESUME_LOG}-journal"):
        (folder / name).unlink(missing_ok=True)
