"""Golden results: what exported ONNX files compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.golden.comparison import Results, differences, one_thread, sample
from tests.golden.material import VOCABULARY, albertkit, finetuned, place, text_file, tiny_model


def int8() -> Path:
    out = place() / "exported-int8"
    if not out.exists():
        albertkit("quantize", tiny_model(), out, "-f", text_file())
    return out


def task(kind: str) -> Callable[[], Path]:
    return lambda: finetuned(kind)[0]


CASES: dict[str, tuple[Callable[[], Path], tuple[object, ...]]] = {
    "vector": (tiny_model, ()),
    "vector-depth": (tiny_model, ("--depth", 2)),
    "vector-int8": (int8, ()),
    "words": (tiny_model, ("--head", "mlm")),
    "single": (task("single"), ()),
    "tag": (task("tag"), ()),
    "answer": (task("answer"), ()),
    "choose": (task("choose"), ()),
}


def inputs() -> dict[str, np.ndarray]:
    """Three rows of tokens of different lengths."""
    rng = np.random.default_rng(4)
    ids = rng.integers(5, len(VOCABULARY), (3, 12))
    inside = np.arange(12) < np.array([[12], [7], [3]])
    ids[:, 0] = VOCABULARY.index("[CLS]")
    segments = np.where(np.arange(12) > 4, 1, 0) * inside
    return {
        "input_ids": np.where(inside, ids, 0),
        "attention_mask": inside.astype(np.int64),
        "token_type_ids": segments,
    }


def results() -> Results:
    found: Results = {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for name, (source, more) in CASES.items():
        path = place() / f"{name}.onnx"
        albertkit("export", source(), path, *more)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = {one.name: inputs()[one.name] for one in session.get_inputs()}
        for number, output in enumerate(session.run(None, given)):
            found |= sample(f"{name}/output-{number}", output, 4)
    return found


@pytest.mark.slow
def test_exported_files_compute_as_recorded():
    with one_thread():
        assert differences("export", results()) == []
