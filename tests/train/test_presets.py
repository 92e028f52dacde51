"""Presets of fine-tuning: enough steps for every number of examples, and near the best of the measured settings."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from albertkit.config import preset
from albertkit.train.presets import preset_learning_rate, preset_optimizer, preset_schedule, preset_steps
from albertkit.train.train_settings import FinetuneSettings

RESULTS = Path(__file__).parent.parent.parent / "studies" / "results"
CURVES = RESULTS / "curves.jsonl"
TASKS = {"conll2003": "tag", "cluener": "tag", "atis": "intent", "snips": "intent", "woz2": "dialogue"}
METRICS = {"cola": "mcc", "sts-b": "pearson", "woz2": "joint_goal", "conll2003": "f1", "cluener": "f1", "atis": "mean", "snips": "mean"}  # fmt: skip
CLASSES = {"clinc150-small": 150, "sts-b": 0}
NOISE = {("cola", 100), ("cola", 300), ("woz2", 100)}
"""Matthews correlations near 0, and 2.4 points of joint goal with a standard error of 1.6."""


def measured() -> dict[tuple[str, int], dict[tuple[int, int], float]]:
    """Scores by data set and number of examples, and by batch size and steps, at the preset learning rate."""
    found: dict[tuple[str, int], dict[tuple[int, int], float]] = defaultdict(dict)
    for line in CURVES.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "error" not in row:
            steps = row["steps"] if row["learning_rate"] != 2e-4 else -1
            value = row["metrics"][METRICS.get(row["data"], "accuracy")]
            found[row["data"], row["size"]][row["batch_size"], steps or 0] = value or 0.0
    return found


def test_presets_are_within_ten_percent_of_the_best_measured_setting():
    curves = measured()
    assert len(curves) == 52
    for (name, size), scores in curves.items():
        chosen = preset_steps(TASKS.get(name, "classify"), size, CLASSES.get(name, 2))
        assert chosen in scores, f"{name} with {size} examples was not measured with {chosen}"
        if (name, size) not in NOISE:
            assert scores[chosen] >= 0.9 * max(scores.values()), (name, size, scores)


@pytest.mark.parametrize("task", ["classify", "tag", "intent", "dialogue", "answer", "choose", "match", "generate"])
@pytest.mark.parametrize("examples", [10, 100, 499, 3000, 50_000, 1_000_000])
def test_every_preset_has_enough_steps_and_the_old_epochs(task, examples):
    schedule = preset_schedule(task, examples, preset("small"), FinetuneSettings())
    assert schedule.steps(examples) >= (400 if task in ("answer", "choose", "match", "generate") else 800)
    assert schedule.epochs >= 2 and 8 <= schedule.batch_size <= 32


def test_few_epochs_make_the_batch_smaller_unless_it_was_passed():
    small = preset("small")
    few = preset_schedule("tag", 900, small, FinetuneSettings(epochs=3))
    assert (few.batch_size, few.epochs, few.steps(900)) == (4, 3, 675)
    assert preset_schedule("tag", 900, small, FinetuneSettings()).steps(900) == 1600
    assert preset_schedule("tag", 900, small, FinetuneSettings(epochs=3, batch_size=32)).batch_size == 32
    assert preset_schedule("classify", 100_000, small, FinetuneSettings(epochs=1)).batch_size == 32
    many = preset_schedule("classify", 1000, small, FinetuneSettings(batch_size=64))
    assert many.steps(1000) == 1200  # half the steps, and as many examples
    assert preset_schedule("classify", 1000, small, FinetuneSettings(learning_rate=5e-4)).learning_rate == 5e-4


def test_muon_is_the_preset_where_it_was_measured():
    small, base = preset("small"), preset("base")
    assert preset_optimizer("tag", small) == "muon" and preset_learning_rate(small, "muon") == 2e-4
    assert preset_optimizer("tag", base) == preset_optimizer("answer", small) == "adamw"
    assert preset_schedule("tag", 900, small, FinetuneSettings(optimizer="adamw")).learning_rate == 1e-4


def test_the_preset_optimizer_beats_adamw_on_the_measured_sets():
    """The mean over the sets that were measured with both, and no set more than 3 points worse."""
    scores: dict[str, dict[tuple[str, int, float | None], list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in (RESULTS / "recipes.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        value = row["metrics"][METRICS.get(row["data"], "accuracy")]
        scores[row["recipe"]][row["data"], row["examples"], row["epochs"]].append(value)
    muon, adamw = ({key: sum(v) / len(v) for key, v in scores[name].items()} for name in ("muon 2e-4", "adamw"))
    both = sorted(muon.keys() & adamw.keys(), key=str)
    assert len(both) >= 15
    assert sum(muon[key] - adamw[key] for key in both) / len(both) > 0.03
    assert all(muon[key] > adamw[key] - 0.03 for key in both)
