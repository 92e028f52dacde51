"""Looking inside: one text through plain numpy, with everything on the way kept.

In: a model and one text, or its token ids. Out: `LayerActivations`, the hidden states of every layer and the attention of every head. The engine
(`engine.py`) is fast because its layer is one fused operator, which gives no attention; this file is the same arithmetic, written to
be read and looked into. Weights that are stored in 8 or 4 bits are used as the floats they stand for, so that with them the numbers
are close to the engine's, which rounds activations too, and not the same. Nothing here is for many texts or for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Stored, read_stored
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.graph_builder import as_float

GRU_PARTS = ("input_weight", "input_bias", "state_weight", "state_bias")
LONGEST = 256  # tokens; attention grows with their square, times layers and heads


@dataclass(frozen=True)
class LayerActivations:
    """One text, layer by layer."""

    hidden: np.ndarray  # (layers + 1, tokens, H); the first are the embeddings
    attention: np.ndarray  # (layers, heads, from token, to token); each row sums to 1
    ids: list[int]


class NumpyEncoder:
    """A model that can be looked into. With several layers inside a group, the attention is that of the last of them."""

    def __init__(self, config: AlbertConfig, weights: dict[str, Any], tokenizer: Any = None, depth: int = 0) -> None:
        if config.options.static:
            raise AlbertkitError("a static model is a table without layers; there is nothing to look into")
        self.config, self.tokenizer = config, tokenizer
        self.depth = depth or config.num_hidden_layers
        # The word table stays as it is stored: a text needs a few rows of it.
        self.words: np.ndarray | QuantizedMatrix = weights["encoder.embeddings.word.weight"]
        wanted = ("encoder.embeddings.", "encoder.groups.")
        self.weights: dict[str, np.ndarray] = {
            name: np.asarray(as_float(weight), np.float32)
            for name, weight in weights.items()
            if name.startswith(wanted) and weight is not self.words
        }

    @classmethod
    def of(cls, stored: Stored) -> NumpyEncoder:
        """From a model as its folder stores it."""
        return cls(stored.config, dict(stored.weights), stored.tokenizer, stored.meta.depth or 0)

    @classmethod
    def open(cls, model: str | Path | None = None) -> NumpyEncoder:
        """A folder of any kind, or the name of a built-in model; default the built-in one."""
        return cls.of(read_stored(model))

    def look(self, text: str, pair: str | None = None, depth: int | None = None) -> LayerActivations:
        """A text, or a pair of texts; [MASK] in it is a mask."""
        if self.tokenizer is None:
            raise AlbertkitError("this model holds no tokenizer, so it cannot read text; give token ids")
        mask = self.tokenizer.mask_id is not None and "[MASK]" in text
        made = self.tokenizer.encode(text, pair, recognise_mask=mask)
        return self.run(made.ids, made.segments, depth)

    def run(
        self, ids: Sequence[int], segments: Sequence[int] | None = None, depth: int | None = None
    ) -> LayerActivations:
        """Token ids as the model reads them, special ones included."""
        most = min(LONGEST, self.config.max_position_embeddings)
        if not 1 <= len(ids) <= most:
            raise AlbertkitError(f"the text has {len(ids)} tokens; to look inside, it must have 1 to {most}")
        depth = self.depth if depth is None else depth
        hidden = self._embed(np.asarray(ids), np.zeros(len(ids), int) if segments is None else np.asarray(segments))
        states, maps = [hidden], []
        for layer in range(depth):
            for inner in range(self.config.inner_group_num):
                prefix = f"encoder.groups.{self.config.group_of(layer)}.{inner}"
                hidden, attention = self._layer(prefix, hidden, self.config.options.local(layer))
            states.append(hidden)
            maps.append(attention)
        shape = (0, self.config.num_attention_heads, len(ids), len(ids))
        return LayerActivations(
            np.stack(states), np.stack(maps) if maps else np.zeros(shape, np.float32), list(map(int, ids))
        )

    def _embed(self, ids: np.ndarray, segments: np.ndarray) -> np.ndarray:
        """(tokens,) → (tokens, H)."""
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
        return normed + self._gru(normed) if options.gru else normed

    def _gru(self, x: np.ndarray) -> np.ndarray:
        """A GRU from the first token to the last, (tokens, H)."""
        w = {name: self.weights[f"encoder.embeddings.gru.{name}"] for name in GRU_PARTS}
        given = x @ w["input_weight"].T + w["input_bias"]  # (tokens, 3H): reset, update, new
        state, out = np.zeros(x.shape[1], np.float32), np.empty_like(x)
        for token, row in enumerate(given):
            own = w["state_weight"] @ state + w["state_bias"]
            (reset_in, update_in, new_in), (reset_own, update_own, new_own) = np.split(row, 3), np.split(own, 3)
            reset, update = (1 / (1 + np.exp(-a)) for a in (reset_in + reset_own, update_in + update_own))
            state = (1 - update) * np.tanh(new_in + reset * new_own) + update * state
            out[token] = state
        return out

    def _layer(self, prefix: str, hidden: np.ndarray, local: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, H) → the same, and (heads, tokens, tokens)."""
        options, size = self.config.options, self.config.head_size
        query, key, value = (
            self._dense(f"{prefix}.attention.{part}", hidden).reshape(len(hidden), -1, size).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )  # (heads, tokens, size) each; keys and values for one head where all share them
        if options.low_rank:
            low = {part: self.weights[f"{prefix}.attention.low.{part}"] for part in ("query", "key", "value", "lift")}
            query, key, value = query @ low["query"].T, key @ low["key"].T, value @ low["value"].T
        scores = query @ key.transpose(0, 2, 1) / np.float32(self.config.score_size**0.5)
        attention = softmax(scores + self._bias(prefix, len(hidden), local))
        context = attention @ value
        if options.low_rank:
            context = context @ low["lift"].T
        context = context.transpose(1, 0, 2).reshape(len(hidden), self.config.attention_size)
        hidden = self._norm(f"{prefix}.attention_norm", hidden + self._dense(f"{prefix}.attention.output", context))
        wide = ACTIVATIONS[self.config.hidden_act](self._dense(f"{prefix}.ffn.up", hidden))
        return self._norm(f"{prefix}.ffn_norm", hidden + self._dense(f"{prefix}.ffn.down", wide)), attention

    def _bias(self, prefix: str, tokens: int, local: bool) -> np.ndarray:
        """What options add to the scores: θ, and -∞ beyond the window."""
        options, place = self.config.options, np.arange(tokens)
        away = place[None] - place[:, None]
        made = np.zeros((1, tokens, tokens), np.float32)
        if options.attention_bias == "head":
            made = self.weights[f"{prefix}.attention.theta"][:, None, None] * (place == 0)
        elif options.attention_bias:
            reach = options.relative_reach
            made = self.weights[f"{prefix}.attention.theta"][:, np.clip(away, -reach, reach) + reach]
        if local:
            apart = (np.abs(away) > options.window) & (place != 0) & (place != 0)[:, None]
            made = np.where(apart, np.float32(-np.inf), made)
        return made

    def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
        made: np.ndarray = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return made

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        eps = np.float32(self.config.layer_norm_eps)
        if self.config.options.norm == "document":
            spread = np.sqrt(np.square(centred).sum(axis=-1, keepdims=True) / np.float32(x.shape[-1] - 1)) + eps
        else:
            spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps)
        made: np.ndarray = centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return made


def softmax(scores: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    made = np.exp(scores - scores.max(axis=-1, keepdims=True))
    made /= made.sum(axis=-1, keepdims=True)
    return np.asarray(made, np.float32)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function to 2e-7 (Abramowitz and Stegun 7.1.26), since numpy has none."""
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
