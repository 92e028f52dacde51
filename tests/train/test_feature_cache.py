"""A head on frozen vectors encodes each text once: in one process, and from one run of a folder to the next."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.model import AlbertModel
from albertkit.sklearn import AlbertClassifier
from albertkit.tasks.examples import TextExample
from albertkit.tokenizer import Tokenizer
from albertkit.train import frozen_head as frozen
from albertkit.train.frozen_head import OVERHEAD, VectorCache
from albertkit.train.train_settings import FinetuneSettings
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of one shape."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tokenizer, made = Tokenizer.from_vocab(folder / "vocab.txt"), []
    for seed in range(2):
        torch.manual_seed(seed)
        config = tiny(vocab_size=len(VOCAB), initializer_range=0.1)
        made.append(write_artifact(Artifact(config, AlbertModel(config).weights(), tokenizer), folder / str(seed)))
    return made


@pytest.fixture
def encoded(monkeypatch):
    """How many texts each call of the encoder got; nothing is remembered yet."""
    counts: list[int] = []
    honest = frozen.encode_ids

    def counted(albert, ids):
        counts.append(len(ids))
        return honest(albert, ids)

    monkeypatch.setattr(frozen, "encode_ids", counted)
    monkeypatch.setattr(frozen, "VECTOR_CACHE", VectorCache(2**20))
    return counts


def examples(count: int, seed: int = 0) -> list[TextExample]:
    """Texts of six words, none twice."""
    rng, made = np.random.default_rng(seed), {}
    while len(made) < count:
        topic = int(rng.integers(1, 3))
        made[" ".join(rng.choice(TOPICS[topic], 6))] = ["", "animal", "tree"][topic]
    return [TextExample(text, label=label) for text, label in made.items()]


def test_a_second_fit_encodes_nothing_and_gives_the_same(models, encoded):
    given = examples(24)
    one, other = (frozen.fit_head(Albert(models[0]), read_artifact(models[0]), given) for _ in range(2))
    assert encoded == [24, 0]
    for name in ("heads.classify.linear.weight", "heads.classify.linear.bias"):
        np.testing.assert_array_equal(one.weights[name], other.weights[name])


def test_a_text_that_comes_twice_is_encoded_once(models, encoded):
    given = examples(5)
    found = frozen.encode_texts(Albert(models[0]), [*given, *given[::-1]], 40)
    assert encoded == [5]
    np.testing.assert_array_equal(found[:5], found[5:][::-1])
    np.testing.assert_allclose(found[:5], Albert(models[0]).embed([e.text for e in given]), atol=1e-5)
    assert frozen.encode_texts(Albert(models[0]), [], 40).shape == (0, 32)


def test_another_model_or_length_encodes_again(models, encoded):
    given, one, other = examples(6), Albert(models[0]), Albert(models[1])
    first = frozen.encode_texts(one, given, 40)
    assert not np.allclose(first, frozen.encode_texts(other, given, 40), atol=1e-3)
    assert not np.allclose(first, frozen.encode_texts(one, given, 5), atol=1e-3)
    frozen.encode_texts(Albert(models[0], depth=1), given, 40)
    frozen.encode_texts(Albert(models[0], bits=8), given, 40)
    assert encoded == [6] * 5
    np.testing.assert_array_equal(first, frozen.encode_texts(one, given, 39))  # nothing is cut: the same tokens
    assert encoded[5:] == [0]


def test_a_search_over_settings_encodes_each_text_once(models, encoded):
    given = examples(24)
    labels = np.array([e.label for e in given])
    GridSearchCV(AlbertClassifier(models[0]), {"seed": [0, 1]}, cv=2).fit([e.text for e in given], labels)
    assert sum(encoded) == 24


def test_the_bound_holds_and_the_longest_unused_go_first(models, encoded, monkeypatch):
    size = 4 * 32 + OVERHEAD
    held = VectorCache(10 * size)
    monkeypatch.setattr(frozen, "VECTOR_CACHE", held)
    given, albert = examples(25), Albert(models[0])
    whole = frozen.encode_texts(albert, given, 40)
    assert len(held) == 10 and held.bytes <= held.limit
    np.testing.assert_allclose(frozen.encode_texts(albert, given[15:], 40), whole[15:], atol=1e-6)
    frozen.encode_texts(albert, given[:1], 40)  # forgotten; the one that goes for it is 15
    frozen.encode_texts(albert, given[16:], 40)
    frozen.encode_texts(albert, given[15:16], 40)
    assert encoded == [25, 0, 1, 0, 1] and len(held) == 10


def freeze(model, out, monkeypatch, dev, **options):
    """As a process of its own would: nothing is remembered but what the folder holds."""
    monkeypatch.setattr(frozen, "VECTOR_CACHE", VectorCache(2**20))
    return frozen.train_frozen_head("classify", examples(24), dev, out, model, FinetuneSettings(freeze=True, **options))


def test_a_second_run_of_a_folder_reads_its_vectors(models, encoded, tmp_path, monkeypatch):
    dev = examples(10, 7)
    texts = len({e.text for e in [*examples(24), *dev]})
    first = freeze(models[0], tmp_path, monkeypatch, dev)
    assert sum(encoded) == texts
    again = freeze(models[0], tmp_path, monkeypatch, dev, class_weights=True)
    assert sum(encoded) == texts and again.metrics.keys() == first.metrics.keys()
    freeze(models[1], tmp_path, monkeypatch, dev)
    assert sum(encoded) == 2 * texts
    freeze(models[0], tmp_path, monkeypatch, dev)  # the folder holds the vectors of the last run only
    assert sum(encoded) == 3 * texts


@pytest.mark.parametrize("damage", ["cut", "nonsense", "another array", "too large"])
def test_a_damaged_file_of_vectors_is_as_none(models, encoded, tmp_path, monkeypatch, damage):
    freeze(models[0], tmp_path, monkeypatch, [])
    file, count = tmp_path / "vectors.npy", sum(encoded)
    if damage == "another array":
        np.save(file, np.zeros(3))
    elif damage == "too large":
        monkeypatch.setattr(frozen, "MAX_CACHE_BYTES", 100)
    else:
        file.write_bytes(file.read_bytes()[:500] if damage == "cut" else b"nonsense")
    freeze(models[0], tmp_path, monkeypatch, [])
    assert sum(encoded) == 2 * count


def test_what_the_report_scores_is_what_the_model_says(models, encoded, tmp_path, monkeypatch):
    dev = examples(12, 7)
    done = freeze(models[0], tmp_path, monkeypatch, dev)
    said = Albert(done.model).classify([e.text for e in dev])
    assert done.metrics["accuracy"] == np.mean([s.label == e.label for s, e in zip(said, dev, strict=True)])
