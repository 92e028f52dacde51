"""Elastic depth: every depth learns, whatever the task; what is promised about leaving early holds; and it resumes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.runtime.predict import predict
from albertkit.runtime.runtime_model import is_full_depth_only
from albertkit.tasks import load_task, make_task
from albertkit.tasks.examples import TextExample
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import ProcessGroup
from albertkit.train.elastic import ElasticTask, finetune_elastic
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings, PretrainSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import VOCAB
from tests.train.test_finetune import choices, questions, tagged, texts

LAYERS = 4
QUICK = {"batch_size": 16, "learning_rate": 3e-3, "device": "cpu"}


def pairs(count: int, seed: int = 0) -> list[TextExample]:
    return [TextExample(e.text, e.text, float(i % 2)) for i, e in enumerate(texts(count, seed))]


def noisy(count: int, seed: int = 0) -> list[TextExample]:
    """One label in eight is wrong, so that depths have something to disagree about."""
    rng = np.random.default_rng(seed + 100)
    turned = {"animal": "tree", "tree": "animal"}
    return [dataclasses.replace(e, label=turned[e.label]) if rng.random() < 0.125 else e for e in texts(count, seed)]


KINDS = {
    "classify": texts,
    "multi": lambda n, seed=0: texts(n, seed, "multi"),
    "regression": lambda n, seed=0: texts(n, seed, "regression"),
    "tag": tagged,
    "answer": questions,
    "choose": choices,
    "intent": tagged,
    "match": pairs,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, max_position_embeddings=64, num_hidden_layers=LAYERS)
    return Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))


@pytest.fixture(scope="module")
def plain(start, tmp_path_factory):
    """A model fine-tuned at the full depth alone."""
    out = tmp_path_factory.mktemp("plain")
    return tune.finetune_examples(
        "classify", noisy(240), noisy(60, 9), out, start, FinetuneSettings(epochs=6, max_length=40, **QUICK)
    )


@pytest.fixture(scope="module")
def stretched(plain, tmp_path_factory):
    """The same, elastic."""
    options = ElasticSettings(epochs=6, **QUICK)
    return finetune_elastic(plain.model, noisy(240), noisy(400, 7), tmp_path_factory.mktemp("elastic"), options)


def likelihood(model: Albert, examples: list[TextExample], depth: int) -> float:
    """The mean log probability of what is right."""
    found = predict(model, examples, "classify", depth=depth)
    return float(np.mean([np.log(r.probabilities[e.label]) for r, e in zip(found, examples, strict=True)]))


def test_every_depth_becomes_a_good_model(plain, stretched):
    fresh = noisy(600, 11)
    before, after = (
        [likelihood(Albert(done.model, threads=1), fresh, depth) for depth in range(1, LAYERS + 1)]
        for done in (plain, stretched)
    )
    assert min(after) >= before[-1] - 0.1, (before, after)
    assert after[0] > before[0] + 0.05, (before, after)
    meta = read_artifact(stretched.model).metadata
    assert list(meta.metrics["dev at depth"]) == [str(d) for d in range(1, LAYERS)]
    assert meta.history[-1]["step"] == "elastic" and meta.history[-1]["depths"]["distill_weight"] == 0.5
    assert "accuracy" in meta.metrics["dev"] and not any("_at_" in name for name in meta.metrics["dev"])
    assert meta.details["max_length"] == 40  # as it was fine-tuned
    report = (stretched.model.parent / "report.md").read_text()
    assert "| depth | 1 | 2 | 3 |" in report and "accuracy_at" not in report


def test_the_promised_agreement_holds_on_fresh_texts(stretched):
    model, fresh = Albert(stretched.model, threads=1), noisy(3000, 13)
    full = [r.label for r in predict(model, fresh, "classify")]
    depths = []
    for share in (0.9, 0.95, 0.97):
        early = predict(model, fresh, "classify", early_exit=share)
        assert np.mean([r.label == label for r, label in zip(early, full, strict=True)]) >= share
        depths.append(np.mean([r.depth for r in early]))
    assert depths[0] <= depths[1] <= depths[2] < LAYERS
    promised = model.metadata.details["early_exit"]
    assert promised["depth"] == LAYERS and promised["texts"] == 300 and promised["confidence"] == 0.95


@pytest.mark.parametrize("every", [True, False])
def test_where_one_depth_is_trained_it_alone_chooses_the_checkpoint(start, every):
    examples, settings = noisy(24), TrainSettings(steps=1, batch_size=8, device="cpu")
    work = ElasticTask(
        make_task("classify", examples), start, examples, noisy(60, 9), settings, ElasticSettings(elastic=every)
    )
    found = work.evaluate()
    depths = [found["accuracy"], *(value for name, value in found.items() if "_at_" in name)]
    mean = np.mean(depths) if every else found["accuracy"]
    assert len(set(depths)) > 1 and found["over_depths"] == pytest.approx((found["accuracy"] + mean) / 2)
    assert is_full_depth_only(work.to_artifact(found, TrainState()).metadata.history) is not every


def test_a_folder_of_one_depth_is_not_gone_on_with_for_all(plain, tmp_path):
    one = ElasticSettings(epochs=1, elastic=False, **QUICK)
    finetune_elastic(plain.model, noisy(24), noisy(60, 9), tmp_path, one)
    with pytest.raises(AlbertkitError, match="other"):
        finetune_elastic(plain.model, noisy(24), noisy(60, 9), tmp_path, dataclasses.replace(one, elastic=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{}, {"sampled_depths": 1, "distill_weight": 1.0}, {"distill_weight": 0.0, "consistency_weight": 0.5}],
    ids=str,
)
def test_every_task_has_a_loss_at_every_depth(start, kind, options):
    examples = KINDS[kind](24)
    task = make_task("classify" if kind in ("multi", "regression") else kind, examples)
    settings = TrainSettings(steps=1, batch_size=8, device="cpu")
    work = ElasticTask(task, start, examples, KINDS[kind](60, 9), settings, ElasticSettings(max_length=40, **options))
    (part,), _ = work.next_batch(0, 0.5, ProcessGroup(0, 1, torch.device("cpu")))
    loss, sums = work.objective(*part)
    assert torch.isfinite(loss) and loss > 0 and sums.shape == (len(work.metric_names), 2)
    loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in work.model.parameters())
    found = work.evaluate()
    assert sum("_at_" in name for name in found) == LAYERS - 1 and "over_depths" in found
    assert work.early_exit is not None and len(work.early_exit["exit_depths"]) == LAYERS - 1
    state = TrainState()
    json.dumps(work.to_artifact(found, state).metadata.details)


def test_what_the_full_depth_says_costs_nothing_where_depths_agree(start):
    """With a layer that does nothing, all depths are one; only what is right is left of the loss."""
    still = {n: np.zeros_like(w) if "groups" in n and "norm" not in n else w for n, w in start.weights.items()}
    frozen = Artifact(start.config, still, start.tokenizer, start.metadata)
    for kind in ("classify", "tag", "answer", "choose", "intent", "match"):
        examples = KINDS[kind](16)
        settings = TrainSettings(steps=1, batch_size=8, device="cpu")
        work = ElasticTask(
            make_task(kind, examples),
            frozen,
            examples,
            (),
            settings,
            ElasticSettings(max_length=40, distill_weight=1.0),
        )
        (part,), _ = work.next_batch(0, 0.5, ProcessGroup(0, 1, torch.device("cpu")))
        loss, sums = work.objective(*part)
        assert sums[1, 0].item() == pytest.approx(0, abs=1e-4), kind
        assert loss.item() == pytest.approx((sums[0, 0] / sums[0, 1]).item(), abs=1e-4)


def test_depths_are_drawn_by_the_step(start):
    examples = texts(16)
    given = make_task("classify", examples), start, examples, (), TrainSettings(steps=1, batch_size=8, device="cpu")
    work = ElasticTask(*given, ElasticSettings(sampled_depths=2))
    drawn = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        drawn.append([tuple(work.objective.sample_depths()) for _ in range(20)])
    assert drawn[0] == drawn[2] != drawn[1] and {len(d) for d in drawn[0]} == {2}
    assert {d for found in drawn[0] for d in found} == set(range(1, LAYERS))
    assert ElasticTask(*given, ElasticSettings()).objective.sample_depths() == list(range(1, LAYERS))
    assert ElasticTask(*given, ElasticSettings(elastic=False)).objective.sample_depths() == []


def test_the_head_comes_along_only_for_the_same_task(plain):
    artifact = read_artifact(plain.model)
    settings, examples = TrainSettings(steps=1, device="cpu"), texts(16)
    same = ElasticTask(load_task(artifact.metadata), artifact, examples, (), settings, ElasticSettings(max_length=40))
    name = "heads.classify.linear.weight"
    assert np.array_equal(same.model.weights()[name], artifact.weights[name])
    other = [dataclasses.replace(e, label=f"{e.label}!") for e in examples]
    fresh = ElasticTask(make_task("classify", other), artifact, other, (), settings, ElasticSettings(max_length=40))
    assert not np.array_equal(fresh.model.weights()[name], artifact.weights[name])


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_weights(plain, tmp_path, monkeypatch):
    options = ElasticSettings(epochs=3, sampled_depths=2, consistency_weight=0.1, **QUICK)
    finetune_elastic(plain.model, texts(60), texts(60, 9), tmp_path / "straight", options)

    class Died(Exception):
        pass

    with monkeypatch.context() as patch:
        before, seen = ElasticTask.next_batch, []

        def fatal(self, *given):
            seen.append(1)
            if len(seen) == 7:
                raise Died
            return before(self, *given)

        patch.setattr(ElasticTask, "next_batch", fatal)
        with pytest.raises(Died):
            finetune_elastic(plain.model, texts(60), texts(60, 9), tmp_path / "killed", options)
    finetune_elastic(plain.model, texts(60), texts(60, 9), tmp_path / "killed", options)
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("straight", "killed")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_from_a_pre_trained_model_in_one_go(start, tmp_path):
    """`finetune --elastic`; parts of a batch give the gradient of the whole."""
    options = FinetuneSettings(epochs=8, elastic=True, max_length=40, **QUICK)
    done = tune.finetune_examples("classify", texts(240), texts(60, 9), tmp_path, start, options)
    found = read_artifact(done.model).metadata
    assert min(found.metrics["dev at depth"].values()) > 0.75 and found.details["early_exit"]["texts"] == 45


@pytest.mark.slow
def test_tagging_leaves_early_too(start, tmp_path):
    done = tune.finetune_examples(
        "tag", tagged(240), tagged(300, 9), tmp_path, start, FinetuneSettings(epochs=8, elastic=True, **QUICK)
    )
    model, fresh = Albert(done.model, threads=1), tagged(500, 11)
    early, full = predict(model, fresh, "tag", early_exit="95%"), predict(model, fresh, "tag")
    same = [
        [(s.start, s.end, s.label) for s in a.spans] == [(s.start, s.end, s.label) for s in b.spans]
        for a, b in zip(early, full, strict=True)
    ]
    assert np.mean(same) >= 0.95 and np.mean([r.depth for r in early]) < LAYERS


def test_what_cannot_be_made_elastic_is_said(start, plain, tmp_path):
    vectors = dataclasses.replace(start, metadata=dataclasses.replace(start.metadata, task="embed"))
    with pytest.raises(AlbertkitError, match="trained for 'embed'"):
        finetune_elastic(vectors, texts(10), (), tmp_path / "a")
    with pytest.raises(AlbertkitError, match="trained for 'pretrain'"):
        finetune_elastic(start, texts(10), (), tmp_path / "b")
    meta = read_artifact(plain.model).metadata
    frozen = dataclasses.replace(
        read_artifact(plain.model), metadata=dataclasses.replace(meta, details={**meta.details, "reads": "vector"})
    )
    with pytest.raises(AlbertkitError, match="head on frozen vectors"):
        finetune_elastic(frozen, texts(10), (), tmp_path / "c")
    for odd in ({"distill_weight": 1.5}, {"sampled_depths": -1}, {"temperature": 0.0}, {"shallow_weight": -1.0}):
        with pytest.raises(AlbertkitError):
            ElasticSettings(**odd)


@pytest.mark.slow
def test_the_verb_from_a_model_to_an_early_answer(plain, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    for name, count, seed in (("train", 160, 0), ("dev", 200, 9)):
        rows = [f"{e.text}\t{e.label}" for e in texts(count, seed)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    run, out = CliRunner(), str(tmp_path / "out")
    given = [
        "--dev",
        str(tmp_path / "dev.tsv"),
        "-o",
        out,
        "--epochs",
        "5",
        "--learning-rate",
        "3e-3",
        "--batch-size",
        "16",
    ]
    done = run.invoke(
        app,
        ["elastic", str(plain.model), str(tmp_path / "train.tsv"), *given, "--device", "cpu", "--sampled-depths", "2"],
    )
    assert done.exit_code == 0, done.output
    assert "150 held-out texts, compared with depth 4; the result is the same" in done.stdout
    said = run.invoke(app, ["classify", "-m", out, "cat dog cow hen pig red", "--early-exit", "90%", "--json"])
    assert json.loads(said.stdout)["label"] == "animal" and json.loads(said.stdout)["depth"] <= LAYERS, said.output
    said = run.invoke(app, ["evaluate", "-m", out, str(tmp_path / "dev.tsv"), "--early-exit", "90%"])
    assert "mean_depth" in said.stdout and "speedup_in_layers" in said.stdout, said.output


# Masked words ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_masked_words_at_every_depth(bench, tmp_path):
    """Updates at shallower depths make those better than updates at the full depth alone do, and a stopped run goes on."""
    losses = {}
    for name, depths in (("plain", ""), ("elastic", "1")):
        goals = PretrainSettings(lengths="16", eval_rows=64, depths=depths)
        out = bench.train(tmp_path / name, goals, steps=60, learning_rate=3e-3)
        work = bench.work(
            TrainSettings(steps=1, device="cpu"), PretrainSettings(lengths="16", eval_rows=64, depths="1")
        )
        work.restore(read_artifact(out.model), {})
        losses[name] = work.evaluate()
    assert losses["elastic"]["mlm_loss_at_1"] < losses["plain"]["mlm_loss_at_1"]
    assert losses["elastic"]["mlm_loss"] < losses["plain"]["mlm_loss"] + 0.3
    drawn = [work.draw_depth(step) for step in range(200)]
    assert set(drawn) == {None, 1} and 60 < drawn.count(1) < 140
    with pytest.raises(AlbertkitError, match="depth 9 is not available: this shape has 2 layers"):
        bench.work(TrainSettings(steps=1), PretrainSettings(lengths="16", depths="9"))
    with pytest.raises(AlbertkitError, match="Write whole numbers with commas"):
        PretrainSettings(depths="a,b")


def test_the_verb_on_a_pre_trained_model(bench, shards, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    work = bench.work(TrainSettings(steps=1, device="cpu"))
    state = TrainState()
    write_artifact(work.to_artifact({}, state), tmp_path / "start")
    out = ["-o", str(tmp_path / "out")]
    said = CliRunner().invoke(app, ["elastic", str(tmp_path / "start"), str(shards), *out])
    assert "pretrain SHARDS -m" in str(said.exception)
    given = ["--steps", "2", "--batch-size", "8", "--device", "cpu", "--lengths", "16", "--depths", "1"]
    done = CliRunner().invoke(app, ["pretrain", str(shards), "-m", str(tmp_path / "start"), *out, *given])
    assert done.exit_code == 0, done.output
    assert "mlm_loss_at_1" in json.loads(done.stdout.splitlines()[-1])
