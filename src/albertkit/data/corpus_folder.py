"""The corpus folder from outside: may it be used, is it the same corpus, what in it is ours to delete.

In: a folder, inputs, settings, a tokenizer. Out: the identity of a corpus, or a refusal. Before this file: `reading.py`;
after it: `corpus.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from albertkit.artifact import digest, flush
from albertkit.data.corpus_settings import CorpusSettings
from albertkit.data.resume_log import JOURNAL, in_use, remove
from albertkit.data.shards import MANIFEST, TOKENIZER
from albertkit.errors import AlbertkitError
from albertkit.text_reader import TextFile
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.tokenizer_json import to_json

RULES = (
    1  # raised when the same text would give other shards, so that a newer albertkit does not go on with an older run
)
_OURS = re.compile(
    r"\.?((train|held-out)-\d{5,}\.(tokens|sentences|documents)|unigrams)\.npy(\.part)?|\.manifest\.json\.part"
)


def identity(
    sources: list[TextFile],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    progress: Callable[[str, int, int, int], object],
) -> dict[str, Any]:
    """What decides the bytes of a corpus: the tokenizer, the settings, and the hash of each input."""
    inputs = []
    done, total = 0, sum(source.size for source in sources)
    for source in sources:
        try:
            hashed = None if source.name == "-" else digest(Path(source.name))
        except OSError as error:
            raise AlbertkitError(
                f"{source.name} cannot be read: {error.strerror}; check that it is a file you may read"
            ) from None
        inputs.append({"name": source.name, "bytes": source.size if hashed else None, "sha256": hashed})
        done += source.size
        progress("inputs", done, total, 0)
    chosen = {k: v for k, v in dataclasses.asdict(settings).items() if k not in ("skip_bad", "max_unknown")}
    return {
        "tokenizer": hashlib.sha256(to_json(tokenizer.vocabulary).encode()).hexdigest(),
        "settings": {"rules": RULES, **chosen},
        "inputs": inputs,
    }


def same(wanted: dict[str, Any], found: dict[str, Any], folder: Path) -> None:
    """Refuse to go on with, or to take for finished, a corpus that was made otherwise."""
    settings, inputs = found.get("settings") or {}, found.get("inputs") or []
    other = [
        f"{name} ({settings.get(name)!r} there, {value!r} now)"
        for name, value in wanted["settings"].items()
        if settings.get(name) != value
    ]
    if [row["sha256"] for row in wanted["inputs"]] != [row["sha256"] for row in inputs]:
        other.append(f"the inputs ({len(inputs)} there, {len(wanted['inputs'])} now, or other contents)")
    if any(row["name"] == "-" for row in wanted["inputs"]):
        other.append("stdin, which may hold anything")
    if wanted["tokenizer"] != found["tokenizer"]:
        other.append("the tokenizer")
    if other:
        raise AlbertkitError(
            f"{folder} holds a corpus that was made otherwise: {'; '.join(other)}. Use --force to replace it, or another "
            "folder"
        )


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise AlbertkitError(f"{folder} is a file; name a folder for the corpus")
    if not folder.is_dir() or any((folder / name).is_file() for name in (MANIFEST, JOURNAL)):
        return
    if not all(path.name == TOKENIZER or _OURS.fullmatch(path.name) for path in folder.iterdir()):
        raise AlbertkitError(f"{folder} is not empty and holds no corpus, so it is left alone; choose another folder")


def discard(folder: Path) -> None:
    """Delete a corpus, finished or not, and nothing else; first what makes it count as one."""
    if not folder.is_dir():
        return
    if in_use(folder):
        raise AlbertkitError(f"another albertkit is writing to {folder}: wait for it, or choose another folder")
    (folder / MANIFEST).unlink(missing_ok=True)
    remove(folder)
    sweep(folder)
    shutil.rmtree(folder / TOKENIZER, ignore_errors=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def sweep(folder: Path) -> None:
    """Delete arrays that an earlier run left."""
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink()


def check_shards(folder: Path, entries: dict[str, list[dict[str, Any]]]) -> None:
    """Refuse to go on when finished shards are not as they were written."""
    for entry in (entry for split in entries.values() for entry in split):
        for name, wanted in entry["files"].items():
            if not (folder / name).is_file() or digest(folder / name) != wanted:
                raise AlbertkitError(
                    f"{folder / name} is missing or has changed since it was written: use --force to begin anew"
                )


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Put a copy of the tokenizer beside the shards, and on the disk."""
    tokenizer.save(folder / TOKENIZER)
    for path in sorted((folder / TOKENIZER).iterdir()):
        flush(path)
    flush(folder / TOKENIZER)
