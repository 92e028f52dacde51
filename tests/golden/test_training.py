"""Golden results: the losses of 20 training steps of each kind, and the weights they end with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.comparison import Results, differences, one_thread, tensors
from tests.golden.material import (
    TRAINING,
    albertkit,
    corpus,
    finetuned,
    labelled,
    losses,
    place,
    text_file,
    tiny_model,
)

STEPS = ("--steps", 20, "--batch-size", 8, "--learning-rate", 2e-3, "--device", "cpu", "--seed", 1, "--no-tensorboard")
STEPS = (*STEPS, "--evaluations", 2, "--log-every", 5)
TASK = (*TRAINING[:6], *TRAINING[8:])  # without --max-length


def pretrained(*more: Any) -> Callable[[Path], Path]:
    def run(out: Path) -> Path:
        shape = tiny_model() / "config.json"
        rows = ("--lengths", 16, "--eval-rows", 32)
        albertkit("pretrain", corpus(), "-o", out, "--shape", shape, *rows, *STEPS, *more)
        return out / "model"

    return run


def tuned(*more: Any, kind: str = "single") -> Callable[[Path], Path]:
    def run(out: Path) -> Path:
        files = (labelled(kind), "--dev", labelled(kind, 16, 9))
        albertkit(
            "finetune",
            "classify",
            *files,
            "-o",
            out,
            "--model",
            tiny_model(),
            "--restarts",
            0,
            "--optimizer",
            "adamw",
            *TRAINING,
            *more,
        )
        return out / "model"

    return run


def elastic(out: Path) -> Path:
    model, _ = finetuned("single")
    albertkit(
        "elastic", model, labelled("single"), "--dev", labelled("single", 16, 9), "-o", out, "--restarts", 0, *TASK
    )
    return out / "model"


def distilled(data: Callable[[], Path], teacher: Callable[[], Path], *more: Any) -> Callable[[Path], Path]:
    def run(out: Path) -> Path:
        albertkit("distill", teacher(), data(), "-o", out, "--model", tiny_model(1), *STEPS, *more)
        return out / "model"

    return run


def recovered(model: Callable[[], Path], data: Callable[[], Path]) -> Callable[[Path], Path]:
    def run(out: Path) -> Path:
        albertkit("prune", model(), out, "--ffn", "1/2", "--heads", "1/2", "--train", data(), *TASK)
        return out

    return run


def rounded(bits: int) -> Callable[[Path], Path]:
    def run(out: Path) -> Path:
        examples = ("--train", labelled("single"), "--dev", labelled("single", 16, 9))
        albertkit("quantize", single(), out, "--bits", bits, *examples, *TASK)
        return out

    return run


def single() -> Path:
    return finetuned("single")[0]


def examples() -> Path:
    return labelled("single")


CASES: dict[str, Callable[[Path], Path]] = {
    "pretrain": pretrained(),
    "pretrain-depths": pretrained("--depths", "1,2", "--consistency-weight", 0.1, "--optimizer", "lamb"),
    "pretrain-lengths": pretrained("--lengths", "8:0.5,16:0.5", "--optimizer", "muon", "--micro-batch-size", 4),
    "finetune-elastic": tuned("--elastic"),
    "finetune-weights": tuned("--class-weights", "--label-smoothing", 0.0, "--dropout", 0.2),
    "elastic": elastic,
    "distill-vectors": distilled(text_file, tiny_model),
    "distill-logits": distilled(examples, single, "--what", "logits"),
    "distill-hidden": distilled(text_file, tiny_model, "--what", "hidden"),
    "distill-mixed": distilled(examples, single, "--what", "logits,hidden:0.5", "--labels", 0.3),
    "distill-corpus": distilled(corpus, tiny_model, "--depths", "1,3", "--widths", "16,32", "--batch-tokens", 512),
    "prune-recover": recovered(single, examples),
    "prune-recover-vectors": recovered(tiny_model, text_file),
    "quantize-8": rounded(8),
    "quantize-4": rounded(4),
}  # fmt: skip


def results() -> Results:
    single()  # trained before losses are recorded, if no other test did
    found: Results = {}
    for name, run in CASES.items():
        with losses() as seen:
            model = run(place() / f"training-{name}")
        found[f"{name}/losses"] = np.array(seen)
        found[f"{name}/weights"] = tensors(model)
    return found


@pytest.mark.slow
def test_training_gives_the_recorded_losses_and_weights():
    with one_thread():
        assert differences("training", results()) == []
