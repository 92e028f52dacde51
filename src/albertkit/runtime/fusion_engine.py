"""A model that reads features beside words, run without torch.

In: an artifact whose weights hold a `Fusion` (`model/fusion.py`) as a head, token ids, features as numpy. Out: hidden states, or a head's
scores. The embedding graph is the engine's own; its word table is an input here, in which each token's vector has its row. Left out: batching by a token_budget, since
features come from elsewhere; give texts of like length together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto

from albertkit.artifact import read_stored
from albertkit.errors import AlbertkitError, nearest
from albertkit.runtime import graph as graphs
from albertkit.runtime.engine import Engine, open_graph
from albertkit.runtime.graph_builder import Builder, as_float


class Given(Builder):
    """A builder whose word table is an input of the graph."""

    def weight(self, name: str, array: np.ndarray) -> str:
        """An array beside the graph, but for the word table."""
        if name == "word":
            return self.input("vectors", TensorProto.FLOAT, ["rows", array.shape[1]])
        return super().weight(name, array)


class Fused:
    """A model with features, ready to run. `fusion` is the name its `Fusion` has among the heads."""

    def __init__(self, model: str | Path, fusion: str = "fusion", threads: int | None = None) -> None:
        stored = read_stored(model)
        self.config, self.meta, self.tokenizer = stored.config, stored.meta, stored.tokenizer
        weights, start = stored.weights, f"heads.{fusion}."
        self.heads = {name: as_float(array) for name, array in weights.items() if name.startswith("heads.")}
        found = [
            name[len(start) :].split(".") for name in self.heads if name.startswith((f"{start}start.", f"{start}end."))
        ]
        if not found:
            raise AlbertkitError(f"{model} has no fusion {fusion!r}; train one (docs/fusion.md)")
        self.where, self.kinds = found[0][0], sorted({".".join(parts[1:-1]) for parts in found})
        self.prefix, self.table = f"{start}{self.where}.", as_float(weights["encoder.embeddings.word.weight"])
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
            segment = (segments or {}).get(kind, 0)
            made.append(self._projected(kind, np.asarray(values, np.float32), len(ids), segment))
            kinds += [segment] * made[-1].shape[1]
        if not made:
            raise AlbertkitError(f"there are no features; give some of {', '.join(self.kinds)}")
        extra = np.concatenate(made, 1)  # (texts, k, E)
        lengths = np.array([len(row) + extra.shape[1] for row in ids], np.int32)
        self._check(ids, lengths)
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
        return self.engine.apply_layers(hidden, lengths, 0, layers if depth is None else depth), lengths

    def _projected(self, kind: str, values: np.ndarray, texts: int, segment: int) -> np.ndarray:
        """Features of one kind at size E, (texts, k, E)."""
        if kind not in self.kinds:
            raise AlbertkitError(f"unknown kind {kind!r}{nearest(kind, self.kinds)}; there is {', '.join(self.kinds)}")
        weight, bias = (self.heads[f"{self.prefix}{kind}.{part}"] for part in ("weight", "bias"))
        if values.ndim != 3 or len(values) != texts or values.shape[1] < 1 or values.shape[2] != weight.shape[1]:
            raise AlbertkitError(
                f"the features {kind!r} have shape {values.shape}; for {texts} texts it must be ({texts}, k, {weight.shape[1]})"
            )
        if not 0 <= segment < self.config.type_vocab_size:
            raise AlbertkitError(f"segment is {segment}; this model has 0 to {self.config.type_vocab_size - 1}")
        made: np.ndarray = values @ weight.T + bias
        return made

    def _check(self, ids: Sequence[Sequence[int]], lengths: np.ndarray) -> None:
        if min(map(len, ids), default=0) < 1:
            raise AlbertkitError("a text without tokens was given; each needs one at least")
        if int(lengths.max()) > self.config.max_position_embeddings:
            raise AlbertkitError(
                f"with its extra tokens a text has {int(lengths.max())}; this model reads {self.config.max_position_embeddings}, so cut it"
            )
        if min(map(min, ids)) < 0 or max(map(max, ids)) >= len(self.table):
            raise AlbertkitError(f"a token is not among 0 to {len(self.table) - 1}; use this model's tokenizer")

    def classify(self, ids: Sequence[Sequence[int]], features: Mapping[str, np.ndarray], **more: object) -> np.ndarray:
        """Scores of the head `classify` (texts, classes)."""
        hidden, lengths = self.run(ids, features, **more)  # type: ignore[arg-type]
        if "heads.classify.linear.weight" not in self.heads:
            raise AlbertkitError("this model has no 'classify' head; read hidden states with `run`")
        weight, bias = (self.heads[f"heads.classify.linear.{part}"] for part in ("weight", "bias"))
        if self.config.options.classifier == "mean":
            inside = np.arange(hidden.shape[1])[None, :, None] < lengths[:, None, None]
            read = np.where(inside, hidden, 0).sum(axis=1) / lengths[:, None]
        else:
            read = self.engine.pooler(hidden[:, 0])
        scores: np.ndarray = read @ weight.T + bias
        return scores
