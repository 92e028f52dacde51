"""An argument of a wrong type is an `AlbertkitError` with the value, the rule and the remedy, never a raw traceback."""

from __future__ import annotations

import numpy as np
import pytest

from albertkit import (
    Albert,
    AlbertkitError,
    ExportSettings,
    Index,
    Record,
    TextExample,
    Tokenizer,
    cluster,
    convert,
    evaluate,
    finetune,
    open_model,
)
from albertkit.errors import check_count, check_type
from albertkit.train.train_settings import FinetuneSettings

EXAMPLES = [TextExample(f"{word} {i}", label=word) for i in range(6) for word in ("good", "bad")]


@pytest.fixture(scope="module")
def albert() -> Albert:
    return Albert(threads=1)


@pytest.fixture(scope="module")
def index(albert, tmp_path_factory):
    with Index.create(tmp_path_factory.mktemp("index") / "notes.idx", albert) as made:
        made.add([Record("1", "a cat"), Record("2", "a dog")])
        yield made


CALLS = {
    "a model": lambda a, i, out: Albert(5),
    "bytes as a model": lambda a, i, out: Albert(b"small"),
    "a model to open": lambda a, i, out: open_model([1]),
    "a model to convert": lambda a, i, out: convert(5, out),
    "a device": lambda a, i, out: Albert(device=5),
    "a token budget": lambda a, i, out: Albert(token_budget="3"),
    "a depth of a model": lambda a, i, out: Albert(depth="3"),
    "texts": lambda a, i, out: a.embed(5),
    "a text of several": lambda a, i, out: a.embed([1, 2]),
    "a dictionary of texts": lambda a, i, out: a.embed({"a cat": 1}),
    "a set of texts": lambda a, i, out: a.embed({"a cat", "a dog"}),
    "None as a text": lambda a, i, out: a.similarity(None, "a cat"),
    "a depth": lambda a, i, out: a.embed("a cat", depth="3"),
    "dimensions": lambda a, i, out: a.embed("a cat", dim=1.5),
    "a layer": lambda a, i, out: a.embed("a cat", layer=True),
    "normalize": lambda a, i, out: a.embed("a cat", normalize="no"),
    "a text with a mask": lambda a, i, out: a.fill_mask(5),
    "a number of words": lambda a, i, out: a.fill_mask("a [MASK]", k="3"),
    "a text to explain": lambda a, i, out: a.explain(5),
    "a pair to explain": lambda a, i, out: a.explain("a cat", pair=5),
    "methods of explanation": lambda a, i, out: a.explain("a cat", methods=5),
    "a question": lambda a, i, out: a.answer(5, "a cat"),
    "the path of an index": lambda a, i, out: Index.open(5, a),
    "the model of an index": lambda a, i, out: Index.create(out / "x.idx", "small"),
    "records": lambda a, i, out: i.add(5),
    "a record": lambda a, i, out: i.add(["a cat"]),
    "ids": lambda a, i, out: i.delete(5),
    "a query": lambda a, i, out: i.search(5),
    "queries": lambda a, i, out: i.search_many(5),
    "a number of hits": lambda a, i, out: i.search("a cat", k="3"),
    "half a hit": lambda a, i, out: i.search("a cat", k=1.5),
    "a lowest score": lambda a, i, out: i.search("a cat", min_score="0.5"),
    "exact": lambda a, i, out: i.search("a cat", exact="no"),
    "texts to cluster": lambda a, i, out: cluster(["a cat", "a dog"]),
    "a number of clusters": lambda a, i, out: cluster(np.eye(3), k="2"),
    "a seed of clusters": lambda a, i, out: cluster(np.eye(3), seed=1.5),
    "a task": lambda a, i, out: finetune([1], EXAMPLES, output=out),
    "training examples": lambda a, i, out: finetune("classify", 5, output=out),
    "examples from a generator": lambda a, i, out: finetune("classify", iter(EXAMPLES), output=out),
    "held-out examples": lambda a, i, out: finetune("classify", EXAMPLES, 5, output=out),
    "an output": lambda a, i, out: finetune("classify", EXAMPLES, output=5),
    "a base model": lambda a, i, out: finetune("classify", EXAMPLES, output=out, model=5, freeze=True),
    "settings": lambda a, i, out: finetune("classify", EXAMPLES, output=out, settings={"epochs": 1}),
    "epochs": lambda a, i, out: finetune("classify", EXAMPLES, output=out, epochs="3"),
    "a flag": lambda a, i, out: finetune("classify", EXAMPLES, output=out, freeze="no"),
    "a log": lambda a, i, out: finetune("classify", EXAMPLES, output=out, log=5),
    "a model to evaluate": lambda a, i, out: evaluate(5, EXAMPLES),
    "a text to tokenize": lambda a, i, out: a.tokenizer.encode(5),
    "texts to tokenize": lambda a, i, out: a.tokenizer.encode_batch([5]),
    "a tokenizer": lambda a, i, out: Tokenizer.load(5),
    "a setting of export": lambda a, i, out: ExportSettings(unsigned="no"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_type_is_an_error_with_the_remedy(albert, index, tmp_path, name):
    with pytest.raises(AlbertkitError, match=r"(?i)\b(pass|remove|write|convert)\b"):
        CALLS[name](albert, index, tmp_path / "out")


def test_the_error_names_the_value_its_type_and_the_rule():
    with pytest.raises(AlbertkitError, match=r"^k='3' is a str; pass a whole number from 1 to 5\.$"):
        check_count("k", "3", 1, 5)
    with pytest.raises(AlbertkitError, match=r"^k=True is a bool; pass a whole number of 1 or more\.$"):
        check_count("k", True)
    with pytest.raises(AlbertkitError, match=r"^x=array\(\[\[0"):
        check_type("x", np.zeros((50, 50)), (str,), "a text in quotes")


def test_numbers_and_flags_of_numpy_are_accepted(albert, index):
    assert index.search("a cat", k=np.int64(1), min_score=np.float32(0.1), exact=np.bool_(True))
    assert albert.embed("a cat", normalize=np.bool_(False), layer=np.int64(1)).shape == (384,)
    assert len(albert.fill_mask("a [MASK]", k=np.int64(2))[0]) == 2
    assert FinetuneSettings(epochs=np.float64(2), seed=np.int64(3)).seed == 3
