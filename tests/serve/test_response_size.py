"""The size of a response is foreseen: too large ones are refused before anything is computed, others are written in
parts.
"""

from __future__ import annotations

import dataclasses
import re
import time

import numpy as np
import orjson
import pytest
from starlette.testclient import TestClient

from albertkit.serve.app import make_app
from albertkit.serve.batcher import Batcher
from albertkit.serve.inference import ServerMetrics, Service
from albertkit.serve.request_texts import normalized_length
from albertkit.serve.response_size import PART_BYTES, encode_json, json_parts, memory_of
from albertkit.serve.serve_settings import ApiKeys, ServeSettings
from albertkit.serve.served_indexes import ServedIndexes
from albertkit.serve.served_models import ModelSource, ServedModels
from tests.serve.conftest import Served

LIMIT = 200_000


@pytest.fixture(scope="module")
def narrow(folders):
    """A server for small responses and short texts."""
    flags = ("--max-response-bytes", LIMIT, "--max-characters", 20_000, "--max-pending-bytes", 4_194_304)
    names = ("words", "pairs", "names", "author", "topics")
    with Served(*(f"{name}={folders[name]}" for name in names), *flags, "--threads", 1) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/fill", {"texts": "[MASK] " * 30, "k": 1000}),
        ("/fill", {"texts": ["[MASK]"] * 100, "k": 100}),
        ("/tokenize", {"inputs": ["a " * 9_000] * 10}),
        ("/embed", {"inputs": ["a"] * 1000}),
        ("/embed_all", {"inputs": ["a b c d e f"] * 100}),
        ("/v1/embeddings", {"input": ["a"] * 1000, "model": "words"}),
        ("/v1/embeddings", {"input": ["a"] * 1000, "model": "words", "encoding_format": "base64"}),
        ("/similar", {"texts": ["a"] * 200}),
        ("/rerank", {"query": "a", "texts": ["word " * 3000] * 20, "return_text": True}),
        ("/search", {"query": "a", "texts": ["word " * 3000] * 20, "k": 20}),
        ("/predict", {"inputs": [["a"]] * 1024, "model": "topics"}),
        ("/classify", {"texts": ["a"] * 1024, "model": "topics"}),
        ("/tag", {"texts": ["word " * 1500] * 2}),
        ("/decode", {"ids": [300] * 100_000}),
        ("/explain", {"text": "[MASK] " * 20, "k": 1000, "model": "words"}),
        ("/explain", {"text": "a " * 50, "attention": "float", "model": "words"}),
    ],
)
def test_a_response_that_would_be_too_large_is_refused_before_it_is_computed(narrow, path, body):
    before = computed(narrow)
    answer = narrow.post(path, body)
    assert answer.status_code == 413 and f"{LIMIT:,}" in answer.text, answer.text[:300]
    assert computed(narrow) == before
    assert narrow.post("/embed", {"inputs": "one"}).status_code == 200
    assert pending(narrow) == 0


def computed(server) -> float:
    found = re.findall(r"^albertkit_batch_texts_count (\S+)$", server.get("/metrics").text, re.M)
    return float(found[0]) if found else 0.0


def pending(server) -> float:
    (found,) = re.findall(r"^albertkit_pending_bytes (\S+)$", server.get("/metrics").text, re.M)
    return float(found)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "a" * 20_001},
        {"inputs": ["b", "\ufdfa" * 2_000]},  # one character becomes 18
        {"inputs": ["ﷺ" * 1_200]},
    ],
)
def test_texts_are_limited_after_normalization(narrow, body):
    answer = narrow.post("/embed", body)
    assert answer.status_code == 413 and "at most 20,000 per text" in answer.json()["error"], answer.text
    text = body["inputs"] if isinstance(body["inputs"], str) else body["inputs"][-1]
    for path, asked in (
        ("/tokenize", {"inputs": text}),
        ("/explain", {"text": text}),
        ("/classify", {"texts": ["a", text]}),
        ("/generate", {"texts": text}),
        ("/fill", {"texts": text + "[MASK]", "k": 1}),
    ):
        assert narrow.post(path, asked).status_code == 413, path
    assert narrow.post("/embed", {**body, "truncate": True}).status_code == (200 if text[0] == "a" else 413)


def test_too_many_sentences_and_ids_are_refused(server):
    assert server.post("/search", {"query": "a", "text": "a.\n" * 20_000}).status_code == 413
    answer = server.post("/decode", {"ids": [300] * 200_001})
    assert answer.status_code == 413 and "tokens" in answer.json()["error"]
    assert server.post("/embed", {"inputs": [300] * 200_001}).status_code == 413


def test_tokenization_counts_for_the_deadline(folders):
    """Texts that take longer to tokenize than the deadline are refused, not answered late."""
    with Served(f"words={folders['words']}", "--threads", 1, "--deadline", 0.01) as server:
        body = {"inputs": ["qz " * 30_000] * 5}
        began = time.monotonic()
        answer = server.post("/tokenize", body)
        assert answer.status_code == 503 and "within 0.01 s" in answer.json()["error"], answer.text[:300]
        assert time.monotonic() - began < 20  # it stopped between two groups


