"""Opening a corpus: everything that can be wrong with the folder is one sentence."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from albertkit.data.corpus import CorpusSettings, build_corpus
from albertkit.data.shards import Shards, token_dtype, token_ids, word_bit, word_starts
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from tests.data.sample_texts import text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "a.txt").write_text(text(120), encoding="utf-8")
    tokenizer = Tokenizer.train(text(100).split("\n"), vocab_size=150)
    build_corpus(
        [folder / "a.txt"], folder / "out", tokenizer, CorpusSettings(shard_tokens=4000, held_out=0.1), workers=1
    )
    return folder / "out"


@pytest.fixture
def corpus(made, tmp_path):
    shutil.copytree(made, tmp_path / "out")
    return tmp_path / "out"


def test_the_highest_bit_marks_word_starts():
    assert token_dtype(32768) == np.uint16 and token_dtype(32769) == np.uint32
    assert word_bit(np.uint16) == 0x8000 and word_bit(np.uint32) == 0x80000000
    tokens = np.array([5, 5 | 0x8000, 0x7FFF], np.uint16)
    assert token_ids(tokens).tolist() == [5, 5, 0x7FFF] and token_ids(tokens).dtype == np.uint16
    assert word_starts(tokens).tolist() == [False, True, False]


def test_open_shards_have_the_arrays_of_the_corpus(corpus):
    shards = Shards.open(corpus, verify=True)
    assert shards.folder == corpus and shards.vocabulary == shards.tokenizer().vocab_size
    assert shards.split("train")[0].tokens.dtype == np.uint16 and shards.unigrams().shape == (shards.vocabulary,)
    names = [shard.name for shard in shards.split("train")]
    assert names == [f"train-{i:05d}" for i in range(len(names))] and len(names) > 2
    for shard in shards.split("train"):
        assert shard.sentences[-1] == len(shard.tokens) and shard.documents[-1] == len(shard.sentences)
        assert (np.diff(shard.sentences.astype(int)) > 0).all() and not shard.tokens.flags.writeable
    with pytest.raises(AlbertkitError, match="split is 'test'; choose one of train, held-out"):
        shards.split("test")


def change(corpus, **values):
    path = corpus / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def spoil_entry(corpus, **values):
    data = json.loads((corpus / "manifest.json").read_text())
    data["splits"]["train"][0].update(values)
    change(corpus, splits=data["splits"])


def save(name, array):
    return lambda corpus: np.save(corpus / name, array)


SPOILT = {
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "Rerun the command to resume"),
    "no folder": (shutil.rmtree, "is not a folder"),
    "not json": (lambda c: (c / "manifest.json").write_text("{"), "is not valid JSON"),
    "format": (lambda c: change(c, format=2), "has format 2"),
    "vocabulary": (lambda c: change(c, vocabulary="many"), "is incomplete"),
    "dtype": (lambda c: change(c, dtype="uint32"), "is incomplete"),
    "splits": (lambda c: change(c, splits=[]), "is incomplete"),
    "entry": (lambda c: spoil_entry(c, tokens="3"), "is incomplete"),
    "outside": (lambda c: spoil_entry(c, name="../train"), "is incomplete"),
    "files": (lambda c: spoil_entry(c, files={}), "is incomplete"),
    "missing": (lambda c: (c / "train-00001.tokens.npy").unlink(), "train-00001.tokens.npy is missing"),
    "empty": (lambda c: (c / "train-00001.tokens.npy").write_bytes(b""), "is not a complete .npy file"),
    "short": (
        lambda c: (c / "train-00001.tokens.npy").write_bytes((c / "train-00001.tokens.npy").read_bytes()[:-2]),
        "is not a complete .npy file",
    ),
    "length": (save("train-00000.tokens.npy", np.zeros(3, np.uint16)), "contains uint16"),
    "type": (save("train-00000.sentences.npy", np.zeros(3)), "contains float64"),
    "pickle": (save("train-00000.sentences.npy", np.array([{}])), "is not a complete .npy file"),
    "unigrams": (save("unigrams.npy", np.zeros(3, np.int64)), "contains int64"),
    "tokenizer": (lambda c: (c / "tokenizer" / "tokenizer.json").write_text("{}"), "tokenizer in .* has changed"),
    "no tokenizer": (lambda c: shutil.rmtree(c / "tokenizer"), "is missing"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_damaged_folders_are_errors(corpus, name):
    spoil, said = SPOILT[name]
    spoil(corpus)
    with pytest.raises(AlbertkitError, match=said):
        Shards.open(corpus)


def test_ends_that_do_not_fit_are_errors(corpus):
    path = corpus / "train-00000.sentences.npy"
    ends = np.load(path)
    ends[-1] += 1
    np.save(path, ends)
    with pytest.raises(AlbertkitError, match="the file is damaged"):
        Shards.open(corpus)


def test_verify_finds_a_flipped_bit(corpus):
    path = corpus / "train-00000.tokens.npy"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    Shards.open(corpus)
    with pytest.raises(AlbertkitError, match="has changed since it was written"):
        Shards.open(corpus, verify=True)
