"""What compression costs in the metric of a model, on real sentences."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from scipy.stats import spearmanr

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, read_artifact, write_artifact
from albertkit.builtin import resolve
from albertkit.cli import entry_point as cli
from albertkit.cli.compress_commands import describe_pruned
from albertkit.compress.metric_loss import MLM, RANKING, masked_predictions, metric_loss, spearman
from albertkit.compress.prune import PruneSettings, prune
from albertkit.compress.quantize import quantize
from albertkit.compress.static_model import make_static_model
from albertkit.data.passages import everyday_sentences
from albertkit.runtime.agreement import compared_texts
from tests.runtime.test_graph import TEXTS, make


def test_mlm_accuracy_falls_where_the_cosine_hardly_does(tmp_path):
    """Vectors of different sentences have a cosine of .9 in a pre-trained model: the cosine alone is no verdict."""
    write_artifact(read_artifact(resolve("small-pretrained")), tmp_path / "m")
    report = prune(tmp_path / "m", tmp_path / "p", PruneSettings(ffn=0.25), list(everyday_sentences(60)))
    loss = report.metric_loss
    assert loss is not None and loss.metric == MLM and loss.kind == "built-in English sentences" and loss.count > 300
    assert loss.before > 0.28 and loss.after < 0.8 * loss.before and 0 < loss.baseline < 0.1
    assert report.cosine_mean > 0.95
    (shown,) = [line for line in describe_pruned(tmp_path / "p", report) if "MLM accuracy" in line]
    assert "before" in shown and "most frequent token" in shown


def test_a_model_loses_nothing_against_itself():
    for name, metric in (("small-pretrained", MLM), ("small-zh", RANKING)):
        albert = Albert(name)
        loss = metric_loss(albert, albert)
        assert loss is not None and loss.metric == metric and loss.after == pytest.approx(loss.before)


def test_masked_positions_do_not_depend_on_the_batch():
    albert = Albert("small-pretrained")
    texts = compared_texts(albert.tokenizer).texts[:6]
    _, originals = masked_predictions(albert, texts)
    alone = [masked_predictions(albert, texts[:1])[1], masked_predictions(albert, texts[:3])[1]]
    for some in alone:
        np.testing.assert_array_equal(some, originals[: len(some)])


def test_rankings_are_measured_by_spearman():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 20, 200).astype(float)  # with ties
    second = first + rng.normal(0, 5, 200)
    assert spearman(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert spearman(first, np.ones(200)) == 0.0


def test_quantize_and_static_measure_the_ranking_of_similarities(tmp_path):
    write_artifact(make({}, meta=ArtifactMetadata(task="embed")), tmp_path / "m")
    table = make_static_model(tmp_path / "m", tmp_path / "table", TEXTS * 2, dim=4).metric_loss
    rounded = quantize(tmp_path / "m", tmp_path / "q", 8, TEXTS * 12).metric_loss
    assert table is not None and rounded is not None and table.metric == rounded.metric == RANKING
    assert rounded.after > 0.95 > table.after and "Spearman" in str(table)


def test_texts_of_the_user_are_used_if_there_are_enough(tmp_path):
    write_artifact(make({}), tmp_path / "m")
    albert = Albert(tmp_path / "m")
    assert metric_loss(albert, albert, TEXTS[:15]) is None  # few, and this vocabulary reads no built-in sentences
    loss = metric_loss(albert, albert, TEXTS * 2)
    assert loss is not None and loss.kind == "texts" and loss.texts == 2 * len(TEXTS)


def test_prune_scores_a_task_model_on_labelled_examples(tmp_path, monkeypatch, capsys):
    def run(*args):
        monkeypatch.setattr(sys, "argv", ["albertkit", "prune", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    meta = ArtifactMetadata(task="classify", labels=("a", "b"), details={"kind": "single"})
    write_artifact(make({}, meta=meta), tmp_path / "m")
    write_artifact(make({}, meta=ArtifactMetadata(task="pretrain")), tmp_path / "pretrained")
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{'ab'[i % 2]}\n" for i, t in enumerate(TEXTS)))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    line = (
        tmp_path / "m",
        tmp_path / "p",
        "--ffn",
        "24",
        "-f",
        tmp_path / "texts.txt",
        "--check",
        tmp_path / "dev.tsv",
    )
    code, out, err = run(*line, "--json")
    check = json.loads(out)["check"]
    assert code == 0 and check["metric"] == "accuracy" and 0 <= check["after"] <= 1, err
    code, out, err = run(*line, "--force")
    assert code == 0 and f"accuracy {check['before']:.4f} before, {check['after']:.4f} after" in out, err
    texts = tmp_path / "texts.txt"
    code, _, err = run(tmp_path / "pretrained", tmp_path / "v", "--vocabulary", texts, "--check", texts)
    assert code == 2 and "Omit --check or --vocabulary" in err and not (tmp_path / "v").exists()
