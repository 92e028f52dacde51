"""Golden results: answers of every endpoint of a server, without the names of their fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.comparison import Results, differences, flat, one_thread
from tests.golden.material import albertkit, finetuned, place, text_file, tiny_model
from tests.serve.conftest import Served

KINDS = ("single", "pair", "multi", "regression", "tag", "intent", "answer", "choose", "generate")
TEXTS = ["red cat dog hen pink", "oak elm blue", "one two three four five six " * 12, ""]
IDS = [[2, 20, 21, 3], [2, 9, 3]]
MEASURED = ("second", "created", "version", "uptime", "sha", "share")  # of a clock, or of this installation
POSTS: list[tuple[str, str, dict[str, Any]]] = [
    ("openai", "/v1/embeddings", {"model": "words", "input": TEXTS, "encoding_format": "float"}),
    ("openai-base64", "/v1/embeddings", {"model": "words", "input": TEXTS[0], "encoding_format": "base64"}),
    ("openai-ids", "/v1/embeddings", {"model": "words", "input": IDS, "dimensions": 8}),
    ("embed", "/embed", {"inputs": TEXTS}),
    ("embed-layer", "/embed", {"inputs": TEXTS, "layer": 1, "pooling": "max", "normalize": False}),
    ("embed-all", "/embed_all", {"inputs": TEXTS[:2], "depth": 2}),
    ("embed-truncate", "/embed", {"inputs": TEXTS[2], "truncate": True}),
    ("root", "/", {"inputs": TEXTS[0]}),
    ("rerank", "/rerank", {"query": "cat", "texts": TEXTS[:3], "return_text": True}),
    ("rerank-pairs", "/rerank", {"query": "cat", "texts": TEXTS[:3], "model": "pair"}),
    ("predict", "/predict", {"inputs": TEXTS[0], "model": "single"}),
    ("predict-many", "/predict", {"inputs": [["cat", "hen"], ["oak", "elm"]], "model": "pair", "raw_scores": True}),
    ("similarity", "/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}),
    ("tokenize", "/tokenize", {"inputs": TEXTS}),
    ("decode", "/decode", {"ids": IDS}),
    ("classify", "/classify", {"texts": TEXTS, "model": "single"}),
    ("classify-depth", "/classify", {"texts": TEXTS, "model": "single", "depth": 2}),
    ("classify-pairs", "/classify", {"texts": TEXTS, "pairs": TEXTS[::-1], "model": "pair"}),
    ("classify-multi", "/classify", {"texts": TEXTS, "model": "multi"}),
    ("classify-regression", "/classify", {"texts": TEXTS, "model": "regression"}),
    ("tag", "/tag", {"texts": TEXTS}),
    ("intent", "/intent", {"texts": TEXTS}),
    ("answer", "/answer", {"question": "which animal ?", "context": "red blue cat oak elm fir"}),
    ("choose", "/choose", {"context": "red", "question": "which animal ?", "choices": ["cat", "oak"]}),
    ("fill", "/fill", {"texts": ["a [MASK] cat", "[MASK] and [MASK]"], "k": 3, "model": "words"}),
    ("generate", "/generate", {"texts": TEXTS[:2]}),
    ("generate-beams", "/generate", {"texts": TEXTS[:2], "beams": 3, "no_repeat": 2}),
    ("similar", "/similar", {"texts": TEXTS, "others": ["cat", "oak"], "depth": 2, "dimensions": 9}),
    ("search-texts", "/search", {"query": "cat", "texts": TEXTS, "k": 2}),
    ("search-text", "/search", {"query": "cat", "text": "One cat. Two dogs.\n\nA tree .", "k": 9}),
    ("search-hybrid", "/search", {"query": "red cat", "k": 3}),
    ("search-vector", "/search", {"query": "red cat", "k": 3, "mode": "vector"}),
    ("search-keyword", "/search", {"query": "red cat", "k": 3, "mode": "keyword"}),
    ("explain", "/explain", {"text": "a [MASK] cat", "k": 2, "vectors": True, "attention": "float", "model": "words"}),
    ("explain-classify", "/explain", {"text": TEXTS[0], "model": "single"}),
    ("explain-tag", "/explain", {"text": TEXTS[0], "model": "tag"}),
    ("explain-answer", "/explain", {"text": "red cat", "question": "which animal ?", "model": "answer"}),
    ("wrong-model", "/embed", {"inputs": "a", "model": "nobody"}),
    ("wrong-ability", "/classify", {"texts": "a", "model": "words"}),
    ("wrong-field", "/v1/embeddings", {"model": "words", "input": "a", "dimension": 3}),
    ("wrong-type", "/tag", {"texts": 3}),
    ("wrong-admin", "/admin/reload", {}),
]
GETS = ("/v1/models", "/v1/models/tag", "/info", "/health", "/health/ready", "/health/live")
STATUS = ("/metrics", "/openapi.json", "/docs", "/", "/nothing", "/embed")


def index() -> Path:
    path = place() / "notes.idx"
    albertkit("index", text_file(), "-o", path, "-m", tiny_model())
    return path


def stable(value: Any) -> Any:
    """An answer without what is measured, and without the folder that files lie in."""
    if isinstance(value, dict):
        return {key: stable(part) for key, part in value.items() if not any(word in key for word in MEASURED)}
    if isinstance(value, list):
        return [stable(part) for part in value]
    return value.replace(str(place()), "") if isinstance(value, str) else value


def results() -> Results:
    found: Results = {}
    folders = {"words": tiny_model(), **{kind: finetuned(kind)[0] for kind in KINDS}}
    served = [f"{name}={folder}" for name, folder in folders.items()]
    with Served(*served, "--index", index(), "--threads", 1) as server:
        answers = {name: server.post(path, body) for name, path, body in POSTS}
        answers |= {path: server.get(path) for path in (*GETS, *STATUS)}
    for name, answer in answers.items():
        found[f"{name}/status"] = np.array(answer.status_code)
        if answer.status_code == 200 and name not in STATUS:
            found |= flat(name, stable(answer.json()))
    return found


@pytest.mark.slow
def test_every_endpoint_answers_as_recorded():
    with one_thread():
        assert differences("http", results()) == []


def test_every_endpoint_has_a_recorded_answer():
    with one_thread(), Served(f"words={tiny_model()}", "--threads", 1) as server:
        paths = {path.split("{")[0] for path in server.get("/openapi.json").json()["paths"]}
    compared = {"/v1/rerank"}  # with /rerank, by tests/serve/test_endpoints.py
    assert paths - {path for _, path, _ in POSTS} - {*GETS, *STATUS} == {"/v1/models/", "/browser/"} | compared
