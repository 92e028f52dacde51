"""`finetune --nearest`: the class whose mean sentence vector is nearest, in the format of every head on frozen vectors."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from sklearn.base import clone
from sklearn.neighbors import NearestCentroid

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.artifact import read_artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.runtime.embed import unit_length
from albertkit.sklearn import AlbertClassifier
from albertkit.tasks.examples import TextExample
from albertkit.train.finetune import finetune
from albertkit.train.frozen_head import fit_head
from albertkit.train.linear_heads import USUAL_SCALE, choose_scale, fit_logistic, fit_nearest
from albertkit.train.train_settings import FinetuneSettings
from tests.conftest import ROOT

FILE = str(ROOT / "examples" / "messages.tsv")
TEXTS = ["Where is my parcel?", "The zip is broken.", "Lovely shoes, thank you!", "I cannot log in."]
LABELS = ["delivery", "broken", "praise", "account"]
OTHERS = [
    "My order has not come yet.",
    "It broke on the first day.",
    "The best coat I ever had.",
    "My password is wrong.",
]


def cloud(rng, centre, count):
    return unit_length(centre + 0.35 * rng.normal(size=(count, len(centre))))


def draw(seed, counts, dim=24):
    """Vectors of length 1 around one direction per class, and others of the same classes to test on."""
    rng = np.random.default_rng(seed)
    centres = unit_length(rng.normal(size=(len(counts), dim)))
    parts = [cloud(rng, centre, count) for centre, count in zip(centres, counts, strict=True)]
    tests = [cloud(rng, centre, 100) for centre in centres]
    targets = np.repeat(np.arange(len(counts)), counts)
    return np.concatenate(parts), targets, np.concatenate(tests), np.repeat(np.arange(len(counts)), 100)


def accuracy(head, vectors, targets):
    return float(((vectors @ head.weight.T + head.bias).argmax(1) == targets).mean())


# The head --------------------------------------------------------------------------------------------------------


def test_equal_classes_are_classified_as_scikit_learn_does():
    vectors, targets, test, _ = draw(0, [5, 5, 5, 5])
    head = fit_nearest(vectors, targets)
    expected = NearestCentroid().fit(vectors, targets).predict(test)
    assert (test @ head.weight.T + head.bias).argmax(1).tolist() == expected.tolist()


def test_rare_classes_are_predicted_as_often_as_others():
    """The distance to a centroid of few examples is corrected; without it, rare classes are hardly predicted."""
    corrected, plain, logistic = [], [], []
    for seed in range(5):
        vectors, targets, test, truth = draw(seed, [1, 20, 1, 20])
        corrected.append(accuracy(fit_nearest(vectors, targets), test, truth))
        plain.append(float((NearestCentroid().fit(vectors, targets).predict(test) == truth).mean()))
        logistic.append(accuracy(fit_logistic(vectors, targets), test, truth))
    assert np.mean(corrected) > max(np.mean(plain), np.mean(logistic)) + 0.1


def test_held_out_probabilities_are_those_of_heads_without_the_example():
    vectors, targets, _, _ = draw(1, [2, 3, 4])
    head = fit_nearest(vectors, targets)
    counts, scale = np.bincount(targets), head.details["scale"]
    centroids = np.stack([vectors[targets == c].mean(0) for c in range(3)])
    variance = sum(((vectors[targets == c] - centroids[c]) ** 2).sum() for c in range(3)) / (9 - 3)
    for place, target in enumerate(targets):
        kept = np.arange(9) != place
        own = np.stack([vectors[kept & (targets == c)].mean(0) for c in range(3)])
        sizes = counts - (np.arange(3) == target)
        logits = -scale / 2 * (((vectors[place] - own) ** 2).sum(1) - variance / sizes)
        expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose(head.held_out[place], expected, atol=1e-9)


def test_one_example_per_class_is_enough():
    vectors, targets, test, truth = draw(2, [1, 1, 1])
    head = fit_nearest(vectors, targets)
    assert head.held_out is None and head.details["scale"] == USUAL_SCALE
    assert accuracy(head, test, truth) > 0.5


def test_the_scale_follows_many_examples_and_not_a_few():
    sharp = np.array([[0.1, 0.0], [0.0, 0.1]])
    few = choose_scale(sharp, np.array([0, 1]))
    many = choose_scale(np.tile(sharp, (200, 1)), np.tile([0, 1], 200))
    assert USUAL_SCALE / 2 <= few <= 2 * USUAL_SCALE < many
    noise = np.random.default_rng(0).normal(size=(400, 2))
    assert choose_scale(noise, np.tile([0, 1], 200)) < USUAL_SCALE / 2


# The command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """A model of three examples per class."""
    output = tmp_path_factory.mktemp("nearest") / "messages"
    arguments = ["finetune", "classify", FILE, "-o", str(output), "--nearest", "--shots", "3"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert json.loads(done.stdout.splitlines()[-1]) == {"model": f"{output}/model"}
    return output / "model"


def test_the_model_predicts_the_nearest_class(messages):
    albert = Albert(messages)
    assert [result.label for result in albert.classify(TEXTS)] == LABELS
    step = albert.metadata.history[-1]
    assert step["head"] == "nearest centroid" and step["examples"] == 3 * len(albert.metadata.labels)
    assert albert.metadata.quantization == "int8" and (messages.parent / "report.md").is_file()


def test_commands_and_export_work_as_with_every_classifier(messages, tmp_path):
    result = CliRunner().invoke(app, ["classify", "-m", str(messages), "--json", TEXTS[0]], catch_exceptions=False)
    assert json.loads(result.stdout)["label"] == "delivery"
    result = CliRunner().invoke(
        app,
        ["evaluate", "-m", str(messages), str(ROOT / "examples" / "messages-dev.tsv"), "--json"],
        catch_exceptions=False,
    )
    assert json.loads(result.stdout)["accuracy"] > 0.7
    CliRunner().invoke(app, ["export", str(messages), str(tmp_path / "m.onnx")], catch_exceptions=False)
    albert, session = Albert(messages), onnxruntime.InferenceSession(tmp_path / "m.onnx")
    ids = np.array([albert.tokenizer.encode(TEXTS[0]).ids])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    (logits,) = session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})
    assert albert.metadata.labels[int(logits[0].argmax())] == "delivery"


def test_no_example_is_held_out_unless_dev_is_passed(tmp_path):
    one_each = [TextExample(text, label=label) for text, label in zip(TEXTS, LABELS, strict=True)]
    done = finetune("classify", one_each, output=tmp_path / "a", nearest=True)
    assert Albert(done.model).metadata.history[-1]["examples"] == 4 and done.metrics == {}
    dev = [TextExample(text, label=label) for text, label in zip(OTHERS, LABELS, strict=True)]
    done = finetune("classify", one_each, dev, output=tmp_path / "b", nearest=True)
    assert done.metrics["accuracy"] >= 0.75


@pytest.mark.parametrize("nearest", [True, False])
def test_one_example_per_class_still_finds_texts_in_scope(nearest):
    """Nothing is known about other texts in scope, so the limit comes from the texts out of scope alone."""
    in_scope = [TextExample(text, label=label) for text, label in zip(TEXTS, LABELS, strict=True)]
    outside = [
        TextExample(text, label="oos") for text in ("What is the capital of France?", "Sing a song.", "It rains.")
    ]
    base = builtin.resolve("small")
    settings = FinetuneSettings(freeze=not nearest, nearest=nearest)
    made = fit_head(Albert(base), read_artifact(base), in_scope, outside, settings)
    assert 0.25 < made.metadata.details["min_probability"] < 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 2}, "seeds=2 is not available"),
        ({"class_weights": True}, "class_weights is not available with nearest"),
    ],
)
def test_settings_without_an_effect_are_errors(options, message):
    with pytest.raises(AlbertkitError, match=message):
        FinetuneSettings(nearest=True, **options)


def test_tasks_without_classes_are_refused(tmp_path):
    rows = [TextExample("a", "b", 1.0), TextExample("c", "d", 0.0)]
    with pytest.raises(AlbertkitError, match="--nearest is not available for match"):
        finetune("match", rows, rows, output=tmp_path / "m", nearest=True)


# The estimator ---------------------------------------------------------------------------------------------------


def test_the_estimator_needs_one_example_per_class(tmp_path):
    model = clone(AlbertClassifier(nearest=True)).fit(TEXTS, LABELS)
    assert model.predict(OTHERS).tolist() == LABELS
    np.testing.assert_allclose(model.predict_proba(OTHERS).sum(1), 1, atol=1e-6)
    assert Albert(model.save(tmp_path / "m")).classify(OTHERS[0]).label == "delivery"
    with pytest.raises(AlbertkitError, match="frozen=False is not available"):
        AlbertClassifier(frozen=False, nearest=True).fit(TEXTS, LABELS)
