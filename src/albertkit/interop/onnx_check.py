"""Compares an exported ONNX file with the model: on random tokens for faults, on real sentences for the verdict.

In: the bytes of a file and the stored model. Out: differences by text and output. `onnx_export.py` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from albertkit.artifact import StoredModel
from albertkit.config import AlbertConfig
from albertkit.runtime.agreement import compared_texts
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.embed import pool
from albertkit.runtime.engine import Engine
from albertkit.runtime.graph_builder import as_float
from albertkit.runtime.predict import head_scores
from albertkit.runtime.runtime_model import RuntimeModel
from albertkit.transformers_folder import max_tokens, score_scale

COMPARED_BATCH = 8  # sentences compared at a time, since each token of an MLM has scores for the whole vocabulary


def compared_batches(stored: StoredModel, texts: Sequence[str] | None) -> tuple[list[TokenBatch], str]:
    """Batches of texts, or of built-in sentences, and their kind; random tokens for a vocabulary of other languages."""
    compared = compared_texts(stored.tokenizer, texts)
    if compared is None or stored.tokenizer is None:
        return [random_batch(stored.config)], "texts of random tokens"
    ids = [e.ids for e in stored.tokenizer.encode_batch(compared.texts, max_length=max_tokens(stored))]
    groups = (ids[start : start + COMPARED_BATCH] for start in range(0, len(ids), COMPARED_BATCH))
    return [batch for group in groups for batch in token_batches(group)], compared.kind


def random_batch(config: AlbertConfig) -> TokenBatch:
    """A batch of four rows of random token ids of different lengths, the longest first."""
    rng = np.random.default_rng(0)
    texts, longest = 4, min(48, config.max_position_embeddings)
    lengths = np.array([max(1, longest * (texts - i) // texts) for i in range(texts)], np.int32)
    ids = rng.integers(min(5, config.vocab_size - 1), config.vocab_size, (texts, longest))
    segments = rng.integers(0, config.type_vocab_size, (texts, longest))
    inside = np.arange(longest)[None] < lengths[:, None]
    return TokenBatch(np.where(inside, ids, 0), np.where(inside, segments, 0), lengths, np.arange(texts))


def output_differences(
    data: bytes,
    stored: StoredModel,
    heads: tuple[str, ...],
    depth: int,
    max_level: int,
    batches: Iterable[TokenBatch],
) -> np.ndarray:
    """Relative differences between the outputs of an exported file and the runtime's, (texts, outputs)."""
    import onnxruntime as ort

    albert = RuntimeModel(replace(stored, weights=dict(stored.weights)), source="the model", threads=1)
    if not albert.config.options.static:
        albert.engine = Engine(albert.config, dict(stored.weights), 1, max_level)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    errors: list[np.ndarray] = []
    for rows in batches:
        inside = (np.arange(rows.ids.shape[1])[None] < rows.lengths[:, None]).astype(np.int64)
        inputs = {"input_ids": rows.ids, "attention_mask": inside, "token_type_ids": rows.segments}
        actual_outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
        outputs = runtime_outputs(albert, albert.engine.run(rows, depth), rows, heads)
        batch_errors = np.zeros((len(rows.lengths), len(outputs)))
        for column, (name, expected_rows) in enumerate(outputs.items()):
            least = max(1e-6, typical_norm(stored, name, heads))
            for text, length in enumerate(rows.lengths):
                expected, actual = expected_rows[text], actual_outputs[name][text]
                if expected.ndim and len(expected) == length:
                    actual = actual[:length]
                error = float(np.linalg.norm(actual - expected)) / max(float(np.linalg.norm(expected)), least)
                batch_errors[text, column] = error if np.isfinite(error) else np.inf
        errors.append(batch_errors)
    return np.concatenate(errors)


def typical_norm(stored: StoredModel, output: str, heads: tuple[str, ...]) -> float:
    """The typical norm of the scores of one text; one score may be near 0, where any rounding looks large."""
    head = next((name for name in heads if name in ("classify", "choose")), None)
    if output != "logits" or head is None:
        return 0.0
    if head in stored.head_graphs:
        return 1.0
    read = stored.metadata.details.get("reads") == "vector"  # a vector of length 1; else numbers from -1 to 1
    weight = as_float(stored.weights[f"heads.{head}.linear.weight"])
    return float(np.linalg.norm(weight)) / (weight.shape[1] ** 0.5 if read else 1.0)


def runtime_outputs(
    albert: RuntimeModel, hidden: np.ndarray, rows: TokenBatch, heads: tuple[str, ...]
) -> dict[str, list[np.ndarray]]:
    """The outputs of the runtime for each text; token outputs without padding."""
    outputs: dict[str, list[np.ndarray]] = {}
    for head in heads:
        if head == "vector":
            vectors = pool(albert, hidden, rows.lengths, albert.metadata.pooling)
            lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            outputs["sentence_embedding"] = list(vectors / lengths if albert.metadata.normalize else vectors)
            if not albert.config.options.static:
                outputs["last_hidden_state"] = [row[:n] for row, n in zip(hidden, rows.lengths, strict=True)]
        elif head == "mlm":
            outputs["logits"] = [albert.engine.mlm_logits(row[:n]) for row, n in zip(hidden, rows.lengths, strict=True)]
        else:
            scores = head_scores(albert, head, hidden, rows.lengths)
            if head in albert.custom_heads:
                factor, offset = score_scale(albert.metadata)
                scores = [row * factor + offset for row in scores]
            if head == "answer":
                outputs["start_logits"] = [s[:, 0] for s in scores]
                outputs["end_logits"] = [s[:, 1] for s in scores]
            else:
                outputs["tag_logits" if head == "tag" and heads != ("tag",) else "logits"] = scores
    return outputs
