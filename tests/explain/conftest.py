"""One classifier that has really learnt something, and models of every task with random weights."""

from __future__ import annotations

import pytest

from albertkit.albert import Albert
from albertkit.explain import Explainer, ExplainInput, ExplainSettings, Explanation
from tests.serve.conftest import MADE, make
from tests.train import test_finetune as lessons


def explain(explainer: Explainer, text: str, pair=None, question=None, **settings) -> Explanation:
    return explainer.explain(ExplainInput(text, pair, question), ExplainSettings(**settings))


@pytest.fixture(scope="session")
def topics(tmp_path_factory):
    """Tells animals from trees; colours mean nothing."""
    start = lessons.start.__wrapped__(tmp_path_factory)
    options = lessons.FinetuneSettings(epochs=4, batch_size=16, learning_rate=5e-3, max_length=40, device="cpu")
    place = tmp_path_factory.mktemp("topics")
    return lessons.tune.finetune_examples(
        "classify", lessons.texts(160), lessons.texts(40, 9), place, start, options
    ).model


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("explained")
    return {name: make(place / name, *about) for name, about in MADE.items()}


@pytest.fixture(scope="session")
def explainers(folders) -> dict[str, Explainer]:
    return {name: Explainer(Albert(folder, threads=1)) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def learnt(topics) -> Explainer:
    return Explainer(Albert(topics, threads=1))
