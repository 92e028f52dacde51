"""The estimators follow scikit-learn's conventions, by its own checks where these need no numbers as input."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from tests.adapters.conftest import TEXTS

pytest.importorskip("sklearn")
import joblib
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from albertkit import UnreadableTextError
from albertkit.errors import AlbertkitError
from albertkit.sklearn import AlbertClassifier, AlbertVectorizer

CHECKS = (  # the others fit tables of numbers
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_tags_renamed",
    "check_mixin_order",
)
LABELS = ["person", "thing", "thing"]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("estimator", [AlbertVectorizer(), AlbertClassifier()], ids=lambda one: type(one).__name__)
def test_scikit_learns_own_checks_pass(estimator, check):
    getattr(estimator_checks, check)(type(estimator).__name__, estimator)


def copies(estimator, folder):
    """The same estimator after every way to store it."""
    joblib.dump(estimator, folder / "estimator.joblib")
    return copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator)), joblib.load(folder / "estimator.joblib")


def test_a_stored_vectorizer_computes_the_same(tmp_path):
    vectorizer = AlbertVectorizer(depth=3)
    vectors = vectorizer.fit_transform(TEXTS)
    for again in copies(vectorizer, tmp_path):
        assert np.array_equal(again.transform(TEXTS), vectors)
    assert clone(vectorizer).get_params() == vectorizer.get_params() and not hasattr(clone(vectorizer), "albert_")


def test_columns_have_names(tmp_path):
    vectorizer = AlbertVectorizer(depth=3).fit(TEXTS).set_output(transform="pandas")
    table = vectorizer.transform(TEXTS)
    assert list(table.columns) == list(vectorizer.get_feature_names_out()) and table.columns[2] == "albertvectorizer2"


def test_a_stored_pipeline_predicts_the_same(tmp_path):
    pipeline = make_pipeline(AlbertVectorizer(depth=3), LogisticRegression()).fit(TEXTS, LABELS)
    for again in copies(pipeline, tmp_path):
        assert np.array_equal(again.predict_proba(TEXTS), pipeline.predict_proba(TEXTS))


def test_a_stored_classifier_predicts_the_same(tmp_path):
    classifier = AlbertClassifier(nearest=True).fit(TEXTS, LABELS)
    for again in copies(classifier, tmp_path):
        assert np.array_equal(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
        assert again.score(TEXTS, LABELS) == classifier.score(TEXTS, LABELS)
    assert not hasattr(clone(classifier), "classes_")


@pytest.mark.parametrize(("optimizer", "frozen"), [(None, True), ("adamw", False), (None, False)])
def test_the_optimizer_of_a_classifier_is_that_of_finetune(monkeypatch, optimizer, frozen):
    passed = []

    def record(*arguments, settings=None, **_):
        passed.append(settings or arguments[5])
        raise InterruptedError

    monkeypatch.setattr("albertkit.train.frozen_head.fit_head", record)
    monkeypatch.setattr("albertkit.train.finetune.finetune_examples", record)
    with pytest.raises(InterruptedError):
        AlbertClassifier(optimizer=optimizer, frozen=frozen).fit(TEXTS, LABELS)
    assert passed[0].optimizer == optimizer


def test_a_frozen_classifier_refuses_settings_without_an_effect():
    with pytest.raises(AlbertkitError, match="epochs=3 is not available: .*frozen=False in AlbertClassifier"):
        AlbertClassifier(epochs=3).fit(TEXTS, LABELS)


@pytest.mark.parametrize("options", [{}, {"nearest": True}], ids=["logistic", "nearest"])
def test_texts_that_the_model_cannot_read_are_an_error(options):
    with pytest.raises(UnreadableTextError, match="small-zh can read it"):
        AlbertClassifier(**options).fit(["我想退货", "今天天气很好"] * 5, ["return", "weather"] * 5)


@pytest.mark.parametrize("missing", [float("nan"), np.float32("nan"), None])
def test_a_missing_label_is_an_error(missing):
    with pytest.raises(AlbertkitError, match=f"one label is {missing}"):
        AlbertClassifier().fit(TEXTS, ["a", "b", missing])


def test_numbers_from_numpy_in_a_list_are_labels():
    classifier = AlbertClassifier(nearest=True).fit(TEXTS, [np.int64(1), np.int64(2), np.int64(2)])
    assert classifier.classes_.tolist() == [1, 2]


def test_no_texts_have_one_column_per_class():
    assert AlbertClassifier(nearest=True).fit(TEXTS, LABELS).predict_proba([]).shape == (0, 2)


def test_one_text_is_one_row():
    assert AlbertVectorizer(depth=3).fit(TEXTS).transform("a cat").shape == (1, 384)


def test_the_model_of_a_classifier_can_be_stored_and_is_deleted_with_it():
    classifier = AlbertClassifier(nearest=True).fit(TEXTS, LABELS)
    folder = classifier.albert_.source
    again = pickle.loads(pickle.dumps(classifier.albert_))
    assert again.classify(TEXTS[0]).label == classifier.predict(TEXTS)[0] and folder.is_dir()
    del classifier
    gc.collect()
    assert not folder.exists()
