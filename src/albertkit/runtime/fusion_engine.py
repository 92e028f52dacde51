"""`FusionModel`: a model that reads features (of images, of other models) beside tokens, run without torch.

In: an artifact with a `Fusion` head (`model/fusion.py`), token ids, features as numpy arrays. Out: hidden states, or a
head's scores. Before this file: `engine.py`. Not included: batching, since features come from elsewhere; pass texts of
similar length together.
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

PREFIX = "heads.fusion."


class FusionModel:
    """A model with features, ready to run. position: where they stand, at the start or end. kinds: their names."""

    def __init__(self, model: str | Path, threads: int | None = None) -> None:
        stored = read_stored(model)
        self.config, self.metadata, self.tokenizer = stored.config, stored.metadata, stored.tokenizer
        weights = stored.weights
        self.heads = {name: as_float(array) for name, array in weights.items() if name.startswith("heads.")}
        names = [name.removeprefix(PREFIX).split(".") for name in self.heads if name.startswith(PREFIX)]
        if not names:
            raise AlbertkitError(f"{model} has no fusion; train one (docs/fusion.md)")
        self.position, self.kinds = names[0][0], sorted({".".join(parts[1:-1]) for parts in names})
        self.table = as_float(weights["encoder.embeddings.word.weight"])
        b = Builder()
        words = b.input("words", TensorProto.FLOAT, ["texts", "length", self.table.shape[1]])
        segments = b.input("segments", TensorProto.INT64, ["texts", "length"])
        out = graphs.embedding(b, self.config, weights, segments, segments, words)
        self._embedding = open_graph(b.graph(out, ["texts", "length", self.config.hidden_size]), 1)
        self.engine = Engine(self.config, weights, threads)

    def run(
        self,
        ids: Sequence[Sequence[int]],
        features: Mapping[str, np.ndarray],
        segments: Mapping[str, int] | None = None,
        depth: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states (texts, length, H) and lengths (texts,) of texts with features (texts, k, D) of each kind, in
        the order of the kinds. segments: the segment of each kind; default 0.
        """
        projections, feature_segments = [], list[int]()
        for kind, values in features.items():
            segment = (segments or {}).get(kind, 0)
            projections.append(self._project(kind, np.asarray(values, np.float32), len(ids), segment))
            feature_segments += [segment] * projections[-1].shape[1]
        if not projections:
            raise AlbertkitError(f"there are no features; give some of {', '.join(self.kinds)}")
        extra = np.concatenate(projections, 1)  # (texts, k, E)
        lengths = np.array([len(row) + extra.shape[1] for row in ids], np.int32)
        self._check(ids, int(lengths.max()))
        words = np.zeros((len(ids), int(lengths.max()), self.table.shape[1]), np.float32)
        segment_ids = np.zeros(words.shape[:2], np.int64)
        for i, row in enumerate(ids):
            at = 1 if self.position == "start" else len(row)
            own = self.table[np.asarray(row)]
            words[i, : lengths[i]] = np.concatenate([own[:at], extra[i], own[at:]])
            segment_ids[i, at : at + extra.shape[1]] = feature_segments
        (hidden,) = self._embedding.run(None, {"words": words, "segments": segment_ids})
        layers = self.metadata.depth or self.config.num_hidden_layers
        return self.engine.apply_layers(hidden, lengths, 0, layers if depth is None else depth), lengths

    def _project(self, kind: str, values: np.ndarray, texts: int, segment: int) -> np.ndarray:
        """Features of one kind at size E, (texts, k, E)."""
        if kind not in self.kinds:
            raise AlbertkitError(f"unknown kind {kind!r}{nearest(kind, self.kinds)}; there is {', '.join(self.kinds)}")
        weight, bias = (self.heads[f"{PREFIX}{self.position}.{kind}.{part}"] for part in ("weight", "bias"))
        if values.ndim != 3 or len(values) != texts or values.shape[1] < 1 or values.shape[2] != weight.shape[1]:
            raise AlbertkitError(
                f"the features {kind!r} have shape {values.shape}; "
                f"for {texts} texts it must be ({texts}, k, {weight.shape[1]})"
            )
        if not 0 <= segment < self.config.type_vocab_size:
            raise AlbertkitError(f"segment is {segment}; this model has 0 to {self.config.type_vocab_size - 1}")
        projected: np.ndarray = values @ weight.T + bias
        return projected

    def _check(self, ids: Sequence[Sequence[int]], longest: int) -> None:
        if min(map(len, ids), default=0) < 1:
            raise AlbertkitError("one text has no tokens; each needs at least one")
        most = self.config.max_position_embeddings
        if longest > most:
            raise AlbertkitError(f"with its features a text has {longest} tokens; this model reads {most}. Shorten it")
        if min(map(min, ids)) < 0 or max(map(max, ids)) >= len(self.table):
            raise AlbertkitError(f"a token is not among 0 to {len(self.table) - 1}; use this model's tokenizer")

    def classify(
        self,
        ids: Sequence[Sequence[int]],
        features: Mapping[str, np.ndarray],
        segments: Mapping[str, int] | None = None,
        depth: int | None = None,
    ) -> np.ndarray:
        """Scores of the head `classify` (texts, classes)."""
        hidden, lengths = self.run(ids, features, segments, depth)
        if "heads.classify.linear.weight" not in self.heads:
            raise AlbertkitError("this model has no 'classify' head; read hidden states with `run`")
        weight, bias = (self.heads[f"heads.classify.linear.{part}"] for part in ("weight", "bias"))
        if self.config.options.classifier == "mean":
            inside = np.arange(hidden.shape[1])[None, :, None] < lengths[:, None, None]
            pooled = np.where(inside, hidden, 0).sum(axis=1) / lengths[:, None]
        else:
            pooled = self.engine.pooler(hidden[:, 0])
        scores: np.ndarray = pooled @ weight.T + bias
        return scores
