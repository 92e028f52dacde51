"""Hidden states and attention of one text, computed in plain numpy.

In: a stored model and one text or its token ids. Out: `LayerActivations`. The engine's fused layer operator returns
no attention, so this module repeats its computation step by step. Quantized weights are dequantized to floats. The
numbers are close to those of the engine, which also quantizes activations. The code is slow; use it for single texts.
`explainer.py` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, check_finite
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.graph_builder import as_float
from albertkit.tasks.task import softmax
from albertkit.weights import ffn_prefixes, gru_name

MAX_TOKENS = 256  # the size of attention is tokens² × layers × heads


@dataclass(frozen=True)
class LayerActivations:
    """Hidden states and attention of one text."""

    hidden: np.ndarray  # (layers + 1, tokens, H); the first is the embedding output; before an output norm
    attention: np.ndarray  # (layers, heads, from token, to token); each row sums to 1


class ActivationEncoder:
    """The encoder in numpy. If a group has several inner layers, the attention is that of the last one."""

    def __init__(self, config: AlbertConfig, weights: Mapping[str, Any], depth: int | None = None) -> None:
        if config.options.static:
            raise AlbertkitError("a static model has no layers to explain. Choose an ALBERT model.")
        self.config = config
        self.depth = depth or config.num_hidden_layers
        # The word table is not dequantized: a text needs few of its rows.
        self.words: np.ndarray | QuantizedMatrix = weights["encoder.embeddings.word.weight"]
        prefixes = ("encoder.embeddings.", "encoder.groups.")
        self.weights: dict[str, np.ndarray] = {
            name: np.asarray(as_float(weight), np.float32)
            for name, weight in weights.items()
            if name.startswith(prefixes) and weight is not self.words
        }

    def run(
        self, ids: Sequence[int], segments: Sequence[int] | None = None, depth: int | None = None
    ) -> LayerActivations:
        """Activations of token ids, special tokens included."""
        depth = self.depth if depth is None else depth
        states = np.empty((depth + 1, len(ids), self.config.hidden_size), np.float32)
        maps = np.empty((depth, self.config.num_attention_heads, len(ids), len(ids)), np.float32)
        for layer, (hidden, attention) in enumerate(self.run_layers(ids, segments, depth)):
            states[layer] = hidden
            if attention is not None:
                maps[layer - 1] = attention
        return LayerActivations(states, maps)

    def run_layers(
        self, ids: Sequence[int], segments: Sequence[int] | None, depth: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """The embedding output (tokens, H) and None, then the output and the attention (heads, tokens, tokens) of each
        layer.
        """
        limit = min(MAX_TOKENS, self.config.max_position_embeddings)
        if not 1 <= len(ids) <= limit:
            raise AlbertkitError(f"the text has {len(ids)} tokens; an explanation needs 1 to {limit}")
        hidden = self._embed(np.asarray(ids), np.zeros(len(ids), int) if segments is None else np.asarray(segments))
        check_finite("activations", hidden)
        yield hidden, None
        for layer in range(depth):
            for inner in range(self.config.inner_group_num):
                group, ffn = self.config.group_of(layer, depth), self.config.ffn_of(layer, depth)
                prefix = f"encoder.groups.{group}.{inner}"
                hidden, attention = self._attend(prefix, hidden, self.config.options.local(layer))
                hidden = self._feed_forward(ffn_prefixes(prefix, self.config.ffn_count(group))[ffn], hidden)
            check_finite("activations", (hidden, attention))
            yield hidden, attention

    def _embed(self, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """Token ids (tokens,) → embedding output (tokens, H)."""
        w, options = self.weights, self.config.options
        table = self.words
        if isinstance(table, QuantizedMatrix):
            words = QuantizedMatrix(table.values[ids], table.scale[ids], table.smooth).floats()
        else:
            words = table[ids]
        if options.scale_embedding:
            words = words * np.float32(self.config.embedding_size**0.5)
        projection = w["encoder.embeddings.projection.weight"].T
        if options.brightmart_layout:
            words = words @ projection
        positions = w["encoder.embeddings.position.weight"][: len(ids)]
        summed = words + w["encoder.embeddings.segment.weight"][segments] + positions
        normed = self._norm("encoder.embeddings.norm", summed)
        if not options.brightmart_layout:
            normed = normed @ projection + w["encoder.embeddings.projection.bias"]
        if not options.gru:
            return normed
        out = normed
        for layer in range(options.gru_layers):
            out = self._gru_layer(out, layer)
        return normed + out if options.gru_residual else out

    def _gru_layer(self, x: np.ndarray, layer: int) -> np.ndarray:
        """A GRU over the tokens, (tokens, H) → (tokens, H)."""
        w_input, b_input, w_state, b_state = (
            self.weights[f"encoder.embeddings.gru.{gru_name(part, kind, layer)}"]
            for part in ("input", "state")
            for kind in ("weight", "bias")
        )
        inputs = x @ w_input.T + b_input  # (tokens, 3H): reset, update, new
        state, states = np.zeros(x.shape[1], np.float32), np.empty_like(x)
        for token, row in enumerate(inputs):
            recurrent = w_state @ state + b_state
            (reset_x, update_x, new_x), (reset_h, update_h, new_h) = np.split(row, 3), np.split(recurrent, 3)
            reset, update = (1 / (1 + np.exp(-a)) for a in (reset_x + reset_h, update_x + update_h))
            state = (1 - update) * np.tanh(new_x + reset * new_h) + update * state
            states[token] = state
        return states

    def _attend(self, prefix: str, hidden: np.ndarray, local: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The first half of a layer: (tokens, H) → (tokens, H) and attention (heads, tokens, tokens)."""
        options, size = self.config.options, self.config.head_size
        normed = self._norm(f"{prefix}.attention_norm", hidden) if options.pre_norm else hidden
        query, key, value = (
            self._dense(f"{prefix}.attention.{part}", normed).reshape(len(hidden), -1, wide).transpose(1, 0, 2)
            for part, wide in (("query", size), ("key", size), ("value", self.config.value_size))
        )  # (heads, tokens, size) each; with shared keys and values these have one head
        if options.low_rank:
            low = {part: self.weights[f"{prefix}.attention.low.{part}"] for part in ("query", "key", "value", "lift")}
            query, key, value = query @ low["query"].T, key @ low["key"].T, value @ low["value"].T
        scores = query @ key.transpose(0, 2, 1) / np.float32(self.config.score_size**0.5)
        attention = softmax(scores + self._bias(prefix, len(hidden), local)).astype(np.float32, copy=False)
        context = attention @ value
        if options.low_rank:
            context = context @ low["lift"].T
        context = context.transpose(1, 0, 2).reshape(len(hidden), -1)
        if options.output_rank:
            context = context @ self.weights[f"{prefix}.attention.output_down.weight"].T
        hidden = hidden + self._dense(f"{prefix}.attention.output", context)
        return hidden if options.pre_norm else self._norm(f"{prefix}.attention_norm", hidden), attention

    def _feed_forward(self, prefix: str, hidden: np.ndarray) -> np.ndarray:
        """The second half of a layer: (tokens, H) → (tokens, H)."""
        options = self.config.options
        normed = self._norm(f"{prefix}.ffn_norm", hidden) if options.pre_norm else hidden
        first = "gate" if options.gated_ffn else "up"
        wide = ACTIVATIONS[self.config.hidden_act](self._dense(f"{prefix}.ffn.{first}", normed))
        if options.gated_ffn:
            wide = wide * self._dense(f"{prefix}.ffn.up", normed)
        hidden = hidden + self._dense(f"{prefix}.ffn.down", wide)
        return hidden if options.pre_norm else self._norm(f"{prefix}.ffn_norm", hidden)

    def _bias(self, prefix: str, tokens: int, local: bool) -> np.ndarray:
        """Attention bias and, in local layers, -∞ beyond the window."""
        options, position = self.config.options, np.arange(tokens)
        distance = position[None] - position[:, None]
        bias = np.zeros((1, tokens, tokens), np.float32)
        if options.attention_bias == "head":
            bias = self.weights[f"{prefix}.attention.theta"][:, None, None] * (position == 0)
        elif options.attention_bias:
            reach = options.relative_reach
            bias = self.weights[f"{prefix}.attention.theta"][:, np.clip(distance, -reach, reach) + reach]
        if local:
            is_outside = (np.abs(distance) > options.window) & (position != 0) & (position != 0)[:, None]
            bias = np.where(is_outside, np.float32(-np.inf), bias)
        return bias

    def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"])

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        eps = np.float32(self.config.layer_norm_eps)
        if self.config.options.norm == "document":
            spread = np.sqrt(np.square(centred).sum(axis=-1, keepdims=True) / np.float32(x.shape[-1] - 1)) + eps
        else:
            spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps)
        return np.asarray(centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])


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


def erf(x: np.ndarray) -> np.ndarray:
    """The error function with an error of 2e-7 (Abramowitz and Stegun 7.1.26); numpy has none."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    sums = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - sums * np.exp(-np.square(x))), np.float32)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: np.float32(0.5) * x * (1 + erf(x * np.float32(0.5**0.5))),
    "gelu_new": lambda x: (
        np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)))
    ),
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "silu": lambda x: x / (1 + np.exp(-np.clip(x, -80, None))),
    "tanh": np.tanh,
}
