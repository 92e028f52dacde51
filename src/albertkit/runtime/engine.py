"""Engines: token ids to hidden states. `Engine` applies the shared layer in compiled code or through onnxruntime;
`StaticEngine` looks up token vectors. `torch_engine.py` has the engine for a GPU.

In: config, weights and a `TokenBatch` (`batching.py`). Out: hidden states as numpy arrays. Before this file:
`graph.py` builds the graphs. After it: `runtime_model.py` opens the engine of a model.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.cpu_cores import cores
from albertkit.errors import AlbertkitError
from albertkit.onnx_session import open_session
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch
from albertkit.runtime.graph_builder import MAX_LEVEL, Graph, as_float
from albertkit.runtime.native_embedding import NativeEmbedding, can_embed
from albertkit.runtime.native_layers import NativeLayers, can_run, processor_flags
from albertkit.runtime.torch_engine import NO_MLM_HEAD, NO_POOLER, TorchEngine, check_precision

if TYPE_CHECKING:
    import onnxruntime

TABLE_ROWS = 1024  # rows of a static model read at once; they fit into the cache


class OnnxEmbedding:
    """The embedding of a model in onnxruntime."""

    def __init__(self, config: AlbertConfig, weights: graphs.Weights, threads: int, max_level: int) -> None:
        few = threads if config.options.gru else 1  # a lookup and a small product are faster with one thread
        self._session = open_graph(graphs.embedding_graph(config, weights, max_level), few)

    def embed(self, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """Hidden states (texts, length, H) of `ids` and `segments` (texts, length)."""
        (hidden,) = self._session.run(None, {"ids": ids, "segments": segments})
        return np.asarray(hidden)


class OnnxLayers:
    """The layers of a model in onnxruntime.

    Depth is the number of calls of the layer. Hidden states are numpy arrays between calls: copying them costs less
    than onnxruntime's own values (40 µs per call).
    """

    def __init__(
        self, config: AlbertConfig, weights: graphs.Weights, prefixes: Sequence[str], threads: int, max_level: int
    ) -> None:
        self.config = config
        self._session = open_graph(graphs.layer_graph(config, weights, prefixes, max_level), threads)

    def apply(self, hidden: np.ndarray, lengths: np.ndarray, layers: range, depth: int) -> np.ndarray:
        """Hidden states (texts, length, H) after some of `depth` layers."""
        for layer in layers:
            for inner in range(self.config.inner_group_num):
                feed = graphs.layer_feed(self.config, layer, hidden, lengths)
                (hidden,) = self._session.run(None, feed | graphs.weight_choice(self.config, layer, inner, depth))
        return hidden


class Engine:
    """A model on the CPU. It removes the layers from `weights`, so that they are not in memory twice.

    max_level: the highest level of an 8-bit activation. Passing it selects onnxruntime.
    """

    def __init__(
        self,
        config: AlbertConfig,
        weights: graphs.Weights,
        threads: int | None = None,
        max_level: int | None = None,
    ) -> None:
        threads = cores() if threads is None else threads
        if not isinstance(threads, int) or not 1 <= threads <= 1024:
            raise AlbertkitError(f"threads={threads} is out of range. Pass 1 to 1024.")
        self.config, self.threads = config, threads
        is_native = max_level is None and can_run(config, weights)
        self.max_level = machine_max_level() if max_level is None else max_level
        self._embedding: NativeEmbedding | OnnxEmbedding = (
            NativeEmbedding(config, weights)
            if is_native and can_embed(config)
            else OnnxEmbedding(config, weights, threads, self.max_level)
        )
        prefixes = [
            f"encoder.groups.{g}.{i}" for g in range(config.layer_groups) for i in range(config.inner_group_num)
        ]
        self._layers: NativeLayers | OnnxLayers = (
            NativeLayers(config, weights, prefixes, threads)
            if is_native
            else OnnxLayers(config, weights, prefixes, threads, self.max_level)
        )
        for name in [name for name in weights if name.startswith("encoder.groups.")]:
            del weights[name]
        self.weights = weights  # the remaining weights, for the heads

    def run(self, batch: TokenBatch, depth: int) -> np.ndarray:
        """The result (texts, length, H) at a depth; depth 0 gives the embeddings. Values beyond a text's length are
        undefined.
        """
        hidden = self._embedding.embed(batch.ids, batch.segments)
        return self.read_out(self.apply_layers(hidden, batch.lengths, 0, depth), batch.lengths, depth)

    def apply_layers(self, hidden: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
        """Hidden states (texts, length, H) at depth `last`, from those at depth `first`, for `read_out`."""
        layers = range(self.config.coda_start(first), self.config.coda_start(last))
        return self._layers.apply(hidden, lengths, layers, last)

    def read_out(self, hidden: np.ndarray, lengths: np.ndarray, depth: int) -> np.ndarray:
        """The result at a depth, from the hidden states of `apply_layers`: coda and output norm, with these options."""
        hidden = self._layers.apply(hidden, lengths, range(self.config.coda_start(depth), depth), depth)
        return self.normalize(hidden) if depth else hidden

    def normalize(self, hidden: np.ndarray) -> np.ndarray:
        """The output norm over the last axis; without the option `pre_norm`, the same hidden states."""
        if not self.config.options.pre_norm:
            return hidden
        (out,) = self._output_norm.run(None, {"x": hidden.reshape(-1, hidden.shape[-1])})
        return np.asarray(out).reshape(hidden.shape)

    @cached_property
    def _output_norm(self) -> onnxruntime.InferenceSession:
        return open_graph(graphs.norm_graph(self.config, self.weights), 1)

    @cached_property
    def _pooler(self) -> onnxruntime.InferenceSession:
        if "encoder.pooler.weight" not in self.weights:
            raise AlbertkitError(NO_POOLER)
        return open_graph(graphs.dense_graph(self.weights, "encoder.pooler", tanh=True), 1)

    @cached_property
    def _mlm_head(self) -> onnxruntime.InferenceSession:
        if "heads.mlm.bias" not in self.weights:
            raise AlbertkitError(NO_MLM_HEAD)
        return open_graph(graphs.mlm_graph(self.config, self.weights, self.max_level), self.threads)

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """tanh of a dense layer over first tokens (n, H)."""
        (out,) = self._pooler.run(None, {"x": np.ascontiguousarray(first)})
        return np.asarray(out)

    def mlm_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Scores over the vocabulary (n, V) for hidden states (n, H)."""
        (out,) = self._mlm_head.run(None, {"x": np.ascontiguousarray(hidden)})
        return np.asarray(out)


