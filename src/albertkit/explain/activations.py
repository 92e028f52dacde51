"""Hidden states and attention of one text.

In: a stored model and the token ids of one text. Out: `LayerActivations`. The engine's fused operator returns no
attention, so the layer is built in standard operators here (`interop/onnx_operators.py`). Quantized weights are
dequantized to floats. The numbers are close to those of the engine, which also quantizes activations. Use it for single
texts. `explainer.py` uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, check_finite
from albertkit.interop.onnx_operators import PortableBuilder
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime import graph as graphs
from albertkit.runtime.engine import cores, open_graph
from albertkit.runtime.graph_builder import MAX_LEVEL, as_float

if TYPE_CHECKING:
    import onnxruntime

MAX_TOKENS = 256  # the size of attention is tokens² × layers × heads


@dataclass(frozen=True)
class LayerActivations:
    """Hidden states and attention of one text."""

    hidden: np.ndarray  # (layers + 1, tokens, H); the first is the embedding output; before an output norm
    attention: np.ndarray  # (layers, heads, from token, to token); each row sums to 1


class ActivationEncoder:
    """An encoder in floats. If a group has several inner layers, the attention is that of the last one."""

    def __init__(
        self, config: AlbertConfig, weights: Mapping[str, np.ndarray | QuantizedMatrix], depth: int | None = None
    ) -> None:
        if config.options.static:
            raise AlbertkitError("a static model has no layers to explain. Choose an ALBERT model.")
        self.config = config
        self.depth = depth or config.num_hidden_layers
        layers = {name: as_float(w) for name, w in weights.items() if name.startswith("encoder.groups.")}
        self.layer_weights: graphs.Weights = {**layers}
        self._embedding = open_graph(graphs.embedding_graph(config, dict(weights), MAX_LEVEL), cores())
        self._layers: dict[tuple[str, bool], onnxruntime.InferenceSession] = {}

    def run(
        self, ids: Sequence[int], segments: Sequence[int] | None = None, depth: int | None = None
    ) -> LayerActivations:
        """Activations of token ids, special tokens included."""
        depth = self.depth if depth is None else depth
        states = np.empty((depth + 1, len(ids), self.config.hidden_size), np.float32)
        maps = np.empty((depth, self.config.num_attention_heads, len(ids), len(ids)), np.float32)
        for number, (hidden, attention) in enumerate(self.run_layers(ids, segments, depth)):
            states[number] = hidden
            if attention is not None:
                maps[number - 1] = attention
        return LayerActivations(states, maps)

    def run_layers(
        self, ids: Sequence[int], segments: Sequence[int] | None, depth: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """The embedding output (tokens, H) and None, then the output and the attention (heads, tokens, tokens) of each
        layer.
        """
        most = min(MAX_TOKENS, self.config.max_position_embeddings)
        if not 1 <= len(ids) <= most:
            raise AlbertkitError(f"the text has {len(ids)} tokens; an explanation needs 1 to {most}")
        row, kinds = np.asarray(ids, np.int64), np.zeros(len(ids), np.int64)
        kinds = kinds if segments is None else np.asarray(segments, np.int64)
        (hidden,) = self._embedding.run(None, {"ids": row[None], "segments": kinds[None]})
        check_finite("activations", hidden)
        yield hidden[0], None
        for number in range(depth):
            for inner in range(self.config.inner_group_num):
                session = self._layer(f"{self.config.group_of(number)}.{inner}", self.config.options.local(number))
                hidden, attention = session.run(None, {"hidden": hidden})
            check_finite("activations", (hidden, attention))
            yield hidden[0], attention[0]

    def _layer(self, name: str, local: bool) -> onnxruntime.InferenceSession:
        """One layer of one text: `hidden` (1, tokens, H) → the same shape, and attention (1, heads, tokens, tokens)."""
        if (name, local) not in self._layers:
            b, shape = PortableBuilder(), [1, "tokens", self.config.hidden_size]
            hidden, no_mask = b.input("hidden", TensorProto.FLOAT, shape), b.constant(0.0, np.float32)
            prefix = f"encoder.groups.{name}"
            result, _ = graphs.layer(b, self.config, self.layer_weights, prefix, hidden, no_mask, local)
            (attention,) = (node.output[0] for node in b.nodes if node.op_type == "Softmax")
            self._layers[name, local] = open_graph(b.graph(result, shape, [attention]), cores())
        return self._layers[name, local]


@dataclass(frozen=True)
class AttentionMap:
    """The attention in one row of tokens."""

    row: int
    tokens: tuple[str, ...]
    attention: np.ndarray  # (layers, heads, from token, to token); each row sums to 1
    rollout: np.ndarray  # (from token, to token); each row sums to 1
    reader: int = 0
    """The token that the target reads; the first if it reads several."""


def rollout(attention: np.ndarray) -> np.ndarray:
    """Attention rollout, the product of the layers: (layers, heads, tokens, tokens) → (tokens, tokens).

    Each layer is (A + 1) / 2, where A is the mean of its heads and 1 the residual path (Abnar and Zuidema, 2020).

    >>> rollout(np.array([[[[1.0, 0.0], [1.0, 0.0]]]])).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    tokens = attention.shape[-1]
    flow = np.eye(tokens)
    for layer in attention:
        mixed = layer.mean(axis=0, dtype=np.float64) + np.eye(tokens)
        flow = mixed / mixed.sum(axis=-1, keepdims=True) @ flow
    return flow
