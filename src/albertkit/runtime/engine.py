"""The engine: onnxruntime applies the one shared layer, as often as asked.

In: config, weights and `TokenBatch`. Out: hidden states as numpy. The layer is opened once and holds each weight once; depth is the
number of times it is called, from 1 to beyond L. Hidden states go from call to call as numpy arrays: copying them out costs less than
onnxruntime's own values cost in Python (40 µs a call).
"""

from __future__ import annotations

import math
import os
import platform
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch
from albertkit.runtime.static_engine import StaticEngine

if TYPE_CHECKING:
    import onnxruntime


def cores() -> int:
    """Processors this process may use: those it may run on, or fewer where a container has a smaller share of them."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(there, share())))


def share(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Processors that the control group allows, such as 1.5; inf where it sets no limit."""
    try:
        if (group / "cpu.max").is_file():
            most, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            most, period = (
                (group / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
        return math.inf if most.strip() == "max" or int(most) <= 0 else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def levels() -> graphs.Levels:
    """8-bit activations where products of 8-bit numbers are summed without overflow; 7-bit ones on older x86 processors."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return graphs.Levels(255)
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return graphs.Levels(127)
    return graphs.Levels(255 if "avx512_vnni" in flags or "avx_vnni" in flags else 127)


def open_graph(graph: graphs.Graph, threads: int, trace: Path | None = None) -> onnxruntime.InferenceSession:
    """A session over a graph; the weights are handed over, not copied into the model. `trace`: where its operators' times go."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # the graphs are fused as they are
    if trace is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(trace)
    names = list(graph.weights)
    options.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(graph.weights[n]) for n in names])
    return ort.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])


def open_engine(config: AlbertConfig, weights: graphs.Weights, threads: int | None = None) -> Engine | StaticEngine:
    """The engine for a model: this one, or a mere table where there are no layers."""
    return StaticEngine(config, weights) if config.options.static else Engine(config, weights, threads)


class Engine:
    """A model ready to run on the CPU. It takes the layers out of `weights`, so that they are not held twice."""

    def __init__(
        self,
        config: AlbertConfig,
        weights: graphs.Weights,
        threads: int | None = None,
        precision: graphs.Levels | None = None,
    ) -> None:
        threads = cores() if threads is None else threads
        if not isinstance(threads, int) or not 1 <= threads <= 1024:
            raise AlbertkitError(f"threads is {threads}; choose 1 to 1024")
        self.config, self.threads = config, threads
        self.levels = levels() if precision is None else precision
        few = threads if config.options.gru else 1  # a lookup and a small product are quicker without threads
        self._embedding = open_graph(graphs.embedding_graph(config, weights, self.levels), few)
        self._layers = [
            [self._open_layer(weights, f"encoder.groups.{g}.{i}") for i in range(config.inner_group_num)]
            for g in range(config.num_hidden_groups)
        ]
        self.weights = weights  # what the heads may still need

    def _open_layer(self, weights: graphs.Weights, prefix: str) -> onnxruntime.InferenceSession:
        graph = graphs.layer_graph(self.config, weights, prefix, self.levels)
        for name in [name for name in weights if name.startswith(f"{prefix}.")]:
            del weights[name]
        return open_graph(graph, self.threads)

    def run(self, rows: TokenBatch, depth: int) -> np.ndarray:
        """Hidden states (texts, length, H) after `depth` layers; depth 0 gives the embeddings. What stands beyond a
        text's length is undefined.
        """
        hidden: np.ndarray
        (hidden,) = self._embedding.run(None, {"ids": rows.ids, "segments": rows.segments})
        return self.layers(hidden, rows.lengths, 0, depth)

    def layers(self, hidden: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
        """Hidden states (texts, length, H) after layer `last`, from those after layer `first`."""
        for layer in range(first, last):
            for inner in self._layers[self.config.group_of(layer)]:
                (hidden,) = inner.run(None, graphs.layer_feed(self.config, layer, hidden, lengths))
        return hidden

    @cached_property
    def _pooler(self) -> onnxruntime.InferenceSession:
        if "encoder.pooler.weight" not in self.weights:
            raise AlbertkitError("this model has no pooler; choose mean, cls or max")
        return open_graph(graphs.dense_graph(self.weights, "encoder.pooler", tanh=True), 1)

    @cached_property
    def _masked_word(self) -> onnxruntime.InferenceSession:
        if "heads.mlm.bias" not in self.weights:
            raise AlbertkitError(
                "this model has no masked-word head, so it cannot fill masks; use a pre-trained checkpoint"
            )
        return open_graph(graphs.masked_word_graph(self.config, self.weights, self.levels), self.threads)

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """tanh of a dense layer over first tokens (n, H)."""
        (out,) = self._pooler.run(None, {"x": np.ascontiguousarray(first)})
        return np.asarray(out)

    def words(self, hidden: np.ndarray) -> np.ndarray:
        """Scores over the vocabulary (n, V) for hidden states (n, H)."""
        (out,) = self._masked_word.run(None, {"x": np.ascontiguousarray(hidden)})
        return np.asarray(out)