def test_groups_of_texts_give_the_same_answers(server, alberts):
    """Requests that are tokenized in several groups equal those of `Albert`."""
    texts = [f"number {i} " + "some words " * (i % 400) for i in range(300)]
    found = server.post("/classify", {"texts": texts, "model": "topics"}).json()["results"]
    assert sum(map(len, texts)) > 3 * 100_000
    for one, right in zip(found, alberts["topics"].classify(texts), strict=True):
        assert one["probabilities"] == pytest.approx(right.probabilities, abs=1e-5)
    some = [text[:150] for text in texts]
    assert np.allclose(server.post("/embed", {"inputs": some}).json(), alberts["words"].embed(some), atol=1e-5)
    spans = server.post("/tag", {"texts": some}).json()["results"]
    assert [len(one["spans"]) for one in spans] == [len(one.spans) for one in alberts["names"].tag(some)]
    (tokens,) = server.post("/tokenize", {"inputs": texts[-1]}).json()
    assert [t["id"] for t in tokens] == alberts["words"].tokenizer.encode(texts[-1]).ids


@pytest.mark.parametrize("texts", [[""], ["", ""], ["a" * 100_000], ["", "a" * 99_999, "b", ""]])
def test_no_group_of_texts_is_lost(server, alberts, texts):
    found = server.post("/embed", {"inputs": texts, "truncate": True})
    assert found.status_code == 200, found.text
    wanted = alberts["words"].embed(texts, long_texts="truncate")
    assert np.allclose(found.json(), wanted, atol=1e-5)
    results = server.post("/classify", {"texts": texts, "model": "pairs"}).json()["results"]
    assert [one["label"] for one in results] == [one.label for one in alberts["pairs"].classify(texts)]


def test_a_guess_does_not_repeat_the_text(server):
    text = "a long text " * 4 + "[MASK]"
    answer = server.post("/fill", {"texts": text, "k": 50})
    assert answer.text.count("a long text") == 4
    assert set(answer.json()["results"][0]["masks"][0][0]) == {"word", "score"}


# Writing ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    values: list[float]


@dataclasses.dataclass(frozen=True)
class Whole:
    title: str
    items: list[Item]
    table: np.ndarray
    empty: list[int]
    nothing: None = None


VALUES = [
    [],
    "text",
    [1, 2, 3],
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.random.default_rng(1).normal(size=(40, 3, 700)).astype(np.float32),
    [np.arange(9, dtype=np.float32)] * 9000,
    Whole("x", [Item(f"é{i}", [0.1 * i] * (i % 90)) for i in range(2000)], np.ones((2000, 8), np.float32), []),
    [Whole("one", [Item("a", [1.5] * 40_000)], np.zeros((1, 1), np.float32), [])],
    {"a": [1, 2], "b": {"c": None}},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("foreseen", [0, 100, 300_000, 10**9])
def test_parts_are_the_same_json(value, foreseen):
    whole = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    assert encode_json(value, foreseen) == whole
    assert max(map(len, json_parts(value, len(whole)))) <= 4 * PART_BYTES or isinstance(value, dict)


def test_foreseen_bytes_are_not_below_those_of_real_answers(folders):
    """At a limit of just the answer's size, a correct estimate refuses; far above it, none does."""
    asked = {
        "/fill": {"texts": ["a [MASK] and [MASK]"] * 10, "k": 200},
        "/embed": {"inputs": ["a", "b"] * 100},
        "/embed_all": {"inputs": ["a longer text", "b"] * 30},
        "/tokenize": {"inputs": ["some words and more of them"] * 100},
        "/similar": {"texts": [f"text {i}" for i in range(80)]},
        "/explain": {"text": "a [MASK] test", "k": 300, "attention": "float", "vectors": True},
    }
    settings = ServeSettings()
    models = ServedModels([ModelSource("words", folders["words"])], settings, 1)
    batcher = Batcher(settings.token_budget, settings.deadline)
    service = Service(settings, models, batcher, ServerMetrics(), ApiKeys(), ServedIndexes([], models))
    with TestClient(make_app(service), base_url="http://127.0.0.1") as client:
        for path, body in asked.items():
            service.settings = settings
            size = len(client.post(path, json=body).content)
            assert size > 20_000
            for share, status in ((0.99, 413), (4, 200)):
                service.settings = dataclasses.replace(settings, max_response_bytes=int(share * size))
                answer = client.post(path, json=body)
                assert answer.status_code == status, (path, share)
                assert status == 200 or "would have about" in answer.text, path  # before it was computed


def test_memory_of_decoded_requests():
    assert memory_of("😀" + "a" * 1000) > 4000 and memory_of("a" * 1000) < 1200
    assert memory_of([300] * 1000) >= 36_000 and memory_of(["", ""]) > 16
    assert memory_of({"a": ["x"]}) > 100


def test_normalized_length_is_not_below_that_of_normalization(alberts):
    normalize = alberts["words"].tokenizer.model.normalize
    for text in ("plain", "\ufdfa" * 9, "ﬁne ½ Ａ ①", "한국어 텍스트", "e\u0301" * 20, "中文", "㎏㏒㍿"):
        assert normalized_length(text) >= len(normalize(text)[0]), text


def test_response_limits_fit_together():
    from albertkit.errors import AlbertkitError

    with pytest.raises(AlbertkitError, match="below max_response_bytes"):
        ServeSettings(max_response_bytes=2**27)
    assert encode_json([], 0) == b"[]"
