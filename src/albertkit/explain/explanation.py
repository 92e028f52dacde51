"""`Explanation`: the result for one text, as arrays, JSON, an HTML page or a picture.

In: what `explainer.py` computed. Out: a frozen dataclass. Next: `html_page.py` and `picture.py`.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.attribution import AttentionMap, Attribution
from albertkit.explain.explain_input import ExplainedWord
from albertkit.explain.layer_predictions import EarlyExitTrace, LayerPrediction


@dataclass(frozen=True)
class Explanation:
    """The explanation of one prediction."""

    model: str
    """Hash and settings of the model."""
    kind: str
    """fill, classify, tag, intent, answer, choose, similar or embed."""
    parts: dict[str, str]
    """The texts by name; words refer to their characters."""
    prediction: Any
    """The task's result at this depth."""
    target: str
    """What is explained."""
    unit: str
    """log-odds, cosine or value."""
    value: float
    probability: float
    """The value as a probability; values and cosines are not converted."""
    words: tuple[ExplainedWord, ...]
    attributions: tuple[Attribution, ...]
    """The values of the words, one entry per method."""
    maps: tuple[AttentionMap, ...]
    """Attention of each row of tokens."""
    layers: tuple[LayerPrediction, ...]
    stable_depth: int | None
    """The first depth from which on the prediction equals that of the last; None for the vector of one text."""
    early_exit: EarlyExitTrace | None
    """Where the text could exit early; None for masks and pairs of vectors."""

    def attribution(self, method: str) -> np.ndarray:
        """(words,) the values by one method."""
        return next(one.values for one in self.attributions if one.method == method)

    @property
    def uncertainty(self) -> dict[int, float]:
        """The uncertainty at each depth where the text could exit early, and at the last; empty if it cannot."""
        if self.early_exit is None:
            return {}
        depths = (*self.early_exit.exit_depths, self.layers[-1].depth)
        pairs = zip(depths, self.early_exit.uncertainty, strict=True)
        return {depth: value for depth, value in pairs if value is not None}

    def to_dict(self, attention: bool = False) -> dict[str, Any]:
        """Plain values for JSON; attention by layer and head only on request, because it is large."""
        words = []
        for number, word in enumerate(self.words):
            values = {one.method: round(float(one.values[number]), 6) for one in self.attributions}
            words.append({**dataclasses.asdict(word), "values": values})
        maps = []
        for one in self.maps:
            data: dict[str, Any] = {"tokens": list(one.tokens), "rollout": one.rollout.round(5).tolist()}
            maps.append({**data, "attention": one.attention.round(5).tolist()} if attention else data)
        replaced = {
            "words": words,
            "sums": {one.method: {"full": one.full, "empty": one.empty} for one in self.attributions},
            "maps": maps,
        }
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("attributions", *replaced)]
        return {name: to_json(getattr(self, name)) for name in names} | replaced

    def to_html(self, path: Path | str, overwrite: bool = False) -> Path:
        """Write one HTML page that needs no other file."""
        from albertkit.explain.html_page import render_page

        return write_file(Path(path), render_page(self).encode("utf-8"), overwrite)

    def to_png(self, path: Path | str, overwrite: bool = False, attention: bool = False) -> Path:
        """Write a picture, optionally with the attention of every head; needs matplotlib."""
        from albertkit.explain.picture import render_png

        return write_file(Path(path), render_png(self, attention), overwrite)


def to_json(value: Any) -> Any:
    """Dataclasses, tuples and arrays as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(one) for one in value]
    if isinstance(value, dict):
        return {name: to_json(one) for name, one in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check_writable(path: Path, overwrite: bool) -> None:
    """An error if a file exists or its folder does not."""
    if path.exists() and not overwrite:
        raise AlbertkitError(f"{path} exists; choose another name or allow overwriting (--force)")
    if not path.parent.is_dir():
        raise AlbertkitError(f"{path} cannot be written: {path.parent} is not a folder; choose an existing folder")


def write_file(path: Path, data: bytes, overwrite: bool) -> Path:
    """Write a whole file or nothing."""
    check_writable(path, overwrite)
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(part).chmod(0o644)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)
    except OSError as error:
        raise AlbertkitError(f"{path} cannot be written: {error.strerror}; choose another folder") from None
    return path
