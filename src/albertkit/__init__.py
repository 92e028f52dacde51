"""albertkit: the ALBERT toolkit. These names are the public door; each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from albertkit.artifact import Artifact, read_artifact, write_artifact
    from albertkit.compress.plan import plan
    from albertkit.config import AlbertConfig, preset
    from albertkit.errors import AlbertkitError
    from albertkit.interop.convert import convert, open_model
    from albertkit.runtime.albert import Albert
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.door import finetune

_DOOR = {
    "Albert": "runtime.albert",
    "AlbertConfig": "config",
    "AlbertkitError": "errors",
    "Artifact": "artifact",
    "Tokenizer": "tokenizer",
    "convert": "interop.convert",
    "finetune": "train.door",
    "open_model": "interop.convert",
    "plan": "compress.plan",
    "preset": "config",
    "read_artifact": "artifact",
    "write_artifact": "artifact",
}

__all__ = [
    "Albert",
    "AlbertConfig",
    "AlbertkitError",
    "Artifact",
    "Tokenizer",
    "convert",
    "finetune",
    "open_model",
    "plan",
    "preset",
    "read_artifact",
    "write_artifact",
]


def __getattr__(name: str) -> Any:
    if name not in _DOOR:
        raise AttributeError(f"module 'albertkit' has no attribute {name!r}; it offers {', '.join(_DOOR)}")
    return getattr(importlib.import_module(f"albertkit.{_DOOR[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_DOOR, "__version__"])
