"""The adapters of bench/adapters.py: they begin with the plain model, train what they should alone, and lie in files as a plain model with a head more."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from albertkit.artifact import Artifact, read_artifact
from albertkit.model import AlbertModel
from albertkit.tasks import make_task
from albertkit.tasks.examples import TextExample
from albertkit.tokenizer import Tokenizer
from albertkit.train.loop import train
from albertkit.train.train_settings import TrainSettings
from tests.conftest import ROOT, program, tiny
from tests.train.conftest import TOPICS, VOCAB

EXAMPLES = [
    TextExample(f"{word} {word}", label=name) for name, ring in (("a", TOPICS[1]), ("b", TOPICS[2])) for word in ring
]
SETTINGS = TrainSettings(steps=3, batch_size=4, learning_rate=0.01, evaluations=3, tensorboard=False, device="cpu")


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT / "bench"))
    yield program("bench/adapters")
    sys.path.remove(str(ROOT / "bench"))


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1)
    return Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))


def work(bench, start, way):
    return bench.Adapting(way, make_task("classify", EXAMPLES), start, EXAMPLES, EXAMPLES, SETTINGS, 32)


def moved(before, after) -> set[str]:
    return {name for name in before if not np.array_equal(before[name], after[name])}


def test_adapters_begin_with_the_plain_model_and_train_only_what_they_should(bench, start, tmp_path):
    plain, adapted = work(bench, start, bench.Way(embeddings=True)), work(bench, start, bench.Way(rank=2))
    for a, b in zip(plain.scores(plain.dev_features), adapted.scores(adapted.dev_features), strict=True):
        np.testing.assert_array_equal(a, b)  # B is 0, and heads are drawn alike
    learns = set(bench.trained(adapted.model))
    before = {name: p.detach().clone() for name, p in adapted.model.named_parameters()}
    outcome = train(adapted, SETTINGS, tmp_path / "run")
    after = dict(adapted.model.named_parameters())
    assert moved(before, {name: p.detach() for name, p in after.items()}) == learns
    assert {name.split(".")[-1] for name in learns if ".groups." in name} == {"a", "b"}
    assert not any(name.startswith("encoder.embeddings.") for name in learns)
    assert {"encoder.pooler.weight", "heads.classify.linear.weight"} <= learns
    h, f, head = 32, 48, (32 * 32 + 32) + (2 * 32 + 2)
    assert sum(p.numel() for p in bench.trained(adapted.model).values()) == 2 * (4 * 2 * h + 2 * (h + f)) + head
    merged = read_artifact(outcome.model)
    rest = {name: array for name, array in merged.weights.items() if not name.startswith("heads.adapters.")}
    changed = moved(start.weights, merged.weights)
    assert {n for n in changed if ".groups." in n} == set(adapted.model.linears)  # sums, under the matrices' own names
    again = work(bench, Artifact(merged.config, rest, merged.tokenizer), bench.Way(embeddings=True))
    again.model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in rest.items()})
    for a, b in zip(adapted.scores(adapted.dev_features), again.scores(again.dev_features), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_checkpoint_puts_the_adapters_back(bench, start, tmp_path):
    adapted = work(bench, start, bench.Way(rank=2))
    outcome = train(adapted, SETTINGS, tmp_path / "run")
    wanted = adapted.scores(adapted.dev_features)
    place = adapted.place()
    with torch.no_grad():
        for tensor in bench.trained(adapted.model).values():
            tensor.add_(1.0)
    adapted.restore(read_artifact(outcome.model), place)
    for a, b in zip(wanted, adapted.scores(adapted.dev_features), strict=True):
        np.testing.assert_array_equal(a, b)


def test_frozen_embeddings_stay_and_the_rest_learns(bench, start, tmp_path):
    frozen = work(bench, start, bench.Way())
    outcome = train(frozen, SETTINGS, tmp_path / "run")
    after = read_artifact(outcome.model).weights
    still = {name for name in set(start.weights) - moved(start.weights, after) if not name.endswith("key.bias")}
    # a bias of all keys changes no attention: its gradient is rounding
    assert still == {name for name in start.weights if name.startswith("encoder.embeddings.")}


def test_what_a_task_adds_is_what_was_trained(bench, start, tmp_path):
    sizes = {}
    for way in (bench.Way(embeddings=True), bench.Way(), bench.Way(rank=1)):
        made = work(bench, start, way)
        outcome = train(made, SETTINGS, tmp_path / str(way))
        sizes[way] = bench.added(made, outcome.model, [example.text for example in EXAMPLES])
        if way.rank:
            assert 0 < sizes[way] - sum(4 * p.numel() for p in bench.trained(made.model).values()) < 4096  # the header
    assert sizes[bench.Way(embeddings=True)] > sizes[bench.Way()] > 0
