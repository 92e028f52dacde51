"""Models that apply fewer layers by default than they have, such as `small`, in every part that reads this depth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from albertkit import Albert, AlbertkitError, Explainer, calibrate
from albertkit.artifact import ArtifactMetadata, read_artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.compress.planner import PlanRequest, plan
from albertkit.explain import ExplainInput
from albertkit.interop.convert import convert
from tests.conftest import tiny
from tests.test_albert import make

TEXTS = [f"text {number} has {'some ' * (number % 5)}words" for number in range(60)]


def write(folder: Path, **changes) -> Path:
    """A model with 4 layers, distilled for 2 and 4, of which it applies 2."""
    artifact = make(tiny(vocab_size=3000, num_hidden_layers=4))
    history = ({"step": "distill", "settings": {"depths": "2,4"}},)
    metadata = replace(ArtifactMetadata(), depth=2, history=history)
    return write_artifact(replace(artifact, metadata=replace(metadata, **changes)), folder)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_an_explanation_has_the_uncertainty_of_each_depth():
    """`small` shows 6 layers; its early exit is calibrated for 12."""
    found = Explainer(Albert("small", threads=1)).explain(ExplainInput("how do I get my money back?"))
    trace = found.early_exit
    assert found.layers[-1].depth == 6 and trace.last_depth == 12
    assert found.uncertainty == {
        depth: value
        for depth, value in zip((*trace.exit_depths, 12), trace.uncertainty, strict=True)
        if value is not None
    }


def test_calibration_compares_vectors_with_all_layers(tmp_path):
    folder = write(tmp_path / "m")
    found = calibrate(folder, TEXTS)
    assert found.depth == 4 and found.exit_depths == (2,)
    assert calibrate(folder, TEXTS, exit_depths=[2, 3]).depth == 4


def test_calibration_of_a_model_without_a_smaller_depth_is_an_error(tmp_path):
    history = ({"step": "distill", "settings": {"depths": "4"}},)
    with pytest.raises(AlbertkitError, match="applies 4 layers and was trained for no smaller depth"):
        calibrate(write(tmp_path / "m", depth=None, history=history), TEXTS)


def test_a_plan_measures_what_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("albertkit.compress.benchmark.typical_seconds", lambda call, *_: call() is None or 1e-3)
    found = plan(write(tmp_path / "m"), PlanRequest(latency=1.0, memory=1e9, texts=TEXTS, count=2, threads=1))
    assert {proposal.candidate.config.num_hidden_layers for proposal in found.proposals} <= {1, 2}


def test_convert_names_the_command_that_other_programs_need(tmp_path):
    said = run("convert", "small", tmp_path / "a")
    assert "--layout sentence-transformers" in said and "quantized" not in said
    assert convert("small", tmp_path / "b").metadata.quantization is None
    assert read_artifact(tmp_path / "a").metadata.depth == 6


@pytest.mark.slow
def test_training_after_quantization_keeps_the_default_depth(tmp_path):
    folder, texts = write(tmp_path / "m"), tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    run("quantize", folder, tmp_path / "q", "--bits", 4, "--train", texts, "--minutes", 0.05, "--device", "cpu")
    assert Albert(tmp_path / "q", threads=1).depth == 2


def test_info_shows_depth_pooling_and_quantization():
    said = json.loads(run("info", "small", "--json"))
    assert (said["depth"], said["pooling"], said["quantization"]) == (6, "mean", "int8")


def test_an_unknown_depth_names_full():
    assert "Pass 1 to 1024, or full for all layers" in run("embed", "a cat", "--depth", "ful")


@pytest.mark.parametrize("options", [["-o", "out"], ["--skip-bad"], ["--part-rows", "5"]])
def test_options_of_bulk_work_need_an_engine(tmp_path, options):
    with pytest.raises(AlbertkitError, match=f"{options[0].replace('-o', '--output')} needs --engine"):
        run("tag", "-m", write(tmp_path / "m"), "a cat", *options)
