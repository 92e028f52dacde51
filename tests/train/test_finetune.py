"""Fine-tuning: it learns every task, does not collapse unseen, resumes, and the torch-free runtime says what torch
says.
"""

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
from albertkit.runtime.predict import predict, task_scores
from albertkit.tasks import load_task, make_task
from albertkit.tasks.classify import Classification, ClassifyTask
from albertkit.tasks.examples import ChoiceExample, QuestionExample, Span, TaggedExample, TextExample
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train.finetune_report import FinetuneResult
from albertkit.train.finetune_task import FinetuneObjective, FinetuneTask, compute_scores, pack_features
from albertkit.train.presets import preset_epochs, preset_learning_rate
from albertkit.train.train_settings import FinetuneSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB

ANIMALS, TREES = TOPICS[1], TOPICS[2]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, max_position_embeddings=64)
    return Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))


def words(rng, ring: list[str], count: int) -> str:
    return " ".join(rng.choice(ring, count))


def texts(count: int, seed: int = 0, kind: str = "single") -> list[TextExample]:
    """Texts about animals or trees; the number is how many animals there are."""
    rng = np.random.default_rng(seed)
    made = []
    for n in range(count):
        beasts = int(rng.integers(0, 6))
        text = f"{words(rng, ANIMALS, beasts)} {words(rng, TREES, 5 - beasts)} {words(rng, TOPICS[0], int(rng.integers(1, 9)))}"
        label = {
            "single": "animal" if beasts >= 3 else "tree",
            "regression": float(beasts),
            "multi": tuple(name for name, there in (("animal", beasts > 0), ("tree", beasts < 5)) if there),
        }[kind]
        made.append(TextExample(text, label=label, where=f"made:{n}"))
    return made


def tagged(count: int, seed: int = 0) -> list[TaggedExample]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        parts = [*rng.choice(TOPICS[0], 3), str(rng.choice(ANIMALS)), *rng.choice(TOPICS[0], 2), str(rng.choice(TREES))]
        text, places, at = " ".join(parts), [], 0
        for part in parts:
            places.append((at, at + len(part)))
            at += len(part) + 1
        spans = (Span(*places[3], "animal"), Span(*places[6], "tree"))
        made.append(TaggedExample(text, tuple(places), spans, intent="buy" if "red" in parts else "look"))
    return made


def questions(count: int, seed: int = 0) -> list[QuestionExample]:
    rng = np.random.default_rng(seed)
    made = []
    for n in range(count):
        beast, before = str(rng.choice(ANIMALS)), words(rng, TOPICS[0], int(rng.integers(2, 6)))
        context = f"{before} {beast} {words(rng, TREES, 3)}"
        made.append(QuestionExample(str(n), "cat", context, ((len(before) + 1, beast),)))
    return made


def choices(count: int, seed: int = 0) -> list[ChoiceExample]:
    rng = np.random.default_rng(seed)
    made = []
    for n in range(count):
        right = int(rng.integers(0, 2 + n % 2))
        options = tuple(str(rng.choice(ANIMALS if i == right else TREES)) for i in range(2 + n % 2))
        made.append(ChoiceExample(words(rng, TOPICS[0], 4), "cat", options, right))
    return made


TASKS = {
    "classify": (texts, "accuracy", 0.85),
    "tag": (tagged, "f1", 0.9),
    "answer": (questions, "exact", 0.9),
    "choose": (choices, "accuracy", 0.9),
    "intent": (tagged, "f1", 0.9),
}


@pytest.fixture(scope="module")
def tuned(start, tmp_path_factory):
    """A model for a task, trained once for all tests of this file."""
    made: dict[str, FinetuneResult] = {}

    def of(task: str) -> FinetuneResult:
        if task not in made:
            examples = TASKS[task][0]
            options = FinetuneSettings(epochs=10, batch_size=16, learning_rate=3e-3, max_length=40, device="cpu")
            made[task] = tune.finetune_examples(
                task, examples(240), examples(60, 9), tmp_path_factory.mktemp(task), start, options
            )
        return made[task]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_it_learns(tuned, task):
    _, metric, least = TASKS[task]
    done = tuned(task)
    assert done.metrics[metric] >= least, done.metrics
    assert not any(run["collapsed"] for run in done.runs)
    report = (done.model.parent / "report.md").read_text()
    assert f"Task: {task}" in report and "Peak memory" in report


