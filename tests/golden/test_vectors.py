"""Golden results: vectors and mask predictions of the built-in models, as stored (int8) and with float weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from albertkit import Albert, read_artifact, write_artifact
from tests.golden.comparison import INT8_TOLERANCE, Results, differences, flat, one_thread, sample
from tests.golden.material import place

MODELS = ("small", "small-pretrained")
TEXTS = [
    "A cat sat on the mat.",
    "The committee will publish its report on the reform of fisheries policy in the second half of next year.",
    "naïve café, 1,000 words; 中文 and 😀",
    "",
]
LONG = " ".join(f"Sentence number {number} speaks of ships, harbours and the weather." for number in range(24))
SETTINGS = {
    "default": {},
    "full": {"depth": "full"},
    "cls": {"pooling": "cls"},
    "max": {"pooling": "max"},
    "layer": {"layer": 5},
    "short": {"dim": 64, "normalize": False},
    "depth-3": {"depth": 3},
    "depth-6": {"depth": 6},
}


@cache
def float_model(name: str) -> Path:
    """A built-in model with its weights as float32."""
    return write_artifact(read_artifact(name), place() / f"float-{name}")


def results() -> Results:
    found: Results = {}
    for name in MODELS:
        for kind, model in (("int8", Albert(name, threads=1)), ("float", Albert(float_model(name), threads=1))):
            for case, settings in SETTINGS.items():
                found |= sample(f"{name}/{kind}/{case}", model.embed(TEXTS, **settings))
            for long in ("split", "truncate"):
                found |= sample(f"{name}/{kind}/long-{long}", model.embed([LONG, TEXTS[0]], long_texts=long))
            found |= sample(f"{name}/{kind}/tokens", model.token_vectors(TEXTS[0]).vectors)
    pretrained = Albert("small-pretrained", threads=1)
    for number, text in enumerate(["The capital of France is [MASK].", "[MASK] and [MASK] are colours."]):
        found |= flat(f"masks/{number}", pretrained.fill_mask(text, k=5))
    return found


@pytest.mark.slow
def test_built_in_models_give_the_recorded_vectors():
    with one_thread():
        assert differences("vectors", results(), INT8_TOLERANCE) == []
