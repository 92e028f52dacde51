"""What a training that learnt nothing looks like on held-out examples, and what a folder refuses to go on with."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albertkit.artifact import write_artifact
from albertkit.errors import AlbertkitError
from albertkit.sklearn import AlbertClassifier
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import Span, TaggedExample, TextExample
from albertkit.tasks.match import MatchTask
from albertkit.tasks.tag import Entity, IntentResult, IntentTask, TagResult, TagTask
from albertkit.train import collapse, finetune_runs
from albertkit.train import finetune as tune
from albertkit.train.collapse import LossCurve, no_learning_reason, steps_at_preset_rate
from albertkit.train.finetune_task import FinetuneTask, loss_settings
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings, TrainSettings
from tests.train.conftest import TOPICS
from tests.train.test_finetune import start as start  # the fixture
from tests.train.test_finetune import tagged
from tests.train.test_finetune import texts as topics

QUICK = FinetuneSettings(epochs=1, batch_size=16, max_length=16, restarts=0, device="cpu")


def texts(count: int) -> list[TextExample]:
    return [
        TextExample(f"{TOPICS[1 + n % 2][n % 5]} {TOPICS[0][n % 7]}", label="animal" if n % 2 == 0 else "tree")
        for n in range(count)
    ]


def work(task, scores, targets, dev=None) -> SimpleNamespace:
    features = [SimpleNamespace(target=target) for target in targets]
    results = task.results(list(scores), features, ())
    dev = [TextExample("", label=str(n)) for n in range(len(targets))] if dev is None else dev
    return SimpleNamespace(
        task=task, dev=dev, dev_features=features, features=[[f] for f in features], last_scores=list(scores),
        results=results,
    )  # fmt: skip


# Values --------------------------------------------------------------------------------------------------------------

VALUES = ClassifyTask((), "regression", mean=3.0, std=2.0)


@given(st.integers(0, 1000), st.floats(-3, 3), st.integers(20, 300))
def test_values_that_hardly_differ_are_a_collapse_and_those_in_the_right_order_are_not(seed, constant, count):
    """Also those that are all too high, or too far apart."""
    rng = np.random.default_rng(seed)
    right = rng.normal(size=count)
    flat = constant + 1e-3 * rng.normal(size=(count, 1))
    assert "no closer" in (no_learning_reason(work(VALUES, flat, right.tolist())) or "")
    for size in (0.5, 1.0, 5.0):
        knows = constant + size * (right[:, None] + 0.5 * rng.normal(size=(count, 1)))
        assert no_learning_reason(work(VALUES, knows, right.tolist())) is None


def test_few_values_or_equal_ones_say_nothing():
    right = np.linspace(-1, 1, 19)
    flat = 1e-3 * np.sin(np.arange(60.0))[:, None]
    assert no_learning_reason(work(VALUES, flat[:19], right.tolist())) is None
    assert no_learning_reason(work(VALUES, flat, [0.5] * 60)) is None


# Collapsed, too short, or not general --------------------------------------------------------------------------------


def curve(*means: float, steps: int = 1000) -> LossCurve:
    return LossCurve(means, steps)


def test_a_loss_that_rises_again_has_risen_and_one_that_stays_has_not():
    flat, falling = curve(2.2, *[0.8] * 9), curve(2.2, 0.8, *[0.7] * 8)
    rises, learnt = curve(2.2, 0.8, 0.6, *[1.2] * 7), curve(2.2, 0.5, *[0.01] * 7, 0.02)
    assert [one.has_risen for one in (flat, falling, rises, learnt)] == [False, False, True, False]
    assert [one.has_fallen for one in (flat, falling, rises, learnt)] == [False, True, False, True]
    assert not curve(1.0, 2.0).has_risen and not curve().has_risen  # too few lines to tell


def test_a_small_rise_of_a_small_loss_is_no_collapse(tmp_path):
    run = work(VALUES, np.zeros((4, 1)), [0.0, 1.0, 2.0, 3.0])  # too few to show anything
    run.examples = []
    for losses, is_collapse in (([0.011, *[0.01] * 8, 0.0133], False), ([1.1, *[1.0] * 8, 1.33], True)):
        lines = [json.dumps({"step": n, "kind": "train", "loss": loss}) for n, loss in enumerate(losses)]
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
        assert (collapse.find_failure(run, tmp_path, 1e-4) is not None) == is_collapse  # type: ignore[arg-type]


def test_steps_count_by_their_learning_rate():
    settings = TrainSettings(steps=1000, learning_rate=1e-4, warmup_ratio=0.1)
    assert steps_at_preset_rate(settings, 1000, preset_rate=1e-4) == pytest.approx(500)  # it rises, and falls to 0
    assert steps_at_preset_rate(settings, 100, preset_rate=1e-4) == pytest.approx(50, abs=1)  # patience ended it
    assert steps_at_preset_rate(settings, 1000, preset_rate=1e-2) == pytest.approx(5)  # far below the preset
    assert steps_at_preset_rate(settings, 1000, preset_rate=1e-4 / 30) == pytest.approx(15_000)


def run_few_steps(start, tmp_path, task: str, examples: list, **options) -> tuple[dict, list[str]]:
    said: list[str] = []
    settings = dataclasses.replace(QUICK, restarts=2, **options)
    done = tune.finetune_examples(task, examples, examples[:20], tmp_path, start, settings, said.append)
    return done.runs[0], said


def test_too_few_steps_are_no_collapse_and_the_remedy_names_options_of_the_task(start, tmp_path):
    """Constant predictions after few steps: no restart. `--freeze` is for single texts with one class each."""
    still = {n: w * 0 if n.startswith("encoder.groups") else w for n, w in start.weights.items()}
    still = dataclasses.replace(start, weights=still)
    pairs = [dataclasses.replace(example, pair="one") for example in texts(40)]
    values = [dataclasses.replace(e, label=float(n % 2)) for n, e in enumerate(texts(40))]
    for name, task, examples, can_freeze in (
        ("classes", "classify", texts(40), True),
        ("pairs", "classify", pairs, False),
        ("values", "classify", values, False),
        ("tags", "tag", tagged(40), False),
    ):
        run, said = run_few_steps(still, tmp_path / name, task, examples, learning_rate=1e-5)
        assert run["collapsed"] == 0 and run["failure"] == "too short", name
        assert "more --epochs, or a smaller --batch-size" in said[-1] and ("--freeze" in said[-1]) == can_freeze
        assert "**Too short:**" in (tmp_path / name / "report.md").read_text()


def test_thirty_times_the_learning_rate_is_a_collapse_and_starts_again(start, tmp_path):
    """3e-3 suits this model with AdamW."""
    settings = {"epochs": 15, "optimizer": "adamw"}
    learns, _ = run_few_steps(start, tmp_path / "a", "classify", topics(64), learning_rate=3e-3, **settings)
    run, said = run_few_steps(start, tmp_path / "b", "classify", topics(64), learning_rate=9e-2, **settings)
    assert "failed" not in learns and learns["collapsed"] == 0
    restarts = [text for text in said if "restarting with learning rate" in text]
    assert "the model predicts the same for every example" in restarts[0] and "rate 0.045" in restarts[0]
    assert run["collapsed"] >= 1


def test_examples_that_were_learnt_by_heart_do_not_start_again(start, tmp_path, monkeypatch):
    """Each held-out text has both classes in turn: predictions differ, and none can be known."""
    monkeypatch.setattr(collapse, "MIN_STEPS", 20)
    train = [TextExample(f"{TOPICS[1 + n % 2][n % 5]} {TOPICS[0][n % 7]}", label=f"{n % 2}") for n in range(480)]
    dev = [TextExample(e.text, label=label) for e in train[:60] for label in ("0", "1")]
    options = dataclasses.replace(QUICK, epochs=7, learning_rate=3e-3, restarts=1)
    done = tune.finetune_examples("classify", train, dev, tmp_path, start, options)
    assert done.runs[0]["failure"] == "does not generalize" and done.runs[0]["collapsed"] == 0


def test_the_best_start_is_kept_and_not_the_last(start, tmp_path, monkeypatch):
    scores = iter([0.196, 0.206, 0.0])
    failure = collapse.Failure("collapsed", "the model predicts the same intent for every text", "Pass more epochs.")

    def once(job, seed, factor, log):
        result = SimpleNamespace(model=tmp_path, metrics={"f1": next(scores)})
        return finetune_runs.Attempt(
            SimpleNamespace(selection_metric="f1"), result, failure, {"seed": seed, "rate": factor}
        )  # type: ignore[arg-type]

    monkeypatch.setattr(finetune_runs, "_run_once", once)
    said: list[str] = []
    job = SimpleNamespace(settings=dataclasses.replace(QUICK, restarts=2))
    kept = finetune_runs._run_with_restarts(job, 7, said.append)  # type: ignore[arg-type]
    assert kept.score == 0.206 and kept.summary["seed"] == 1007 and kept.summary["collapsed"] == 2
    assert len(said) == 3 and "no restart is left" in said[-1]


# Intents and several labels ------------------------------------------------------------------------------------------


def understood(intents: str) -> list[IntentResult]:
    return [IntentResult(i, 0.9, (Entity(0, 1 + n, "x", "X", 1.0),)) for n, i in enumerate(intents)]


def test_one_intent_for_everything_is_a_collapse_though_slots_differ():
    def judged(right: str, found: str) -> str | None:
        dev = [TaggedExample("a" * 9, ((0, 1 + n),), (Span(0, 1 + n, "X"),), i) for n, i in enumerate(right)]
        task = IntentTask(("a", "b"), ("O", "B-X", "I-X"))
        return no_learning_reason(SimpleNamespace(task=task, dev=dev, results=understood(found)))  # type: ignore[arg-type]

    assert judged("ababab", "aaaaaa") == "the model predicts the same intent for every text"
    assert judged("ababab", "aaabaa") is None and judged("aaaaaa", "aaaaaa") is None


def test_entities_have_no_intent_to_be_the_same():
    """Though the examples have some, which only `intent` learns."""
    dev = [TaggedExample("a" * 9, ((0, 1 + n),), (Span(0, 1 + n, "X"),), "ab"[n % 2]) for n in range(6)]
    results = [TagResult("a" * 9, found.spans) for found in understood("ababab")]
    assert no_learning_reason(SimpleNamespace(task=TagTask(("O", "B-X", "I-X")), dev=dev, results=results)) is None  # type: ignore[arg-type]


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from([1.0, 8.0]))
def test_several_labels_that_no_text_or_hardly_one_gets_are_a_collapse(seed, size):
    """Rare labels: saying of each how frequent it is, whatever the text, is a low loss, and teaches nothing."""
    rng = np.random.default_rng(seed)
    labels = tuple(f"l{n}" for n in range(10))
    task, shares = ClassifyTask(labels, "multi"), np.linspace(0.02, 0.2, 10)
    right = (rng.random((400, 10)) < shares).astype(float)
    shared = np.log(shares / (1 - shares)) + 0.002 * rng.normal(size=right.shape)
    shared[7] += 9  # one text gets labels
    assert no_learning_reason(work(task, shared, right.tolist())) == "correct labels are no more likely than by chance"
    knows = size * (rng.normal(size=right.shape) + 4 * right - 3)
    assert no_learning_reason(work(task, knows, right.tolist())) is None
    assert no_learning_reason(work(task, shared[:99], right[:99].tolist())) is None  # too few to tell


# The folder of another training --------------------------------------------------------------------------------------


def test_only_what_changes_the_training_is_another_training():
    assert loss_settings(ClassifyTask(("a", "b"), temperature=2.0, threshold=0.3, min_probability=0.5)) == []
    assert loss_settings(ClassifyTask(("a", "b"), class_weights=(1.0, 2.0))) == [("class_weights", (1.0, 2.0))]
    assert loss_settings(MatchTask(loss="mnrl", scale=5.0)) == [("loss", "mnrl"), ("scale", 5.0)]
    assert loss_settings(MatchTask(margin=0.1)) == [("margin", 0.1)] and loss_settings(object()) == []


@pytest.mark.slow
def test_the_same_folder_with_class_weights_or_another_loss_is_refused(start, tmp_path):
    said: list[str] = []

    def tuned(
        name: str,
        task: str,
        examples: list[TextExample],
        dev: list[TextExample],
        options: FinetuneSettings,
        **settings: str,
    ) -> None:
        tune.finetune_examples(task, examples, dev, tmp_path / name, start, options, said.append, **settings)

    examples, weighed = texts(33), dataclasses.replace(QUICK, class_weights=True)
    tuned("classes", "classify", examples, examples[:8], QUICK)
    with pytest.raises(AlbertkitError, match="other settings: class_weights False → True. Pass --resume"):
        tuned("classes", "classify", examples, examples[:8], weighed)
    with pytest.raises(AlbertkitError, match="another loss, pruning or seed. Choose another"):
        tuned("classes", "classify", examples, examples[:8], dataclasses.replace(weighed, resume=True))
    tuned("classes", "classify", examples, examples[:8], QUICK)
    assert not any("other held-out examples" in text for text in said)
    tuned("classes", "classify", examples, examples[:9], QUICK)
    assert sum("other held-out examples" in text for text in said) == 1
    pairs = [
        TextExample(e.text, f.text, str(n % 2)) for n, (e, f) in enumerate(zip(examples, examples[2:], strict=False))
    ]
    tuned("pairs", "match", pairs, pairs[:8], QUICK, loss="cosent")
    with pytest.raises(AlbertkitError, match="or another loss"):
        tuned("pairs", "match", pairs, pairs[:8], QUICK, loss="contrastive")


def test_other_depths_are_another_training(start):
    from albertkit.train.elastic import ElasticTask

    def identity(**given: float) -> str:
        task, settings = ClassifyTask(("animal", "tree")), TrainSettings(steps=1, device="cpu")
        return ElasticTask(task, start, texts(4), (), settings, ElasticSettings(max_length=16, **given)).identity  # type: ignore[arg-type]

    assert (
        identity() == identity(epochs=3.0)
        and len({identity(), identity(distill_weight=0.25), identity(shallow_weight=0.3)}) == 3
    )


# scikit-learn --------------------------------------------------------------------------------------------------------


def test_the_classifier_holds_out_and_warns_of_a_collapse(start, tmp_path):
    from sklearn.exceptions import ConvergenceWarning

    write_artifact(start, tmp_path / "start")
    examples = texts(60)
    rows, labels = [e.text for e in examples], [e.label for e in examples]
    model = AlbertClassifier(
        tmp_path / "start", frozen=False, epochs=8, learning_rate=3e-3, batch_size=16, max_length=16
    )
    model.fit(rows, labels)
    assert model.score(rows, labels) > 0.9 and "dev" in model.albert_.metadata.metrics
    assert model.predict_proba(rows[:3]).shape == (3, 2)
    dead = dataclasses.replace(start, weights={n: np.zeros_like(w) for n, w in start.weights.items()})
    write_artifact(dead, tmp_path / "dead")
    with pytest.warns(ConvergenceWarning, match=r"the training failed.*frozen=True"):
        AlbertClassifier(tmp_path / "dead", frozen=False, epochs=1, learning_rate=1e-6, max_length=16).fit(rows, labels)


def test_a_normal_identity_is_as_before(start):
    """Folders of trainings with the usual settings can be gone on with, whatever else a task has learnt of itself."""
    settings = TrainSettings(steps=1, device="cpu")
    plain = FinetuneTask(ClassifyTask(("animal", "tree")), start, texts(4), (), settings, 16)
    settled = FinetuneTask(ClassifyTask(("animal", "tree"), temperature=1.7), start, texts(4), (), settings, 16)
    assert plain.identity == settled.identity
