"""The embedding of a model in compiled code (`native/embedding.h`), so that a vector needs no onnxruntime.

In: a config and weights. Out: `NativeEmbedding`, if `can_embed` says that this model allows it; else `engine.py` uses
onnxruntime. Both compute the same, except for rounding. Before this file: `native_layers.py` opens the library.
"""

from __future__ import annotations

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.graph import Weights
from albertkit.runtime.graph_builder import as_float
from albertkit.runtime.native_layers import address, check_memory, library

PREFIX = "encoder.embeddings"


def can_embed(config: AlbertConfig) -> bool:
    """Whether a model that `native_layers.can_run` accepts has the embedding of ALBERT: norm at E, then projection."""
    return not config.options.brightmart_layout and not config.options.gru


class NativeEmbedding:
    """Token ids to the hidden states before the first layer. The word table is that of `weights`, not a copy."""

    def __init__(self, config: AlbertConfig, weights: Weights) -> None:
        loaded = library()
        assert loaded is not None, "`can_run` was False"
        self._library, self.config = loaded, config
        self._words = weights[f"{PREFIX}.word.weight"]
        self._positions = as_float(weights[f"{PREFIX}.position.weight"])
        self._segments = as_float(weights[f"{PREFIX}.segment.weight"])
        projection = self._floats(weights, "projection.weight", config.hidden_size, config.embedding_size)
        bias = self._floats(weights, "projection.bias", config.hidden_size)
        kinds = ("weight", "bias")
        norm = np.stack([self._floats(weights, f"norm.{kind}", config.embedding_size) for kind in kinds])
        self._model = loaded.albertkit_new_embedding(
            *projection.shape, address(projection), address(bias), address(norm), config.layer_norm_eps
        )
        if not self._model:
            raise MemoryError("the embedding does not fit into memory")

    @staticmethod
    def _floats(weights: Weights, name: str, *shape: int) -> np.ndarray:
        """A weight as floats of the shape that the library expects."""
        array = np.ascontiguousarray(as_float(weights[f"{PREFIX}.{name}"]), np.float32)
        if array.shape != shape:
            raise ValueError(f"{PREFIX}.{name} is {array.shape}, but the config has {shape}")
        return array

    def embed(self, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """Hidden states (texts, length, H) of `ids` and `segments` (texts, length)."""
        sums = self._word_vectors(ids)  # (texts, length, E)
        if self.config.options.scale_embedding:
            sums *= np.float32(self.config.embedding_size**0.5)
        sums += self._segments[segments]
        sums += self._positions[: ids.shape[1]]
        hidden = np.empty((*ids.shape, self.config.hidden_size), np.float32)
        check_memory(self._library.albertkit_embed(self._model, address(sums), ids.size, address(hidden)))
        return hidden

    def _word_vectors(self, ids: np.ndarray) -> np.ndarray:
        """A new array with the rows of the word table."""
        if isinstance(self._words, QuantizedMatrix):
            return np.asarray(self._words.values[ids] * self._words.scale[ids][..., None], np.float32, "C")
        return np.asarray(self._words[ids], np.float32, "C")

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.albertkit_free_embedding(self._model)