class StaticEngine:
    """A static model (`compress/static_model.py`): one vector per token, without onnxruntime and layers. Its hidden
    states are these vectors; special tokens have zeros.
    """

    def __init__(self, config: AlbertConfig, weights: graphs.Weights) -> None:
        self.config, self.threads = config, 1
        self.weights = weights
        self.table = weights["encoder.embeddings.word.weight"]

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """The vectors of ids of any shape."""
        if isinstance(self.table, QuantizedMatrix):
            return np.asarray(self.table.values[ids] * self.table.scale[ids][..., None])
        return as_float(self.table)[ids]

    def run(self, batch: TokenBatch, depth: int) -> np.ndarray:
        """The vectors of a batch (texts, length, H), at any depth."""
        return self.rows(batch.ids)

    def apply_layers(self, hidden: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
        """The same hidden states: there are no layers."""
        return hidden

    def read_out(self, hidden: np.ndarray, lengths: np.ndarray, depth: int) -> np.ndarray:
        """The same hidden states."""
        return hidden

    def means(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """The mean of each text's vectors (texts, H), with no padding; no text is empty."""
        out = np.empty((len(texts), self.config.hidden_size), np.float32)
        start = 0
        while start < len(texts):
            end, tokens = start, 0
            while end < len(texts) and (end == start or tokens + len(texts[end]) <= TABLE_ROWS):
                tokens += len(texts[end])
                end += 1
            lengths = np.array([len(text) for text in texts[start:end]])
            ids = np.fromiter(chain.from_iterable(texts[start:end]), np.int64, tokens)
            firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            out[start:end] = np.add.reduceat(self.rows(ids), firsts, axis=0) / lengths[:, None]
            start = end
        return out

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """Raises: a static model has no pooler."""
        raise AlbertkitError("a static model has no pooler. Choose the pooling mean.")

    def mlm_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Raises: a static model has no masked-language-model head."""
        raise AlbertkitError("a static model cannot fill masks. Use its source model.")


InferenceEngine = Engine | TorchEngine | StaticEngine


def open_engine(
    config: AlbertConfig,
    weights: graphs.Weights,
    threads: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
) -> InferenceEngine:
    """The engine for a model: compiled code or onnxruntime on the CPU, torch on a GPU, a table for a static model."""
    check_precision(device, precision)
    if config.options.static:
        if device != "cpu":
            raise AlbertkitError(f"device={device!r} is not available: a static model runs on the CPU. Omit device.")
        return StaticEngine(config, weights)
    if device == "cpu":
        return Engine(config, weights, threads)
    return TorchEngine(config, weights, device, precision)


# The machine -----------------------------------------------------------------------------------------------------


def machine_max_level() -> int:
    """The highest level of an 8-bit activation. Older x86 processors sum pairs of 8-bit products in 16 bits, which
    overflows, so activations have 7 bits there.
    """
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return MAX_LEVEL
    return MAX_LEVEL if processor_flags() & {"avx512_vnni", "avx_vnni"} else 127


def open_graph(graph: Graph, threads: int) -> onnxruntime.InferenceSession:
    """An onnxruntime session of a graph. The weights are not copied."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # the graphs already use fused operators
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = list(graph.weights)
    options.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(graph.weights[n]) for n in names])
    return open_session(graph.model, options)
