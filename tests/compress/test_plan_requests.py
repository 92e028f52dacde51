"""What `plan` goes by: a task's own score where there is one."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.compress import planner
from albertkit.compress.cost import depths_below, model_candidates
from albertkit.compress.quantize import QualityCheck, QualityScore
from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import TextExample
from tests.compress.test_every_command import run
from tests.conftest import tiny
from tests.test_albert import make


@pytest.fixture(scope="module")
def classifier():
    meta = ArtifactMetadata(task="classify", labels=("a", "b"), details={"kind": "single"})
    return dataclasses.replace(make(tiny(vocab_size=3000, num_hidden_layers=8), ("classify",)), metadata=meta)


def test_depths_are_ranked_by_the_task_score(classifier, tmp_path, monkeypatch):
    """An elastic model says the same at half the depth, with other vectors; by these alone half the depth would never
    be tried.
    """
    folder = write_artifact(classifier, tmp_path / "m")
    examples = [TextExample(f"text {i}", label="ab"[i % 2]) for i in range(10)]
    check = QualityCheck(folder, examples)
    assert 0 <= check.score(folder, 4).value <= 1  # a real score, at a depth
    scores = {2: 0.7, 4: 0.9, 8: 0.9}
    monkeypatch.setattr(
        QualityCheck, "score", lambda self, folder, depth=None: QualityScore("accuracy", scores.get(depth, 0.85))
    )
    found = planner.depth_quality(planner.PlannedModel(classifier, [], [], check), folder)
    assert set(found) == set(depths_below(classifier.config))
    assert found[8] == found[4] == 1 and found[2] == pytest.approx(0.8)
    losses = {(c.config.num_hidden_layers, c.bits): c.loss for c in model_candidates("m", classifier.config, found) if not c.is_static and c.config.intermediate_size == 48}  # fmt: skip
    assert losses[4, 8] == losses[8, 8] < losses[2, 8]


def test_shape_can_be_a_config_file(tmp_path):
    config = tiny(num_hidden_layers=8, num_hidden_groups=4)
    (tmp_path / "my.json").write_text(json.dumps(config.to_dict()))
    assert planner.config_of(str(tmp_path / "my.json")) == config
    with pytest.raises(AlbertkitError, match=r"none.json does not exist. Pass a config"):
        planner.config_of(str(tmp_path / "none.json"))


def test_examples_need_weights():
    with pytest.raises(AlbertkitError, match="tiny is not a fine-tuned model"):
        planner.plan("tiny", planner.PlanRequest(latency=1.0, examples=[]))


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_no_static_table_is_proposed_for_a_task(classifier, task, tmp_path, monkeypatch):
    folder = write_artifact(dataclasses.replace(classifier, metadata=dataclasses.replace(classifier.metadata, task=task, labels=())), tmp_path / "m")  # fmt: skip
    seen = []

    def stop(candidates, *rest):
        seen.extend(candidates)
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "propose", stop)
    for slow in ("measure_machine", "tokenizer_memory"):  # of no account for what is proposed
        monkeypatch.setattr(planner, slow, lambda *given, **more: None)
    with pytest.raises(KeyboardInterrupt):
        planner.plan(str(folder), planner.PlanRequest(latency=1.0, length=8, threads=1))
    assert any(c.is_static for c in seen) == (task == "embed")


def test_config_file_is_planned_and_measured_cost_decides(tmp_path, monkeypatch):
    monkeypatch.setattr("albertkit.compress.benchmark.SECONDS", 0.01)
    monkeypatch.setattr("albertkit.compress.benchmark.STRETCH", 0.001)
    (tmp_path / "my.json").write_text(json.dumps(tiny().to_dict()))
    found = planner.plan(str(tmp_path / "my.json"), planner.PlanRequest(latency=1.0, length=8, count=2, threads=1))
    assert found.proposals[0].candidate.shape == "my" and all(p.fits for p in found.proposals)
    slow = [dataclasses.replace(p.measured, latency=2.0) for p in found.proposals]
    monkeypatch.setattr(planner, "measure_candidates", lambda *given: slow)
    again = planner.plan(str(tmp_path / "my.json"), planner.PlanRequest(latency=1.0, length=8, count=2, threads=1))
    assert not any(p.fits for p in again.proposals) and again.as_dict()["proposals"][0]["fits"] is False


def test_plan_rejects_a_static_model(classifier, tmp_path):
    from albertkit.compress.cost import static_config

    table = {"encoder.embeddings.word.weight": np.ones((3000, 8), np.float32)}
    write_artifact(
        Artifact(static_config(tiny(), 3000, 8), table, classifier.tokenizer, ArtifactMetadata()), tmp_path / "table"
    )
    with pytest.raises(AlbertkitError, match="static model: no smaller variant"):
        planner.plan(str(tmp_path / "table"), planner.PlanRequest(latency=1.0))


def test_texts_without_a_limit_are_refused(tmp_path):
    with pytest.raises(AlbertkitError, match="--file was passed without a limit"):
        run("plan", "tiny", "-f", tmp_path / "lines.txt")


def test_too_few_texts_are_an_error(tmp_path):
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    with pytest.raises(AlbertkitError, match="2 calibration texts are too few"):
        run("plan", "tiny", "--latency", "50ms", "-f", tmp_path / "few.txt")


def test_commands_for_a_quantized_model_begin_with_convert(classifier):
    whole = dataclasses.replace(classifier, metadata=dataclasses.replace(classifier.metadata, quantization="int8"))
    same = next(c for c in model_candidates("m", classifier.config) if c.bits == 32)
    assert planner.build_commands(same, "my model", whole) == ("albertkit convert 'my model' OUT",)
    assert planner.build_commands(same, "m", classifier) == ()
