"""The engine of a static model: a table with one vector for each piece, and their mean. No onnxruntime, no layers.

In: config, weights and token ids. Out: the same as `engine.py` gives, so that everything above works as with any model: "hidden
states" are rows of the table. Special tokens have rows of zeros. `compress/static_model.py` makes such models.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.batching import TokenBatch
from albertkit.runtime.graph_builder import as_float

TOKENS = 1024  # rows of the table that are read at once: few enough to stay in the cache


class StaticEngine:
    """A table ready to be read."""

    def __init__(self, config: AlbertConfig, weights: dict[str, np.ndarray | QuantizedMatrix]) -> None:
        self.config, self.threads = config, 1
        self.weights = weights
        self.table = weights["encoder.embeddings.word.weight"]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The vectors of ids of any shape."""
        if isinstance(self.table, QuantizedMatrix):
            found: np.ndarray = self.table.values[ids] * self.table.scale[ids][..., None]
            return found
        return as_float(self.table)[ids]

    def run(self, rows: TokenBatch, depth: int) -> np.ndarray:
        """The vectors of a batch (texts, length, H); `depth` means nothing here."""
        return self.rows(rows.ids)

    def means(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """The mean of each text's vectors (texts, H), with no padding; no text is empty."""
        out = np.empty((len(texts), self.config.hidden_size), np.float32)
        start = 0
        while start < len(texts):
            end, held = start, 0
            while end < len(texts) and (end == start or held + len(texts[end]) <= TOKENS):
                held += len(texts[end])
                end += 1
            lengths = np.array([len(text) for text in texts[start:end]])
            ids = np.fromiter(chain.from_iterable(texts[start:end]), np.int64, held)
            firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            out[start:end] = np.add.reduceat(self.rows(ids), firsts, axis=0) / lengths[:, None]
            start = end
        return out

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """There is none."""
        raise AlbertkitError("a static model has no pooler; its vector of a text is the mean of its pieces' vectors")

    def words(self, hidden: np.ndarray) -> np.ndarray:
        """There are none."""
        raise AlbertkitError("a static model cannot fill masks; use the model it was made from")