@pytest.mark.parametrize("task", TASKS)
def test_the_runtime_says_what_torch_says(tuned, start, task):
    """Scores to 1e-4, results the same, and int8 within half a point... of sixty examples: one example at most."""
    done = tuned(task)
    examples = TASKS[task][0](60, 9)
    artifact = read_artifact(done.model)
    made = load_task(artifact.metadata)
    objective = FinetuneObjective(AlbertModel.from_artifact(artifact), made)
    features = made.features(examples, artifact.tokenizer, 40)
    albert = Albert(done.model)
    scores = compute_scores(objective, features, pack_features)
    for ours, theirs in zip(task_scores(albert, features), scores, strict=True):
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else ((ours, theirs),)
        for a, b in pairs:
            np.testing.assert_allclose(a, b, atol=1e-4)
    found = predict(albert, examples, task)
    assert made.measure(found, examples) == pytest.approx(artifact.metadata.metrics["dev"], abs=1e-6)
    small = made.measure(predict(Albert(done.model, bits=8), examples, task), examples)
    metric = TASKS[task][1]
    assert abs(small[metric] - artifact.metadata.metrics["dev"][metric]) <= 1.01 / 60


def test_the_methods_of_albert(tuned):
    label = Albert(tuned("classify").model.parent).classify("cat dog cow hen pig red")  # the run's folder will do
    assert label.label == "animal" and label.probability == max(label.probabilities.values())
    both = Albert(tuned("classify").model).classify(["cat dog cow", "oak elm ash"])
    assert [found.label for found in both] == ["animal", "tree"]
    text = "red green blue cat pink grey elm"
    (entity, _) = Albert(tuned("tag").model).tag(text).spans
    assert entity.label == "animal" and text[entity.start : entity.end] == "cat"
    assert Albert(tuned("answer").model).answer("cat", "red green dog oak elm fir").text == "dog"
    assert Albert(tuned("choose").model).choose("cat", "red green", ["oak", "cow"]).text == "cow"
    assert {s.label for s in Albert(tuned("intent").model).understand("blue pink cat green grey elm").spans} >= {
        "animal"
    }
    with pytest.raises(AlbertkitError, match="classify is not available: this model was made for 'tag'. Use tag"):
        Albert(tuned("tag").model).classify("red")
    with pytest.raises(AlbertkitError, match="2 texts but 1 pairs"):
        Albert(tuned("classify").model).classify(["a", "b"], ["c"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "metric", "least"), [("regression", "spearman", 0.8), ("multi", "f1", 0.85)])
def test_other_kinds_of_labels(start, tmp_path, kind, metric, least):
    options = FinetuneSettings(epochs=10, batch_size=16, learning_rate=3e-3, device="cpu")
    done = tune.finetune_examples("classify", texts(240, kind=kind), texts(60, 9, kind), tmp_path, start, options)
    assert done.metrics[metric] > least
    found = Albert(done.model).classify("cat dog cow hen pig")
    assert found.label > 3 if kind == "regression" else found.label == ("animal",)


def test_choices_that_are_all_as_likely_are_nothing_learnt(start, tmp_path):
    """The likeliest of equal choices differs from question to question, so that answers alone do not show it."""
    options = FinetuneSettings(epochs=1, batch_size=16, learning_rate=1e-9, restarts=1, device="cpu")
    done = tune.finetune_examples("choose", choices(40), choices(30, 9), tmp_path, start, options)
    assert done.runs[0]["failure"] == "too short" and "a higher --learning-rate" in done.runs[0]["remedy"]
    found = predict(Albert(done.model), choices(30, 9), "choose")
    assert len({result.index for result in found}) > 1


def test_several_labels_begin_with_their_shares(start):
    examples = [TextExample("one", None, ("rare",) if n == 0 else ("often",) if n % 2 else ()) for n in range(50)]
    work = FinetuneTask(make_task("classify", examples), start, examples, (), TrainSettings(steps=1, device="cpu"), 40)
    bias = work.model.heads["classify"].linear.bias.detach().sigmoid()
    assert work.task.labels == ("often", "rare") and bias.tolist() == pytest.approx([0.5, 0.02], abs=1e-6)


