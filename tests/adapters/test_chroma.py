"""A collection of Chroma embeds with the model, and opens with it again."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from albertkit import Albert, AlbertkitError
from albertkit.artifact import model_folder
from tests.adapters.conftest import QUERY, TEXTS

chromadb = pytest.importorskip("chromadb")
from chromadb.config import Settings  # noqa: E402
from chromadb.utils.embedding_functions import known_embedding_functions  # noqa: E402

from albertkit.adapters.chroma import AlbertEmbeddingFunction  # noqa: E402


@pytest.fixture(scope="module")
def function():
    return AlbertEmbeddingFunction(depth=3, dim=64)


def open_client(folder):
    return chromadb.PersistentClient(str(folder), Settings(anonymized_telemetry=False))


def test_vectors_are_those_of_the_model(function):
    expected = Albert(depth=3).embed(TEXTS, dim=64)
    assert np.allclose(function(TEXTS), expected, atol=1e-6)
    assert np.allclose(function.embed_query(TEXTS), expected, atol=1e-6)


def test_chroma_knows_the_function_and_its_whole_protocol(function, recwarn):
    assert known_embedding_functions["albertkit"] is AlbertEmbeddingFunction and not function.is_legacy()
    again = AlbertEmbeddingFunction.build_from_config(json.loads(json.dumps(function.get_config())))
    assert again.get_config() == function.get_config()
    assert function.default_space() == "cosine"
    assert not [one for one in recwarn if issubclass(one.category, DeprecationWarning) and "implement" in str(one)]


def test_a_collection_opens_again_with_its_model(function, tmp_path):
    made = open_client(tmp_path).create_collection("notes", embedding_function=function)
    made.add(ids=["1", "2", "3"], documents=TEXTS)
    assert made.query(query_texts=[QUERY], n_results=1)["ids"] == [["1"]]
    chromadb.api.client.SharedSystemClient.clear_system_cache()
    again = open_client(tmp_path).get_collection("notes")
    found = again.query(query_texts=[QUERY], n_results=1)
    assert found["ids"] == [["1"]]
    cosine = float(np.dot(function([TEXTS[0]])[0], function([QUERY])[0]))
    assert found["distances"][0][0] == pytest.approx(1 - cosine, abs=1e-3)


def test_a_model_that_changed_since_is_an_error(tmp_path):
    folder = shutil.copytree(model_folder("small"), tmp_path / "model")
    config = AlbertEmbeddingFunction(folder).get_config()
    shutil.rmtree(folder)
    shutil.copytree(model_folder("small-zh"), folder)
    with pytest.raises(AlbertkitError, match=r"model is now model .* but the collection has vectors of"):
        AlbertEmbeddingFunction.build_from_config(config)


def test_changes_that_would_mix_vectors_are_errors(function):
    old = function.get_config()
    function.validate_config_update(old, {**old, "model": "/elsewhere"})
    for change in ({"version": "other"}, {"dim": 32}):
        with pytest.raises(AlbertkitError, match="do not mix"):
            function.validate_config_update(old, {**old, **change})
    with pytest.raises(AlbertkitError, match="unknown key 'width'"):
        AlbertEmbeddingFunction.validate_config({**old, "width": 3})
