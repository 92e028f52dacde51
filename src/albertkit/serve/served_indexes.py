"""The served indexes: opening, names, and reload while requests run.

In: paths of indexes and the served models. Out: `ServedIndex`, which `search_api.py` searches.

An index keeps the model that embeds its queries. So a request always uses a model and an index that belong together,
also while a reload replaces both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from albertkit.builtin import SHARED_SPACE
from albertkit.errors import AlbertkitError
from albertkit.runtime.runtime_model import named_depth
from albertkit.search.index import Index
from albertkit.search.store_address import is_address
from albertkit.serve.schemas import HttpError
from albertkit.serve.served_models import ServedModel, ServedModels

log = logging.getLogger("albertkit.serve")


@dataclass(frozen=True, eq=False)
class ServedIndex:
    """An open index and its model."""

    name: str
    index: Index
    model: ServedModel
    stamp: tuple[int, int, int] | None


class ServedIndexes:
    """All indexes of a process, by file name without suffix. Requests that run during a reload keep their index."""

    def __init__(self, paths: Iterable[Path], models: ServedModels) -> None:
        self.paths, self.models = {path.stem: path for path in paths}, models
        self._indexes = {name: self._open(name, path) for name, path in self.paths.items()}
        self._reload_lock = threading.Lock()

    def _open(self, name: str, path: Path) -> ServedIndex:
        if is_address(path):
            raise AlbertkitError(
                f"the index {name!r} is in a vector store: the server serves index files, not vector stores. "
                "Name a file."
            )
        stamp = _stamp(path)
        index = Index.open(path, None)
        model = next((model for model in self.models if matches_index(model, index)), None)
        if model is None and index.model.startswith(f"{SHARED_SPACE}+"):
            raise AlbertkitError(
                f"{path} was built with {SHARED_SPACE}, whose two models the server does not combine yet. Search it "
                "with albertkit search, or build an index with one model."
            )
        if model is None:
            names = ", ".join(model.albert.name for model in self.models)
            index.close()
            raise AlbertkitError(
                f"{path} was built with model {index.describe_model()}; serve this model too (served: {names})"
            )
        return ServedIndex(name, index, model, stamp)

    def close(self) -> None:
        for served in self._indexes.values():
            served.index.close()

    def choose(self, name: str | None) -> ServedIndex:
        """The named index, or the first."""
        if not name and not self._indexes:
            raise HttpError(
                422, "the request has no texts and no index is served; send texts or text, or serve with --index"
            )
        name = name or next(iter(self._indexes))
        if name not in self._indexes:
            names = ", ".join(self._indexes) or "none"
            raise HttpError(404, f"index {name!r} is not served; choose one of {names}", param="index")
        return self._indexes[name]

    def reload(self) -> dict[str, str]:
        """Open replaced indexes again: each name → 'same', 'reloaded', or the reason why the old one was kept."""
        with self._reload_lock:
            return {name: self._reload(name, path) for name, path in self.paths.items()}

    def _reload(self, name: str, path: Path) -> str:
        old = self._indexes[name]
        try:
            if _stamp(path) == old.stamp and old.model in list(self.models):
                return "same"
            self._indexes[name] = self._open(name, path)  # the old one is closed after its last request
        except Exception as error:  # whatever is wrong with the new file, the old index stays
            log.error("reload failed", extra={"facts": {"index": name, "reason": str(error)}})
            return f"kept the old one: {error}"
        log.info("reloaded", extra={"facts": {"index": name, "model": self._indexes[name].model.name}})
        return "reloaded"


def matches_index(model: ServedModel, index: Index) -> bool:
    """Whether a model computes the vectors of an index, at the depth of the index."""
    return model.albert.name_at(named_depth(index.model) or 0) == index.model


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is changed or replaced; None if it does not exist."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns, state.st_ino