def test_what_is_likelier_wrong_than_right_is_out_of_scope():
    """Texts of the class that fits none are called so where the model doubts, if held-out ones say that this is better."""
    examples = [TextExample("x", None, label) for label in ("a", "b", "oos", "oos", "oos")]
    sure = np.array([[9.0, 0, 0], [0, 9, 0], [0, 0, 9], [1, 0.9, 0.8], [0.9, 1, 0.8]])
    task = ClassifyTask(("a", "b", "oos")).fit_min_probability(sure, examples)
    found = task.results(sure, (), examples)
    assert task.min_probability == 0.5 and [r.label for r in found] == [e.label for e in examples]
    doubtful = np.array([[1.0, 0.9, 0.8], [0.9, 1, 0.8], [0, 0, 9], [0, 0, 9], [0, 0, 9]])
    assert (
        ClassifyTask(("a", "b", "oos")).fit_min_probability(doubtful, examples).min_probability == 0
    )  # it would lose what is right
    plain = ClassifyTask(("a", "b"))
    assert plain.fit_min_probability(sure[:2, :2], examples[:2]) is plain
    assert ClassifyTask(("a", "oos"), min_probability=0.9).result(np.array([0.0, 1.0])).probability == pytest.approx(
        0.731, abs=1e-3
    )


@pytest.mark.slow
def test_the_floor_goes_into_the_model(start, tmp_path, monkeypatch):
    """What was measured on held-out examples is what the finished model says of them."""
    rng = np.random.default_rng(0)
    known = [*texts(80), *(TextExample(words(rng, TOPICS[3][:5], 4), None, "oos") for _ in range(20))]
    dev = [*texts(30, 9), *(TextExample(words(rng, TOPICS[3 * (n % 2)][:5], 4), None, "oos") for n in range(20))]
    seen = []
    before = ClassifyTask.fit_min_probability
    monkeypatch.setattr(
        ClassifyTask, "fit_min_probability", lambda self, *given: seen.append(before(self, *given)) or seen[-1]
    )
    options = FinetuneSettings(epochs=3, batch_size=16, learning_rate=2e-3, device="cpu")
    done = tune.finetune_examples("classify", known, dev, tmp_path, start, options)
    albert = Albert(done.model)
    assert albert.task.min_probability == 0.5 and albert.task in seen
    found = albert.task.measure(predict(albert, dev, "classify"), dev)
    assert found == pytest.approx(done.metrics, abs=1e-6)


def test_seeds_are_summed_up_and_the_best_is_kept(start, tmp_path):
    options = FinetuneSettings(epochs=2, batch_size=16, learning_rate=3e-3, seeds=3, device="cpu")
    done = tune.finetune_examples("classify", texts(80), texts(40, 9), tmp_path, start, options)
    found = [run["metrics"]["accuracy"] for run in done.runs]
    assert len(found) == 3 and done.metrics["accuracy"] == max(found)
    mean, spread = read_artifact(done.model).metadata.metrics["dev over seeds"]["accuracy"]
    assert mean == pytest.approx(np.mean(found)) and spread == pytest.approx(np.std(found, ddof=1))
    assert "Over 3 seeds" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_weights(start, tmp_path, monkeypatch):
    options = FinetuneSettings(epochs=4, batch_size=16, learning_rate=1e-3, device="cpu")
    tune.finetune_examples("classify", texts(60), texts(30, 9), tmp_path / "straight", start, options)

    class Died(Exception):
        pass

    with monkeypatch.context() as patch:
        before, seen = FinetuneTask.next_batch, []

        def fatal(self, *given):
            seen.append(1)
            if len(seen) == 10:
                raise Died
            return before(self, *given)

        patch.setattr(FinetuneTask, "next_batch", fatal)
        with pytest.raises(Died):
            tune.finetune_examples("classify", texts(60), texts(30, 9), tmp_path / "killed", start, options)
    tune.finetune_examples("classify", texts(60), texts(30, 9), tmp_path / "killed", start, options)
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("straight", "killed")]
    assert weights[0] == weights[1]


