"""`Explanation`: everything that was found about one text, as arrays, and as JSON, a page or a picture.

In: what `explainer.py` computed. Out: a frozen value. After this file: `page.py` and `picture.py`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.explain.attention_maps import AttentionMap
from albertkit.explain.attribution import Attribution
from albertkit.explain.explained_input import ExplainedWord
from albertkit.explain.layer_predictions import LayerPrediction


@dataclass(frozen=True)
class Explanation:
    """One text, looked into."""

    model: str
    """Hash and settings of the model."""
    kind: str
    """fill, classify, tag, intent, answer, choose, similar or embed."""
    parts: dict[str, str]
    """The texts by name, which words point into."""
    prediction: Any
    """What the runtime says at this depth."""
    target: str
    """What about it is explained."""
    unit: str
    """log-odds, cosine or value."""
    value: float
    chance: float
    """The value as a probability; values and cosines stay what they are."""
    words: tuple[ExplainedWord, ...]
    attributions: tuple[Attribution, ...]
    """The words' values, by each method that was asked for."""
    maps: tuple[AttentionMap, ...]
    """Attention of each row of tokens."""
    layers: tuple[LayerPrediction, ...]
    stable_depth: int | None
    """The first depth from which on the prediction stays what it is at the last; None for the vector of one text."""
    early_exit: dict[str, Any] | None
    """Where the text could leave early: see `layers.early_exit_of`; None for masks and pairs of vectors."""

    def attribution(self, method: str) -> np.ndarray:
        """(words,) the values by one method."""
        return next(one.values for one in self.attributions if one.method == method)

    @property
    def uncertainty(self) -> dict[int, float]:
        """How doubtful the text is at each depth at which it could leave early, and at the last one; empty where it cannot."""
        if self.early_exit is None:
            return {}
        pairs = zip(
            (*self.early_exit["exit_depths"], self.layers[-1].depth), self.early_exit["uncertainty"], strict=True
        )
        return {depth: doubt for depth, doubt in pairs if doubt is not None}

    def to_dict(self, attention: bool = False) -> dict[str, Any]:
        """As plain values for JSON; attention by layer and head only if asked for, since it is large."""
        words = []
        for number, word in enumerate(self.words):
            values = {one.method: round(float(one.values[number]), 6) for one in self.attributions}
            words.append({**dataclasses.asdict(word), "values": values})
        maps = []
        for one in self.maps:
            told: dict[str, Any] = {"tokens": list(one.tokens), "rollout": one.rollout.round(5).tolist()}
            maps.append({**told, "attention": one.attention.round(5).tolist()} if attention else told)
        return {
            "model": self.model,
            "kind": self.kind,
            "parts": self.parts,
            "prediction": plain(self.prediction),
            "target": self.target,
            "unit": self.unit,
            "value": self.value,
            "chance": self.chance,
            "words": words,
            "sums": {one.method: {"full": one.full, "empty": one.empty} for one in self.attributions},
            "maps": maps,
            "layers": [plain(layer) for layer in self.layers],
            "settled": self.stable_depth,
            "early_exit": self.early_exit,
        }

    def to_html(self, path: Path | str, overwrite: bool = False) -> Path:
        """Write one page that needs nothing else."""
        from albertkit.explain.html_page import page, write

        return write(Path(path), page(self).encode("utf-8"), overwrite)

    def to_png(self, path: Path | str, overwrite: bool = False, attention: bool = False) -> Path:
        """Write a picture, if asked for with the attention of every head; needs matplotlib."""
        from albertkit.explain.html_page import write
        from albertkit.explain.picture import picture

        return write(Path(path), picture(self, attention), overwrite)


def plain(value: Any) -> Any:
    """Dataclasses, tuples and arrays as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
