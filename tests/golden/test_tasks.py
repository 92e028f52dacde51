"""Golden results: the losses of 20 steps of fine-tuning for each task, and what the fine-tuned models predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import Albert
from tests.golden.comparison import Results, differences, flat, one_thread, tensors
from tests.golden.material import ROWS, albertkit, finetuned, labelled

TEXTS = [
    "red cat dog hen pink",
    "oak elm blue",
    "cat oak",
    "the red cat is a bee .",
    "one two three four five six " * 12,
]
PAIRS = ["cat dog hen", "cow pig", "oak elm", "fir", "red blue"]
CONTEXTS = ["red blue cat oak elm fir", "pink owl yew", "grey brown black " * 30 + "fox oak"]


def predictions(kind: str, model: Albert) -> list[Any]:
    """One prediction per input, of every kind of call that the task has."""
    if kind == "pair":
        return model.classify(TEXTS, PAIRS)
    if kind in ("single", "multi", "regression"):
        early = model.classify(TEXTS, early_exit="entropy:0.6") if kind == "single" else []
        return [*model.classify(TEXTS), *model.classify(TEXTS, depth=2), *early]
    if kind == "tag":
        return model.tag(TEXTS)
    if kind == "intent":
        return model.understand(TEXTS)
    if kind == "answer":
        return [model.answer("which animal ?", context) for context in CONTEXTS]
    if kind == "choose":
        return [model.choose("which animal ?", text, ["cat", "oak", "fig"]) for text in TEXTS]
    if kind == "match":
        return [model.similarity(text, pair) for text, pair in zip(TEXTS, PAIRS, strict=True)]
    if kind == "dialogue":
        return model.track(["a red one .", ("which animal ?", "the dog ."), "a cat , blue"])
    assert kind == "generate"
    return [
        *model.generate(TEXTS),
        *model.generate(TEXTS[:2], beams=3, no_repeat=2),
    ]


def results() -> Results:
    found: Results = {}
    for kind in ROWS:
        folder, losses = finetuned(kind)
        found[f"{kind}/losses"] = np.array(losses)
        found[f"{kind}/weights"] = tensors(folder)
        for number, one in enumerate(predictions(kind, Albert(folder, threads=1))):
            found |= flat(f"{kind}/prediction-{number}", one)
        found |= flat(f"{kind}/evaluation", evaluation(kind, folder))
    return found


def evaluation(kind: str, folder: Path) -> Any:
    """The metrics on other examples."""
    return json.loads(albertkit("evaluate", "-m", folder, labelled(kind, 16, 5), "--json"))


def test_fine_tuned_models_predict_as_recorded():
    with one_thread():
        assert differences("tasks", results()) == []
