"""albertkit: the ALBERT toolkit. These names are the public API; each is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.artifact import Artifact, read_artifact, write_artifact
    from albertkit.compress.cost import shape_cost
    from albertkit.compress.planner import plan
    from albertkit.config import AlbertConfig, preset
    from albertkit.errors import AlbertkitError
    from albertkit.interop.convert import convert, open_model
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.finetune import finetune

_PUBLIC = {
    "Albert": "albert",
    "AlbertConfig": "config",
    "AlbertkitError": "errors",
    "Artifact": "artifact",
    "Tokenizer": "tokenizer",
    "convert": "interop.convert",
    "finetune": "train.finetune",
    "open_model": "interop.convert",
    "plan": "compress.planner",
    "preset": "config",
    "read_artifact": "artifact",
    "shape_cost": "compress.cost",
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
    "shape_cost",
    "write_artifact",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'albertkit' has no attribute {name!r}; it offers {', '.join(_PUBLIC)}")
    return getattr(importlib.import_module(f"albertkit.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*_PUBLIC, "__version__"])