def test_micro_parts_and_checkpointing_change_nothing(start):
    """The gradient of a batch, whole, in parts of two, and with activations computed again."""
    found = []
    for micro, again in ((None, False), (2, False), (None, True)):
        settings = TrainSettings(steps=1, batch_size=8, micro_batch_size=micro, device="cpu")
        work = FinetuneTask(make_task("classify", texts(8)), start, texts(8), (), settings, 40)
        work.model.encoder.checkpointing = again
        work.model.heads["classify"].dropout.p = 0.0
        from albertkit.train.distributed import ProcessGroup

        parts, tokens = work.next_batch(0, 0.5, ProcessGroup(0, 1, torch.device("cpu")))
        assert len(parts) == (4 if micro else 1) and tokens > 0
        for part in parts:
            (work.objective(*part)[0] / len(parts)).backward()
        found.append(work.model.encoder.groups[0][0].ffn.up.weight.grad)
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found[2], found[0], atol=1e-6, rtol=1e-4)


def test_class_weights_and_temperature():
    task = make_task("classify", [TextExample("a", label="x")] * 30 + [TextExample("b", label="y")] * 10)
    assert tune._with_class_weights(
        task, [TextExample("a", label="x")] * 30 + [TextExample("b", label="y")] * 10
    ).class_weights == pytest.approx((2 / 3, 2))
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 4000)
    calm = np.stack([-(2 * truth - 1.0), 2 * truth - 1.0], 1) + rng.normal(0, 1, (4000, 2))
    examples = [TextExample("", label="xy"[t]) for t in truth]
    assert task.fit_temperature(calm * 6, examples) == pytest.approx(6 * task.fit_temperature(calm, examples), rel=0.02)
    loud = ClassifyTask(("x", "y"), temperature=4.0)
    assert loud.result(np.array([4.0, 0.0])).probability == pytest.approx(1 / (1 + np.exp(-1)))


def test_what_is_said_before_anything_is_trained(start, tmp_path):
    with pytest.raises(AlbertkitError, match="all 3 examples have the class 'x'"):
        make_task("classify", [TextExample("a", label="x")] * 3)
    task = make_task("classify", [TextExample("a", label="x"), TextExample("b", label="y")])
    assert task.target(TextExample("a", label="z", where="d:7")) is None
    with pytest.raises(AlbertkitError, match="unknown task 'clasify' .did you mean 'classify'"):
        make_task("clasify", [])
    with pytest.raises(AlbertkitError, match="no metric 'beauty'. Choose one of accuracy"):
        options = FinetuneSettings(epochs=1, metric="beauty", device="cpu")
        tune.finetune_examples("classify", texts(20), texts(20, 9), tmp_path, start, options)
    bare = Artifact(start.config, start.weights)
    with pytest.raises(AlbertkitError, match="no tokenizer"):
        FinetuneTask(task, bare, texts(4), (), TrainSettings(steps=1))


def test_presets_follow_the_size():
    from albertkit.config import preset

    rates = [preset_learning_rate(preset(name)) for name in ("tiny-zh", "small", "base", "large", "xxlarge")]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 5
    assert preset_epochs(100) > preset_epochs(10_000) > preset_epochs(1_000_000)


def test_metrics_of_one_class_and_of_nothing_are_defined():
    task = ClassifyTask(("a", "b"))
    found = task.measure(
        [Classification("a"), Classification("a")], [TextExample("", label="a"), TextExample("", label="a")]
    )
    assert found["accuracy"] == 1.0 and found["f1"] == 0.0
    assert task.target(TextExample("", label="c")) is None and task.target(TextExample("", label="a")) == 0


