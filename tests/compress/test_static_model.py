"""The static tier: a table that embeds like any model, whose arithmetic can be written down, and which refuses the
rest.
"""

from __future__ import annotations

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, read_stored, write_artifact
from albertkit.compress.prune import PruneSettings, prune
from albertkit.compress.quantize import quantize
from albertkit.compress.static_model import (
    SIF_A,
    WHITENING_POWER,
    make_static_model,
    token_frequencies,
    token_vectors,
    whiten,
)
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.runtime.embed import pool, split_texts
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE, tiny
from tests.test_albert import TEXTS, make

WORDS = [t for t in TEXTS if t]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A model of a small English vocabulary."""
    folder = tmp_path_factory.mktemp("static")
    write_artifact(make(tiny(vocab_size=3000)), folder / "whole")
    prune(folder / "whole", folder / "model", PruneSettings(vocabulary=[*WORDS, "cats dogs trees"]))
    return folder / "model"


@pytest.fixture(scope="module")
def table(source):
    report = make_static_model(source, source.parent / "table", dim=12)
    assert report.dim == 12 and report.has_frequencies and 0 < report.explained_variance <= 1
    return source.parent / "table"


def test_vector_is_the_weighted_mean_of_its_tokens(source, table):
    albert, whole = Albert(table), Albert(source, threads=1)
    tokenizer = albert.tokenizer
    vectors = token_vectors(whole)
    alone = whole.embed([t for t in ("one", "test") if len(tokenizer.ids_batch([t])[0]) == 1], normalize=False)
    ids = [tokenizer.ids_batch([t])[0][0] for t in ("one", "test") if len(tokenizer.ids_batch([t])[0]) == 1]
    assert len(ids) == 2 and np.abs(vectors[ids] - alone).max() < 1e-5
    heard = np.setdiff1d(np.arange(len(vectors)), sorted(tokenizer.vocabulary.hidden))
    rows, _ = whiten(vectors, heard, 12)
    known = token_frequencies(tokenizer, None)
    for text in WORDS:
        pieces = tokenizer.ids_batch([text])[0]
        want = (rows[pieces] * (SIF_A / (SIF_A + known[pieces]))[:, None]).sum(0)
        assert np.abs(albert.embed(text) - want / np.linalg.norm(want)).max() < 1e-5


def test_directions_are_scaled_by_variance():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(500, 6)) * [8, 4, 2, 1, 0.5, 0.01] + 3).astype(np.float32)
    rows, share = whiten(vectors, np.arange(500), 4)
    assert np.abs(rows.mean(0)).max() < 1e-4 and 0.99 < share < 1
    spread = np.cov(rows.T)
    assert np.abs(spread - np.diag(np.diag(spread))).max() < 1e-3
    wanted = np.sort(np.linalg.eigvalsh(np.cov(vectors.T)))[::-1][:4] ** (1 - 2 * WHITENING_POWER)
    assert np.allclose(np.diag(spread), wanted, rtol=0.01)


def test_frequent_tokens_weigh_less():
    tokenizer = Tokenizer.from_spiece(SPIECE)
    for texts in (None, ["the cat"] * 3 + ["the dog"]):
        known = token_frequencies(tokenizer, texts)
        the, cat, rare = (tokenizer.ids_batch([w])[0][0] for w in ("the", "cat", "zebra"))
        assert known.sum() == pytest.approx(1) and known[the] > known[cat] > known[rare] and not known[tokenizer.cls_id]


def test_many_texts_one_text_and_batches_agree(table):
    albert = Albert(table)
    many = albert.embed(TEXTS * 50)
    assert many.shape == (250, 12) and np.abs(many[:5] - np.stack([albert.embed(t) for t in TEXTS])).max() < 1e-6
    assert not many[2].any() and np.allclose(
        np.linalg.norm(many[[0, 1, 3, 4]], axis=1), 1, atol=1e-5
    )  # "" has no pieces
    long = " ".join(WORDS * 800)
    assert np.abs(albert.embed(long) - albert.embed(" ".join(WORDS))).max() < 0.05
    # the general way through `run` and pooling, as the server goes, gives the same
    from albertkit.runtime.batching import token_batches

    pieces = split_texts(albert, WORDS, albert.embed_options()).ids
    for batch in token_batches(pieces):
        found = pool(albert, albert.engine.run(batch, 1), batch.lengths, "mean")
        assert np.abs(found - albert.embed(WORDS, normalize=False)[batch.order]).max() < 1e-6


def test_static_model_is_a_normal_artifact(table, tmp_path):
    stored = read_stored(table)
    assert list(stored.weights) == ["encoder.embeddings.word.weight"] and stored.metadata.task == "embed"
    assert stored.config.to_dict()["model_type"] == "albertkit"
    report = quantize(table, tmp_path / "int8", 8)
    assert report.bytes < 0.5 * report.bytes_before and report.cosine_least > 0.999
    assert (Albert(tmp_path / "int8").embed(WORDS) * Albert(table).embed(WORDS)).sum(1).min() > 0.999
    assert (Albert(table, bits=8).embed(WORDS) * Albert(table).embed(WORDS)).sum(1).min() > 0.999
    prune(table, tmp_path / "less", PruneSettings(vocabulary=WORDS[:2]))
    assert np.abs(Albert(tmp_path / "less").embed(WORDS[:2]) - Albert(table).embed(WORDS[:2])).max() < 1e-6
    assert read_artifact(tmp_path / "less").config.vocab_size < stored.config.vocab_size


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.embed("x", depth=2), "one vector per token"),
        (lambda a: a.embed("x", layer=0), "one vector per token"),
        (lambda a: a.embed("x", pooling="cls"), "has only mean"),
        (lambda a: a.fill_mask("a [MASK]"), "cannot fill masks"),
        (lambda a: a.classify("x"), "classify is not available"),
        (lambda a: a.tag("x"), "tag is not available"),
        (lambda a: a.answer("x", "y"), "answer is not available"),
    ],
)
def test_static_model_rejects_what_needs_layers(table, call, message):
    with pytest.raises(AlbertkitError, match=message):
        call(Albert(table))


def test_static_model_errors(table, source, tmp_path):
    for call, message in (
        (lambda: Albert(table, depth=2), "no layers"),
        (lambda: Albert(table, device="torch"), "Omit device"),
        (lambda: AlbertModel.from_artifact(table), "no layers"),
        (lambda: make_static_model(table, tmp_path / "x"), "is a static model already"),
        (lambda: make_static_model(source, tmp_path / "x", dim=33), "1 to 32"),
        (lambda: prune(table, tmp_path / "x", PruneSettings(heads=1)), "only its vocabulary"),
    ):
        with pytest.raises(AlbertkitError, match=message):
            call()
    assert not (tmp_path / "x").exists()


def test_a_frozen_classifier_on_a_table(table, tmp_path):
    """Classes in microseconds: the head reads the mean vector."""
    pytest.importorskip("sklearn")
    from albertkit.tasks.examples import TextExample
    from albertkit.train.frozen_head import fit_head

    examples = [TextExample(f"cats dogs {i}", label="animal") for i in range(8)] + [
        TextExample(f"trees {i}", label="plant") for i in range(8)
    ]
    made = fit_head(Albert(table), read_artifact(table), examples)
    assert isinstance(made, Artifact)
    write_artifact(made, tmp_path / "classes")
    found = Albert(tmp_path / "classes").classify(["dogs", "trees"])
    assert [label.label for label in found] == ["animal", "plant"]


def test_tables_are_8_bits_and_counted_in_texts(source, table, tmp_path):
    with pytest.raises(AlbertkitError, match="bits=4 is not available: a static model is stored in 8 bits"):
        quantize(table, tmp_path / "four", 4)
    with pytest.raises(AlbertkitError, match="token frequencies cannot be counted"):
        make_static_model(source, tmp_path / "none", texts=["", " "])
    assert not any(tmp_path.iterdir())
