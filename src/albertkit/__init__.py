"""albertkit: the ALBERT toolkit. `__init__.pyi` lists the public API; each name is imported when it is first used."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_LIST = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_MODULES = {name.name: str(line.module) for line in _LIST if isinstance(line, ast.ImportFrom) for name in line.names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'albertkit' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "serve":
        return importlib.import_module("albertkit.serve")  # the package can be called
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
