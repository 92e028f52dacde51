"""Calibration texts of a model without texts: generated, plain sentences, or random tokens; and the commands name
which.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.cli.entry_point import app
from albertkit.compress.quantize import split_texts
from albertkit.errors import AlbertkitError
from albertkit.runtime import activation_moments as calibrate
from albertkit.runtime.activation_moments import (
    example_tokens,
    random_tokens,
    reads_english,
    synthetic_kind,
    synthetic_tokens,
)
from albertkit.tokenizer import Tokenizer
from tests.conftest import tiny
from tests.test_albert import make
from tests.train.conftest import VOCAB

SMALL = tiny(vocab_size=3000, max_position_embeddings=40)


@pytest.fixture(scope="module")
def vectors():
    """A model that cannot fill masks."""
    return dataclasses.replace(make(SMALL, ()), metadata=ArtifactMetadata(task="embed"))


@pytest.fixture
def foreign(tmp_path):
    """A vocabulary that cannot spell English."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCAB[:5], *map(chr, range(0x4E00, 0x4E80))]) + "\n", "utf-8")
    return Tokenizer.from_vocab(tmp_path / "vocab.txt")


def test_model_without_mlm_head_is_calibrated_on_sentences(vectors):
    tokenizer = vectors.tokenizer
    ids = synthetic_tokens(vectors, texts=8)
    assert synthetic_kind(vectors) == calibrate.SENTENCES and ids == synthetic_tokens(vectors, texts=8)
    said = [tokenizer.decode(row) for row in ids]
    assert "".join(said).isascii() and np.mean([" the " in f" {text} " or " a " in f" {text} " for text in said]) > 0.5
    assert {(row[0], row[-1]) for row in ids} == {(tokenizer.cls_id, tokenizer.sep_id)}
    assert max(map(len, ids)) <= 40 and 4 * 64 < sum(map(len, ids)) < 16 * 64
    assert not {tuple(row) for row in ids} & {tuple(row) for row in synthetic_tokens(vectors, texts=8, seed=1)}


def test_own_text_depends_on_head_and_vocabulary(vectors, foreign):
    assert synthetic_kind(make(SMALL)) == calibrate.GENERATED
    assert not reads_english(foreign) and reads_english(vectors.tokenizer)
    assert synthetic_kind(dataclasses.replace(vectors, tokenizer=foreign)) == calibrate.RANDOM
    assert synthetic_kind(dataclasses.replace(vectors, tokenizer=None)) == calibrate.RANDOM
    assert example_tokens(SMALL, foreign, 3) == example_tokens(SMALL, None, 3) == random_tokens(SMALL, 3)


def test_commands_print_which_texts_were_compared(vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_artifact(vectors, tmp_path / "float")
    (tmp_path / "lines.txt").write_text("".join(f"text {i} is here\n" for i in range(200)))

    def said(*line):
        done = CliRunner().invoke(app, list(line), catch_exceptions=False)
        return next(row for row in done.output.splitlines() if "ranking of the similarities" in row)

    for verb in (["quantize", "float", "a", "--force"], ["prune", "float", "b", "--ffn", "1/2", "--force"]):
        assert "of 64 built-in English sentences: Spearman" in said(*verb)
        assert "of 20 texts: Spearman" in said(*verb, "-f", "lines.txt")


def test_model_quantized_on_opening_is_calibrated_on_sentences(vectors, tmp_path, monkeypatch):
    write_artifact(vectors, tmp_path / "float")
    seen = []
    watch = calibrate.record_inputs
    monkeypatch.setattr(calibrate, "record_inputs", lambda config, weights, ids, *more: (seen.extend(ids), watch(config, weights, ids, *more))[1])  # fmt: skip
    Albert(tmp_path / "float", bits=4, threads=1)
    assert seen == example_tokens(SMALL, vectors.tokenizer, 16)


@pytest.mark.parametrize("wrong", ["one text that is long", ["a text"] * 20 + [None]], ids=["str", "None"])
def test_calibration_texts_that_are_no_list_of_texts_are_an_error(vectors, wrong):
    told = "one text, 'one text that is long'. Pass a list" if isinstance(wrong, str) else "text 20 is missing"
    for read in (split_texts, lambda texts: calibrate.calibration_tokens(vectors, texts)):
        with pytest.raises(AlbertkitError, match=told):
            read(wrong)
