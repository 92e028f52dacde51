"""Out of scope at every depth: an elastic model has the floor that plain fine-tuning sets, from its full depth's
scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.runtime.predict import predict
from albertkit.tasks import make_task
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import TextExample
from albertkit.train import finetune as tune
from albertkit.train.elastic import ElasticTask, finetune_elastic
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings, TrainSettings
from tests.train.conftest import TOPICS
from tests.train.test_finetune import start as start  # the fixture
from tests.train.test_finetune import texts, words

QUICK = {"epochs": 1, "restarts": 0, "batch_size": 16, "learning_rate": 2e-3, "device": "cpu"}


def strange(count: int, topics: Sequence[int], seed: int = 0) -> list[TextExample]:
    """Texts that fit no class."""
    rng = np.random.default_rng(seed)
    return [TextExample(words(rng, TOPICS[topics[n % len(topics)]][:5], 4), None, "oos") for n in range(count)]


@pytest.fixture(scope="module")
def known() -> list[TextExample]:
    return [*texts(80), *strange(20, [3])]


@pytest.fixture(scope="module")
def dev() -> list[TextExample]:
    return [*texts(30, 9), *strange(20, [3, 0], 9)]


@pytest.mark.parametrize("way", ["finetune --elastic", "elastic"])
def test_the_floor_goes_into_an_elastic_model(start, known, dev, tmp_path, monkeypatch, way):
    """What was measured on held-out examples is what the finished model says of them."""
    source = start
    if way == "elastic":
        source = tune.finetune_examples(
            "classify", known, dev, tmp_path / "plain", start, FinetuneSettings(**QUICK)
        ).model
    seen = []
    before = ClassifyTask.fit_min_probability

    def floored(task, *given):
        seen.append(dataclasses.replace(before(task, *given), min_probability=0.5))  # as if doubtful texts had said so
        return seen[-1]

    monkeypatch.setattr(ClassifyTask, "fit_min_probability", floored)
    if way == "elastic":
        done = finetune_elastic(source, known, dev, tmp_path / "out", ElasticSettings(**QUICK))
    else:
        done = tune.finetune_examples(
            "classify", known, dev, tmp_path / "out", source, FinetuneSettings(**QUICK, elastic=True)
        )
    albert = Albert(done.model, threads=1)
    assert albert.task.min_probability == 0.5 and albert.task.temperature in [task.temperature for task in seen]
    found = albert.task.measure(predict(albert, dev, "classify"), dev)
    assert found == pytest.approx({name: done.metrics[name] for name in found}, abs=1e-6)


def test_the_floor_is_set_by_the_full_depth(start, known, dev, monkeypatch):
    work = ElasticTask(
        make_task("classify", known), start, known, dev, TrainSettings(steps=1, device="cpu"), ElasticSettings()
    )
    scores = work.scores_by_depth(work.dev_features)
    doubtful, rows = np.array([0.1, 0, 0]), 9 * np.eye(len(work.task.labels))
    sure = [doubtful if e.label == "oos" else rows[work.task.labels.index(e.label)] for e in dev]
    full = work.objective.full_depth
    monkeypatch.setattr(work, "scores_by_depth", lambda features: {**scores, full: sure})
    found = work.evaluate()
    assert work.task.min_probability == 0.5 and found["accuracy"] == 1.0
    assert found["accuracy_at_1"] < 1.0


def test_without_texts_out_of_scope_there_is_no_floor(start):
    work = ElasticTask(make_task("classify", texts(40)), start, texts(40), texts(40, 9), TrainSettings(steps=1, device="cpu"), ElasticSettings())  # fmt: skip
    before = work.task
    work.evaluate()
    assert work.task is before
