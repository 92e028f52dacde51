"""A model that reads features beside words, run without torch.

In: an artifact whose weights hold a `Fusion` (`model/fusion.py`) as a head, token ids, features as numpy. Out: hidden states, or a head's
scores. The embedding graph is the engine's own; its word table is an input here, in which each token's vector has its row. Left out: batching by a budget, since
features come from elsewhere; give texts of like length together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto

from albertkit.artifact import read_stored
from albertkit.errors import AlbertkitError
from albertkit.runtime import graph as graphs
from albertkit.runtime.builder import Builder, as_float
from albertkit.runtime.engine import Engine, open_graph


class Given(Builder):
    """A builder whose word table is an input of the graph."""

    def weight(self, name: str, array: np.ndarray) -> str:
        """An array beside the graph, but for the word table."""
        if name == "word":
            return self.input("vectors", TensorProto.FLOAT, ["rows", array.shape[1]])
        return super().weight(name, array)


class Fused:
    """A model with features, ready to run. `fusion` is the name its `Fusion` has among the heads."""

    def __init__(
        self, model: str | Path, fusion: str = "fusion", where: str = "start", threads: int | None = None
    ) -> None:
        stored = read_stored(model)
        self.config, self.meta, self.tokenizer, self.where = stored.config, stored.meta, stored.tokenizer, where
        weights, start = stored.weights, f"heads.{fusion}.kinds."
        self.heads = {name: as_float(array) for name, array in weights.items() if name.startswith("heads.")}
        self.kinds = sorted({name[len(start) :].rpartition(".")[0] for name in self.heads if name.startswith(start)})
        if not self.kinds or where not in ("start", "end"):
            raise AlbertkitError(f"{model} has no fusion {fusion!r}, or where is {where!r}: train one (docs/fusion.md)")
        self.prefix, self.table = start, as_float(weights["encoder.embeddings.word.weight"])
        b = Given()
        ids, segments = (b.input(name, TensorProto.INT64, ["texts", "length"]) for name in ("ids", "segments"))
        out = graphs.embedding(b, self.config, {**weights, "encoder.embeddings.word.weight": self.table}, ids, segments)
        self._embedding = open_graph(b.graph(out, ["texts", "length", self.config.hidden_size]), 1)
        self.engine = Engine(self.config, weights, threads)

    def run(
        self,
        ids: Sequence[Sequence[int]],
        features: Mapping[str, np.ndarray],
        segments: Mapping[str, int] | None = None,
        depth: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states (texts, length, H) and lengths (texts,) of texts with features (texts, k, D) of each kind, kinds in the order given."""
        made, kinds = [], []
        for kind, values in features.items():
            if kind not in self.kinds or np.ndim(values) != 3 or len(values) != len(ids):
                raise AlbertkitError(
                    f"features {kind!r} must be of {', '.join(self.kinds)}, with shape ({len(ids)}, k, D)"
                )
            weight, bias = (self.heads[f"{self.prefix}{kind}.{part}"] for part in ("weight", "bias"))
            made.append(np.asarray(values, np.float32) @ weight.T + bias)
            kinds += [(segments or {}).get(kind, 0)] * values.shape[1]
        extra = np.concatenate(made, 1)  # (texts, k, E)
        lengths = np.array([len(row) + extra.shape[1] for row in ids], np.int32)
        vectors = np.zeros((len(ids), int(lengths.max()), self.table.shape[1]), np.float32)
        kind_of = np.zeros(vectors.shape[:2], np.int64)
        for i, row in enumerate(ids):
            at = 1 if self.where == "start" else len(row)
            own = self.table[np.asarray(row)]
            vectors[i, : lengths[i]] = np.concatenate([own[:at], extra[i], own[at:]])
            kind_of[i, at : at + extra.shape[1]] = kinds
        places = np.arange(kind_of.size).reshape(kind_of.shape)
        flat = vectors.reshape(-1, vectors.shape[2])
        (hidden,) = self._embedding.run(None, {"vectors": flat, "ids": places, "segments": kind_of})
        layers = self.meta.depth or self.config.num_hidden_layers
        return self.engine.layers(hidden, lengths, 0, layers if depth is None else depth), lengths

    def classify(self, ids: Sequence[Sequence[int]], features: Mapping[str, np.ndarray], **more: object) -> np.ndarray:
        """Scores of the head `classify` (texts, classes)."""
        hidden, _ = self.run(ids, features, **more)  # type: ignore[arg-type]
        weight, bias = (self.heads[f"heads.classify.linear.{part}"] for part in ("weight", "bias"))
        scores: np.ndarray = self.engine.pooler(hidden[:, 0]) @ weight.T + bias
        return scores