def test_the_command_line_from_a_file_to_a_label(start, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    write_artifact(start, tmp_path / "start")
    for name, count, seed in (("train", 160, 0), ("dev", 40, 9)):
        rows = [f"{e.text}\t{e.label}" for e in texts(count, seed)]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    run = CliRunner()
    done = run.invoke(app, ["finetune", "classify", str(tmp_path / "train.tsv"), "--dev", str(tmp_path / "dev.tsv"), "-o",
                            str(tmp_path / "out"), "--model", str(tmp_path / "start"), "--epochs", "8", "--learning-rate",
                            "3e-3", "--batch-size", "16", "--device", "cpu"])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "160 examples are few for training the whole model; --freeze may give better results" in done.stderr
    found = run.invoke(app, ["evaluate", "-m", str(tmp_path / "out"), str(tmp_path / "dev.tsv"), "--json"])
    assert json.loads(found.stdout.splitlines()[-1])["accuracy"] > 0.8, found.output
    said = run.invoke(app, ["classify", "-m", str(tmp_path / "out"), "cat dog cow hen", "--json"])
    assert json.loads(said.stdout)["label"] == "animal"


def test_a_finished_fine_tuning_run_again_stays_as_it_is(start, tmp_path):
    options = FinetuneSettings(epochs=3, batch_size=16, learning_rate=3e-3, device="cpu")
    first = tune.finetune_examples("classify", texts(60), texts(30, 9), tmp_path, start, options)
    before = read_artifact(first.model)
    again = tune.finetune_examples("classify", texts(60), texts(30, 9), tmp_path, start, options)
    after = read_artifact(again.model)
    assert again.metrics == first.metrics and after.metadata.details == before.metadata.details
    assert all(np.array_equal(after.weights[name], weight) for name, weight in before.weights.items())
    with pytest.raises(AlbertkitError, match="other examples"):
        tune.finetune_examples("classify", texts(60, 5), texts(30, 9), tmp_path, start, options)


def test_a_class_that_only_held_out_examples_have_counts_as_missed(start, tmp_path):
    dev = [*texts(20, 9), TextExample("cat dog", label="fish")]
    options = FinetuneSettings(epochs=1, batch_size=16, device="cpu")
    done = tune.finetune_examples("classify", texts(40), dev, tmp_path, start, options)
    assert done.metrics["accuracy"] <= 20 / 21 and (tmp_path / "report.md").is_file()


def test_the_lowest_rmse_is_the_best(start, tmp_path):
    options = FinetuneSettings(epochs=6, batch_size=16, learning_rate=3e-3, metric="rmse", device="cpu")
    done = tune.finetune_examples(
        "classify", texts(100, kind="regression"), texts(40, 9, "regression"), tmp_path, start, options
    )
    lines = [json.loads(line) for line in (tmp_path / "runs" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert done.metrics["rmse"] == pytest.approx(
        min(line["rmse"] for line in lines if line["kind"] == "eval"), abs=1e-5
    )


def test_what_is_held_out_when_nothing_is_said():
    from albertkit.tasks.dataset import split_examples
    from albertkit.tasks.examples import DialogueTurn

    turns = [DialogueTurn(str(n // 4), n % 4, "", "") for n in range(80)]
    train, dev = split_examples(turns)
    assert len(train) + len(dev) == 80 and not {t.dialogue for t in train} & {t.dialogue for t in dev} and dev
    assert [len(part) for part in split_examples(texts(50))] == [45, 5]


def test_a_run_that_was_begun_with_adamw_resumes_with_it(start, tmp_path):
    """As runs from before Muon was the preset: nothing says which optimizer was meant."""
    options = FinetuneSettings(epochs=2, batch_size=16, learning_rate=3e-3, max_length=40, device="cpu")
    lines: list[str] = []
    for how in ({"optimizer": "adamw"}, {"resume": True}, {"overwrite": True}):
        chosen = dataclasses.replace(options, **how)
        tune.finetune_examples("classify", texts(64), texts(20, 9), tmp_path, start, chosen, lines.append)
    optimizers = [line.split("epochs), ")[1].split(",")[0] for line in lines if "steps of" in line]
    assert optimizers == ["adamw", "adamw", "muon"]  # a run that is overwritten has the preset


@pytest.mark.parametrize(
    ("name", "value"), [("optimizer", "adamw"), ("epochs", 3.0), ("learning_rate", 0.1), ("elastic", True)]
)
def test_frozen_heads_refuse_settings_of_training_steps(name, value):
    """Otherwise they would have no effect, without a word."""
    with pytest.raises(AlbertkitError, match=f"{name}={value!r} is not available: .*Omit --.* or --freeze"):
        FinetuneSettings(freeze=True, **{name: value})


def test_settings_of_generation_are_errors_for_other_tasks(tmp_path, start):
    for settings in ({"label_smoothing": 0.1}, {"target_length": 8}):
        with pytest.raises(AlbertkitError, match="are for the task generate, not classify"):
            chosen = FinetuneSettings(device="cpu", **settings)
            tune.finetune_examples("classify", texts(20), texts(8), tmp_path, start, chosen, print)
