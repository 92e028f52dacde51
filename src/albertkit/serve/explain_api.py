"""How an answer forms: one text, computed to every depth.

In: a text. Out: for each depth the time, the vectors, and what the model's task would say. Before this file: `runtime/predict.py` and
`explain/layer_predictions.py`; after it: `look.py`. Attention is in `inner.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.explain.layer_predictions import choice, stable_depth
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.predict import predict
from albertkit.tasks.examples import QuestionExample, TaggedExample, TextExample
from albertkit.tasks.word_alignment import split_words


@dataclass(frozen=True)
class Depth:
    """One text at one depth."""

    depth: int
    seconds: float
    vector: np.ndarray  # (H,), of length 1
    tokens: np.ndarray  # (tokens, H), each of length 1
    prediction: Any
    choice: Any
    """The part of the prediction that is compared."""


@dataclass(frozen=True)
class Looking:
    """A text ready to be computed to any depth."""

    albert: Albert
    batch: TokenBatch
    kind: str | None
    """Which endpoint's answer is predicted."""
    text: str
    example: Any
    k: int

    @property
    def tokens(self) -> int:
        """Tokens of the text."""
        return int(self.batch.ids.size)

    @classmethod
    def of(cls, albert: Albert, text: str, pair: str | None, question: str | None, k: int) -> Looking:
        """A text, and what the model can predict about it."""
        task = albert.meta.task
        kind: str | None = None
        example: Any = None
        if "[MASK]" in text and albert.tokenizer.mask_id is not None and "heads.mlm.bias" in albert.engine.weights:
            kind = "fill"
            albert.masked(text, k)  # or says what is wrong with it
        elif task == "classify":
            kind, example = task, TextExample(text, pair)
        elif task in ("tag", "intent"):
            kind, example = task, TaggedExample(text, split_words(text))
        elif task == "answer" and question is not None:
            kind, example = task, QuestionExample("0", question, text)
        made = albert.tokenizer.encode(text, pair, recognise_mask=kind == "fill")
        if len(made.ids) > albert.max_tokens:
            raise AlbertkitError(
                f"the text has {len(made.ids)} tokens; to look inside, it must fit into {albert.max_tokens}"
            )
        (batch,) = token_batches([made.ids], [made.segments], max(1, len(made.ids)))
        return cls(albert, batch, kind, text, example, k)

    def at(self, depth: int) -> Depth:
        """The text at a depth; on the engine's thread."""
        began = time.perf_counter()
        hidden = self.albert.engine.run(self.batch, depth)
        seconds = time.perf_counter() - began
        pooling = self.albert.meta.pooling
        vector = self.albert._pool(hidden, self.batch.lengths, pooling)[0]
        prediction: Any = None
        if self.kind == "fill":
            prediction = self.albert.fill_mask(self.text, self.k, depth)
        elif self.kind is not None:
            (prediction,) = predict(self.albert, [self.example], self.kind, depth)
        return Depth(depth, seconds, unit(vector), unit(hidden[0]), prediction, choice(self.kind, prediction))

    def compared(self, found: list[Depth], vectors: bool) -> tuple[list[dict[str, Any]], int | None]:
        """Every depth beside the model's own, and the first from which on the prediction stays."""
        full = found[self.albert.depth - 1]
        same = [one.choice == full.choice for one in found]
        told = [
            {
                "depth": one.depth,
                "milliseconds": round(1000 * one.seconds, 4),
                "agreement": float(one.vector @ full.vector),
                "tokens": (one.tokens * full.tokens).sum(axis=1).tolist(),
                "prediction": one.prediction,
                "same": None if self.kind is None else same[i],
                "vector": one.vector if vectors else None,
            }
            for i, one in enumerate(found)
        ]
        upto = same[: self.albert.depth]
        return told, None if self.kind is None else stable_depth(upto)


def unit(rows: np.ndarray) -> np.ndarray:
    """Vectors brought to length 1."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12), np.float32)
