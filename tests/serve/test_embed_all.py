"""Token vectors over HTTP, vectors that are not normalized, and the server's device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from albertkit.errors import AlbertkitError
from albertkit.serve.serve_settings import ServeSettings
from albertkit.serve.served_models import ModelSource, ServedModel
from tests.serve.conftest import Served

TEXTS = ["one", "a longer text with some more words", "", "two words"]
LONG = "many words " * 100


def close(found, wanted):
    assert len(found) == len(wanted)
    for one, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, right.vectors, atol=1e-5)


def test_embed_all_returns_the_vector_of_each_token(server, alberts):
    words = alberts["words"]
    close(server.post("/embed_all", {"inputs": TEXTS}).json(), words.token_vectors(TEXTS))
    close(server.post("/embed_all", {"inputs": "one"}).json(), words.token_vectors(["one"]))
    close(server.post("/embed_all", {"inputs": TEXTS, "layer": 1}).json(), words.token_vectors(TEXTS, layer=1))
    close(server.post("/embed_all", {"inputs": TEXTS, "depth": 2}).json(), words.token_vectors(TEXTS, depth=2))
    close(
        server.post("/embed_all", {"inputs": "one", "model": "pairs"}).json(), alberts["pairs"].token_vectors(["one"])
    )
    prompted = server.post("/embed_all", {"inputs": "one", "prompt_name": "query"}).json()
    close(prompted, words.token_vectors(["query: one"]))
    ids = words.tokenizer.encode("two words").ids
    close(server.post("/embed_all", {"inputs": ids}).json(), words.token_vectors(["two words"]))


def test_tokens_and_vectors_have_the_same_order(server):
    (tokens,) = server.post("/tokenize", {"inputs": TEXTS[1]}).json()
    (vectors,) = server.post("/embed_all", {"inputs": TEXTS[1]}).json()
    assert len(tokens) == len(vectors) and tokens[0]["special"]


def test_a_long_text_is_refused_or_truncated(server, alberts):
    answer = server.post("/embed_all", {"inputs": ["one", LONG]})
    assert answer.status_code == 413 and "text 1 " in answer.json()["error"] and "truncate" in answer.json()["error"]
    found = server.post("/embed_all", {"inputs": ["one", LONG], "truncate": True}).json()
    close(found, alberts["words"].token_vectors(["one", LONG]))


def test_an_unknown_prompt_is_an_error_that_lists_the_known(server):
    answer = server.post("/embed_all", {"inputs": "one", "prompt_name": "qeury"})
    assert answer.status_code == 422 and "the model has query, passage" in answer.json()["error"]


def test_openai_vectors_need_not_be_normalized(server, alberts):
    for normalize in (True, False, None):
        body = {"input": TEXTS, "model": "words", "normalize": normalize}
        found = [item["embedding"] for item in server.post("/v1/embeddings", body).json()["data"]]
        np.testing.assert_allclose(found, alberts["words"].embed(TEXTS, normalize=normalize), atol=1e-4)


def test_the_server_accepts_a_device(folders, alberts):
    with Served(f"words={folders['words']}", "--threads", 1, "--device", "cpu") as server:
        found = server.post("/embed", {"inputs": TEXTS}).json()
    np.testing.assert_allclose(found, alberts["words"].embed(TEXTS), atol=1e-5)
    opened = ServedModel.open(ModelSource("words", folders["words"]), ServeSettings(device="torch"), 1)
    np.testing.assert_allclose(opened.albert.embed(TEXTS), found, atol=1e-5)


def test_a_device_that_is_missing_is_an_error_at_the_start(folders):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(AlbertkitError, match="torch finds no GPU"):
        ServedModel.open(ModelSource("words", folders["words"]), ServeSettings(device="cuda"), 1)
