"""An exported file beside the model it was made from: one batch through both.

In: the bytes of the file, and the model. Out: the largest relative difference of their outputs. `onnx_file.py` asks before it writes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.interop.convert import open_stored
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch
from albertkit.runtime.embed import pool
from albertkit.runtime.engine import Engine
from albertkit.runtime.predict import head_scores as head_scores
from albertkit.runtime.runtime_model import RuntimeModel


def sample(config: AlbertConfig, texts: int = 4) -> TokenBatch:
    """A batch of random token ids of different lengths, the longest first."""
    rng = np.random.default_rng(0)
    longest = min(48, config.max_position_embeddings)
    lengths = np.array([max(1, longest * (texts - i) // texts) for i in range(texts)], np.int32)
    ids = rng.integers(min(5, config.vocab_size - 1), config.vocab_size, (texts, longest))
    segments = rng.integers(0, config.type_vocab_size, (texts, longest))
    inside = np.arange(longest)[None] < lengths[:, None]
    return TokenBatch(np.where(inside, ids, 0), np.where(inside, segments, 0), lengths, np.arange(texts))


def feed(rows: TokenBatch) -> dict[str, np.ndarray]:
    """A batch as the inputs of an exported file."""
    inside = np.arange(rows.ids.shape[1])[None] < rows.lengths[:, None]
    return {"input_ids": rows.ids, "attention_mask": inside.astype(np.int64), "token_type_ids": rows.segments}


def compare(data: bytes, source: Path | str | None, heads: tuple[str, ...], depth: int, levels: graphs.Levels) -> float:
    """Largest relative difference between the outputs of an exported file and the runtime's, for one batch."""
    import onnxruntime as ort

    albert = RuntimeModel(open_stored(source), source=source, threads=1)
    weights = open_stored(source).weights
    rows = sample(albert.config)
    if not albert.config.options.static:
        albert.engine = Engine(albert.config, weights, 1, levels)
    hidden = albert.engine.run(rows, depth)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed(rows)), strict=True))
    worst = 0.0
    for name, wanted in expected(albert, hidden, rows, heads).items():
        least = max(1e-6, usual(albert, weights, name, heads))
        for text, length in enumerate(rows.lengths):
            want = wanted[text]
            got = found[name][text][: len(want)] if want.ndim and len(want) == length else found[name][text]
            away = float(np.linalg.norm(got - want)) / max(float(np.linalg.norm(want)), least)
            worst = max(worst, away if np.isfinite(away) else np.inf)
    return worst


def usual(albert: RuntimeModel, weights: graphs.Weights, output: str, heads: tuple[str, ...]) -> float:
    """How large the scores of a whole text usually are. A single score may happen to be near 0, where any rounding would seem large beside it."""
    head = next((name for name in heads if name in ("classify", "choose")), None)
    if output != "logits" or head is None:
        return 0.0
    read = albert.meta.details.get("reads") == "vector"  # a vector of length 1; else numbers from -1 to 1
    weight = graphs.as_float(weights[f"heads.{head}.linear.weight"])
    return float(np.linalg.norm(weight)) / (weight.shape[1] ** 0.5 if read else 1.0)


def expected(
    albert: RuntimeModel, hidden: np.ndarray, rows: TokenBatch, heads: tuple[str, ...]
) -> dict[str, list[np.ndarray]]:
    """What the runtime gives for each output, text by text; token outputs without padding."""
    found: dict[str, list[np.ndarray]] = {}
    for head in heads:
        if head == "vector":
            vectors = pool(albert, hidden, rows.lengths, albert.meta.pooling)
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            found["sentence_embedding"] = list(vectors / lengths if albert.meta.normalise else vectors)
            if not albert.config.options.static:
                found["last_hidden_state"] = [row[:n] for row, n in zip(hidden, rows.lengths, strict=True)]
        elif head == "mlm":
            found["logits"] = [albert.engine.mlm_logits(row[:n]) for row, n in zip(hidden, rows.lengths, strict=True)]
        else:
            scores = head_scores(albert, head, hidden, rows.lengths)
            if head == "answer":
                found["start_logits"] = [s[:, 0] for s in scores]
                found["end_logits"] = [s[:, 1] for s in scores]
            else:
                found["tag_logits" if head == "tag" and heads != ("tag",) else "logits"] = scores
    return found
