"""Every endpoint on a real socket, with the clients people use, each answer beside what `Albert` gives."""

from __future__ import annotations

import base64
import dataclasses
import json
import struct

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from openai import BadRequestError, NotFoundError, OpenAI

TEXTS = ["this is a test", "A much longer sentence, with 1,000 words; and more!", "", "one", "naïve 中文 😀"]
LONG = " ".join(f"word{i}" for i in range(150))
CLOSE = {"atol": 1e-6, "rtol": 0}


def plain(value):
    """A result as JSON would have it."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


def near(found, wanted) -> bool:
    """Whether two answers are equal, numbers up to rounding."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(near(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(near(a, b) for a, b in zip(found, wanted, strict=True))
    return found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted


@pytest.fixture
def openai(server):
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


# OpenAI ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_openai_client(openai, alberts):
    words = alberts["words"]
    made = openai.embeddings.create(model="words", input=TEXTS)  # the client asks for base64 by itself
    assert np.allclose([d.embedding for d in made.data], words.embed(TEXTS), **CLOSE)
    assert [d.index for d in made.data] == list(range(5)) and made.model == "words"
    assert made.usage.prompt_tokens == sum(len(e.ids) for e in words.tokenizer.encode_batch(TEXTS))
    one = openai.embeddings.create(model="words", input="one", encoding_format="float", dimensions=8)
    assert np.allclose(one.data[0].embedding, words.embed("one", dim=8), **CLOSE)
    ids = words.tokenizer.ids_batch(TEXTS[:2])
    for given in (ids, [words.tokenizer.encode(text).ids for text in TEXTS[:2]]):  # with special tokens and without
        made = openai.embeddings.create(model="words", input=given)
        assert np.allclose([d.embedding for d in made.data], words.embed(TEXTS[:2]), **CLOSE)
    made = openai.embeddings.create(model="words", input=ids[0])
    assert np.allclose(made.data[0].embedding, words.embed(TEXTS[0]), **CLOSE)
    more = {"depth": 1, "pooling": "max", "prompt": "query", "long_texts": "truncate"}
    made = openai.embeddings.create(model="words", input=[LONG], extra_body=more)
    assert np.allclose(made.data[0].embedding, words.embed(LONG, **more), **CLOSE)
    made = openai.embeddings.create(model="words", input=LONG)  # windows and their mean
    assert np.allclose(made.data[0].embedding, words.embed(LONG), **CLOSE)


def test_openai_models_and_errors(openai, server, folders):
    listed = openai.models.list().data
    assert [m.id for m in listed] == list(folders) and listed[0].owned_by == "albertkit"
    assert openai.models.retrieve("pairs").id == "pairs"
    with pytest.raises(NotFoundError, match="did you mean 'words'") as caught:
        openai.embeddings.create(model="wrods", input="a")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(NotFoundError, match="choose one of words"):
        openai.models.retrieve("nobody")
    for given, message in (
        ([], r"input=\[\] is not valid: it must be a list of length at least 1. Correct it"),
        (["a", 3], "input contains texts and token ids"),
        ([40_000], "not in this model's vocabulary of 3,000"),
        ([[]], r"input\[0\]=\[\] is not valid: it must be a list of length at least 1. Correct it"),
        ([-1], r"input\[0\]=-1 is not valid: it must be a whole number, at least 0. Correct it"),
    ):
        with pytest.raises(BadRequestError, match=message):
            openai.embeddings.create(model="words", input=given)
    with pytest.raises(BadRequestError, match="Pass a whole number from 1 to 32") as caught:
        openai.embeddings.create(model="words", input="a", dimensions=33)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(BadRequestError, match="unknown field 'dimension' .did you mean 'dimensions'"):
        openai.embeddings.create(model="words", input="a", extra_body={"dimension": 3})
    answer = server.post("/v1/embeddings", {"input": "a", "model": "words", "encoding_format": "base64"}).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert len(struct.unpack("<32f", raw)) == 32


def test_vectors_as_int8_and_bits(server, alberts):
    words = alberts["words"]
    for name, dtype, width in (("int8", "int8", 8), ("ubinary", "binary", 1)):
        body = {"input": TEXTS, "model": "words", "output_dtype": name, "dimensions": 8}
        made = server.post("/v1/embeddings", body).json()
        own = words.embed(TEXTS, dtype=dtype, dim=8).tolist()
        assert [item["embedding"] for item in made["data"]] == own and len(own[0]) == width
        assert server.post("/embed", {"inputs": TEXTS, "output_dtype": name, "dimensions": 8}).json() == own
        answer = server.post("/v1/embeddings", {**body, "encoding_format": "base64"})
        assert answer.status_code == 400 and "set encoding_format to float" in answer.text
        answer = server.post("/v1/embeddings", {**body, "output_dtype": "int4"})
        assert answer.status_code == 400 and "output_dtype" in answer.text


# text-embeddings-inference ---------------------------------------------------------------------------------------


def test_the_hugging_face_client(server, alberts, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it calls our own server only
    words = alberts["words"]
    client = InferenceClient(model=f"{server.url}/embed")
    assert np.allclose(client.feature_extraction("one"), [words.embed("one")], **CLOSE)
    found = client.feature_extraction(LONG, truncate=True, normalize=False)
    assert np.allclose(found, [words.embed(LONG, long_texts="truncate", normalize=False)], atol=1e-5)
    found = client.feature_extraction("one", prompt_name="query")
    assert np.allclose(found, [words.embed("one", prompt="query")], **CLOSE)
    assert np.allclose(InferenceClient(model=server.url).feature_extraction("one"), [words.embed("one")], **CLOSE)
    client = InferenceClient(model=f"{server.url}/similarity")
    found = client.sentence_similarity("one", other_sentences=TEXTS)
    assert np.allclose(found, words.similarity("one", TEXTS), **CLOSE)


def test_embed(server, alberts):
    words = alberts["words"]
    found = server.post("/embed", {"inputs": TEXTS, "unknown": 1}).json()
    assert np.allclose(found, words.embed(TEXTS), **CLOSE)
    for layer, pooling in ((1, "mean"), (0, "max"), (-1, "pooler")):
        found = server.post("/embed", {"inputs": TEXTS, "layer": layer, "pooling": pooling, "dimensions": 5}).json()
        assert np.allclose(found, words.embed(TEXTS, layer=layer, pooling=pooling, dim=5), **CLOSE)
    other = server.post("/embed", {"inputs": "one", "model": "pairs"}).json()
    assert np.allclose(other, [alberts["pairs"].embed("one")], **CLOSE)
    wrong = server.post("/embed", {"inputs": "one", "prompt_name": "qeury"})
    assert wrong.status_code == 422 and "the model has query, passage" in wrong.json()["error"]


def test_rerank(server, alberts):
    words = alberts["words"]
    asked = {"query": "one", "texts": TEXTS, "return_text": True}
    found = server.post("/rerank", asked).json()
    wanted = words.embed(TEXTS, prompt="passage") @ words.embed("one", prompt="query")
    assert [hit["index"] for hit in found] == np.argsort(-wanted).tolist()
    assert np.allclose([hit["score"] for hit in found], np.sort(wanted)[::-1], **CLOSE)
    assert all(hit["text"] == TEXTS[hit["index"]] for hit in found)
    found = server.post("/rerank", {"query": "one", "texts": TEXTS, "model": "ranker"}).json()
    wanted = [one.probabilities["yes"] for one in alberts["ranker"].classify(["one"] * 5, TEXTS)]
    assert {hit["index"]: pytest.approx(hit["score"], abs=1e-6) for hit in found} == dict(enumerate(wanted))
    assert "text" not in found[0]
    found = server.post("/rerank", {"query": "one", "texts": TEXTS, "model": "grader"}).json()
    wanted = [one.label for one in alberts["grader"].classify(["one"] * 5, TEXTS)]
    assert near([hit["score"] for hit in found], sorted(wanted, reverse=True))


@pytest.mark.parametrize("name", ["pairs", "stars"])
def test_rerank_compares_vectors_where_the_head_is_for_single_texts(server, alberts, name):
    found = server.post("/rerank", {"query": "one", "texts": TEXTS, "model": name}).json()
    cosines = alberts[name].embed(TEXTS) @ alberts[name].embed("one")
    assert {hit["index"]: pytest.approx(hit["score"], abs=1e-6) for hit in found} == dict(enumerate(cosines.tolist()))


def test_rerank_of_cohere_and_jina_has_the_scores_of_tei(server, alberts):
    documents = [TEXTS[0], *({"text": text} for text in TEXTS[1:])]
    for model in ("words", "ranker", "grader"):
        tei = server.post("/rerank", {"query": "one", "texts": TEXTS, "model": model}).json()
        asked = {"query": "one", "documents": documents, "model": model}
        found = server.post("/v1/rerank", asked).json()
        assert (found["model"], found["object"]) == (model, "list") and found["usage"]["total_tokens"] > len(TEXTS)
        assert [hit.keys() for hit in found["results"]] == [{"index", "relevance_score"}] * len(TEXTS)
        assert [hit["index"] for hit in found["results"]] == [hit["index"] for hit in tei]
        assert near([hit["relevance_score"] for hit in found["results"]], [hit["score"] for hit in tei])
        best = server.post("/v1/rerank", {**asked, "top_n": 2, "return_documents": True}).json()["results"]
        assert [hit["index"] for hit in best] == [hit["index"] for hit in tei[:2]]
        assert [hit["document"] for hit in best] == [{"text": TEXTS[hit["index"]]} for hit in best]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": []}, "documents=[] is not valid"),
        ({"documents": [{"body": "a"}]}, "unknown field 'body'"),
        ({"documents": [3]}, "documents"),
        ({"top_n": 0}, "top_n=0 is not valid"),
        ({"rank_fields": ["text"]}, "unknown field 'rank_fields'"),
    ],
)
def test_rerank_refuses_what_it_would_ignore_in_openais_format(server, change, message):
    wrong = server.post("/v1/rerank", {"query": "one", "documents": ["a"], **change})
    assert wrong.status_code == 400 and message in wrong.json()["error"]["message"]


def test_predict(server, alberts):
    pairs = alberts["pairs"]
    one = server.post("/predict", {"inputs": "one"}).json()
    assert {p["label"]: p["score"] for p in one} == pytest.approx(pairs.classify("one").probabilities, abs=1e-6)
    assert one[0]["score"] >= one[1]["score"]
    pair = server.post("/predict", {"inputs": ["one", "two"]}).json()
    wanted = pairs.classify("one", "two").probabilities
    assert {p["label"]: p["score"] for p in pair} == pytest.approx(wanted, abs=1e-6)
    many = server.post("/predict", {"inputs": [["one"], ["one", "two"]], "raw_scores": True}).json()
    assert len(many) == 2 and sum(p["score"] for p in many[0]) != pytest.approx(1)
    stars = server.post("/predict", {"inputs": "one", "model": "stars"}).json()
    assert near(stars, [{"label": "value", "score": alberts["stars"].classify("one").label}])
    for wrong in (["a", "b", "c"], [["a", "b", "c"]], [], [[]], 3, [["a"], "b"]):
        assert server.post("/predict", {"inputs": wrong}).status_code == 422, wrong


def test_tokenize_and_decode(server, alberts):
    tokenizer = alberts["words"].tokenizer
    found = server.post("/tokenize", {"inputs": TEXTS}).json()
    for text, tokens in zip(TEXTS, found, strict=True):
        assert [t["id"] for t in tokens] == tokenizer.encode(text).ids
        for t in tokens:
            assert t["special"] == (t["start"] is None) == (t["text"] in ("[CLS]", "[SEP]"))
    bare = server.post("/tokenize", {"inputs": "this is", "add_special_tokens": False}).json()[0]
    assert [("this is"[t["start"] : t["stop"]], t["special"]) for t in bare] == [("this", False), ("is", False)]
    ids = [[t["id"] for t in tokens] for tokens in found]
    assert server.post("/decode", {"ids": ids}).json() == [tokenizer.decode(own) for own in ids]
    assert server.post("/decode", {"ids": ids[0]}).json() == ["this is a test"]
    assert server.post("/decode", {"ids": [99_999]}).status_code == 422
    assert server.post("/decode", {"ids": "text"}).status_code == 422


def test_info_and_health(server, folders):
    info = server.get("/info").json()
    assert info["model_id"] == "words" and info["max_input_length"] == 64
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    for path in ("/health", "/health/live", "/health/ready"):
        answer = server.get(path)
        assert answer.status_code == 200 and answer.json()["models"] == list(folders)


# Our own ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pairs", "topics", "stars"])
def test_classify(server, alberts, name):
    found = server.post("/classify", {"texts": TEXTS, "model": name}).json()
    wanted = alberts[name].classify(TEXTS)
    assert found["model"] == name and near(found["results"], [plain(one) for one in wanted])
    found = server.post("/classify", {"texts": TEXTS, "pairs": TEXTS[::-1], "model": name}).json()
    assert near(found["results"], [plain(one) for one in alberts[name].classify(TEXTS, TEXTS[::-1])])
    shallow = server.post("/classify", {"texts": "one", "depth": 1, "model": name}).json()
    assert not near(shallow["results"], [plain(alberts[name].classify("one"))])
    assert server.post("/classify", {"texts": TEXTS, "pairs": ["a"]}).status_code == 422


def test_tag_and_intent(server, alberts):
    texts = ["Angela Merkel visited Paris.", LONG, "", "我在北京。"]
    for path, name, call in (("/tag", "names", "tag"), ("/intent", "atis", "understand")):
        found = server.post(path, {"texts": texts}).json()
        assert found["model"] == name
        assert near(found["results"], [plain(one) for one in getattr(alberts[name], call)(texts)])
        for text, one in zip(texts, found["results"], strict=True):
            assert all(text[s["start"] : s["end"]] == s["text"] for s in one["spans"])


def test_classes_of_texts_are_intents_without_slots(server, alberts):
    """As `albertkit intent` takes them; where nothing is named, a model made for intents comes first."""
    texts = ["book a flight", LONG, ""]
    found = server.post("/intent", {"texts": texts, "model": "pairs"}).json()
    wanted = [plain(one) for one in alberts["pairs"].understand(texts)]
    assert found["model"] == "pairs" and near(found["results"], wanted)
    assert {one["intent"] for one in found["results"]} <= {"no", "yes"} and not any(
        o["spans"] for o in found["results"]
    )
    assert server.post("/intent", {"texts": texts}).json()["model"] == "atis"
    for name in ("topics", "stars"):  # several classes, and numbers
        assert server.post("/intent", {"texts": texts, "model": name}).status_code == 424


def test_answer_and_choose(server, alberts):
    for context in ("Ada wrote the first program in 1843.", LONG, ""):
        found = server.post("/answer", {"question": "Who wrote it?", "context": context}).json()
        wanted = plain(alberts["reader"].answer("Who wrote it?", context))
        wanted["others"] = [{k: v for k, v in other.items() if k != "others"} for other in wanted["others"]]
        assert ["the text is blank" in warning for warning in found["warnings"]] == ([] if context else [True])
        assert near(found, {"model": "reader", "warnings": found["warnings"], **wanted})
        assert context[found["start"] : found["end"]] == found["text"]
    asked = {"question": "What fell?", "context": "It rained.", "choices": ["rain", "sun", "snow"]}
    found = server.post("/choose", asked).json()
    assert near(found, {"model": "exam", "warnings": [], **plain(alberts["exam"].choose(*asked.values()))})


def test_fill(server, alberts):
    texts = ["a [MASK] test", "[MASK] and [MASK]"]
    found = server.post("/fill", {"texts": texts, "k": 3}).json()
    for text, one in zip(texts, found["results"], strict=True):
        assert one["text"] == text
        assert near(one["masks"], [[plain(g) for g in mask] for mask in alberts["words"].fill_mask(text, k=3)])
    wrong = server.post("/fill", {"texts": "no mask"})
    assert wrong.status_code == 422 and "has no [MASK]" in wrong.json()["error"]


def test_similar(server, alberts):
    words = alberts["words"]
    answer = server.post("/similar", {"texts": TEXTS})
    assert np.allclose(answer.json()["scores"], words.similarity(TEXTS), **CLOSE)
    assert "compute;dur=" in answer.headers["server-timing"]
    found = server.post("/similar", {"texts": TEXTS, "others": ["one", "two"], "depth": 1, "dimensions": 9}).json()
    assert np.allclose(found["scores"], words.similarity(TEXTS, ["one", "two"], depth=1, dim=9), **CLOSE)


def test_search(server, alberts):
    words = alberts["words"]
    found = server.post("/search", {"query": "one", "texts": TEXTS, "k": 2}).json()
    wanted = words.embed(TEXTS, prompt="passage") @ words.embed("one", prompt="query")
    assert [hit["index"] for hit in found["hits"]] == np.argsort(-wanted)[:2].tolist()
    text = "A cat sat. The dog ran.\n\n  Another line, with spaces.  他走了。她问。"
    found = server.post("/search", {"query": "dog", "text": text, "k": 9}).json()["hits"]
    assert {text[hit["start"] : hit["end"]] for hit in found} == {hit["text"] for hit in found}
    assert sorted(hit["text"] for hit in found)[:2] == ["A cat sat.", "Another line, with spaces."] and len(found) == 5
    lines = server.post("/search", {"query": "dog", "text": text, "split": "lines"}).json()["hits"]
    assert {hit["text"] for hit in lines} == {line.strip() for line in text.splitlines() if line.strip()}
    assert server.post("/search", {"query": "a", "texts": [], "k": 2}).json()["hits"] == []
    some = server.post(
        "/search", {"query": "one", "texts": TEXTS, "min_score": float(np.sort(wanted)[-2]) - 1e-4}
    ).json()
    assert len(some["hits"]) == 2 and some["left_out"] == len(TEXTS) - 2
    assert server.post("/search", {"query": "a", "texts": ["a"], "text": "a"}).status_code == 422


@pytest.mark.parametrize(
    ("path", "texts", "status"),
    [
        ("/search", {}, 422),
        ("/search", {"mode": "vector"}, 422),
        ("/search", {"texts": ["a"]}, 422),
        ("/rerank", {"texts": ["a", ""]}, 422),
        ("/v1/rerank", {"documents": ["a", ""]}, 400),
    ],
)
def test_a_blank_query_is_an_error(server, path, texts, status):
    for query in ("", " \n"):
        wrong = server.post(path, {"query": query, **texts})
        assert wrong.status_code == status and "the query is blank" in wrong.text


def test_search_in_an_index(server, alberts, index):
    from albertkit.search.index import Index

    with Index.open(index, alberts["words"]) as opened:
        for mode in ("hybrid", "vector", "keyword"):
            found = server.post("/search", {"query": "the dog", "mode": mode, "k": 2}).json()
            wanted = [plain(hit) for hit in opened.search("the dog", 2, mode)]
            assert found["model"] == "words"
            assert near(found["hits"], [{**hit, "score": pytest.approx(hit["score"], abs=1e-3)} for hit in wanted])
            assert found["left_out"] == opened.search_results(["the dog"], 2, mode)[0].left_out
    every = server.post("/search", {"query": "the dog", "mode": "vector", "k": 2, "min_score": -1}).json()
    assert len(every["hits"]) == 2 and every["left_out"] == 0
    none = server.post("/search", {"query": "xyz", "mode": "vector", "k": 2, "min_score": 1}).json()
    assert none["hits"] == [] and none["left_out"] == 2
    assert server.post("/search", {"query": "a", "mode": "keyword", "min_score": 0.5}).status_code == 422
    assert server.post("/search", {"query": "a", "min_score": 1.5}).status_code == 422
    assert server.post("/search", {"query": "a", "index": "notes"}).status_code == 200
    assert server.post("/search", {"query": "a", "index": "nots"}).status_code == 404
    assert server.post("/search", {"query": "a", "model": "pairs"}).status_code == 424


def test_explain(server, alberts):
    words, text = alberts["words"], "a [MASK] test"
    found = server.post("/explain", {"text": text, "k": 2, "vectors": True}).json()
    assert [t["text"] for t in found["tokens"]] == ["[CLS]", "▁a", "[MASK]", "▁test", "[SEP]"]
    assert found["kind"] == "fill" and found["full_depth"] == 3 and found["attention"] is None
    for one in found["depths"]:
        depth = one["depth"]
        assert near(one["prediction"], [[plain(g) for g in m] for m in words.fill_mask(text, k=2, depth=depth)])
        assert len(one["token_cosines"]) == 5 and one["milliseconds"] > 0
        assert one["matches_full_depth"] == (one["prediction"][0][0]["word"] == words.fill_mask(text)[0][0].word)
    assert [one["depth"] for one in found["depths"]] == [1, 2, 3]
    assert found["depths"][-1]["cosine"] == pytest.approx(1, abs=1e-5) and found["depths"][-1]["matches_full_depth"]
    assert all(one["matches_full_depth"] for one in found["depths"][found["stable_depth"] - 1 :])
    found = server.post("/explain", {"text": "one", "vectors": True}).json()
    for one in found["depths"]:
        assert np.allclose(one["vector"], words.embed("one", depth=one["depth"]), atol=1e-5)
        assert one["prediction"] is None and one["matches_full_depth"] is None
    assert found["stable_depth"] is None and found["kind"] is None


@pytest.mark.parametrize(
    ("name", "asked", "kind"),
    [
        ("pairs", {"text": "one", "pair": "two"}, "classify"),
        ("stars", {"text": "one"}, "classify"),
        ("names", {"text": "Angela Merkel visited Paris."}, "tag"),
        ("atis", {"text": "flights to Boston"}, "intent"),
        ("reader", {"text": "Ada wrote it.", "question": "Who?"}, "answer"),
        ("reader", {"text": "Ada wrote it."}, None),
        ("exam", {"text": "one"}, None),
    ],
)
def test_explain_tasks(server, alberts, name, asked, kind):
    found = server.post("/explain", {"model": name, **asked}).json()
    assert found["kind"] == kind and found["task"] == alberts[name].metadata.task and len(found["depths"]) == 3
    if kind is not None:
        assert found["depths"][-1]["matches_full_depth"] and 1 <= found["stable_depth"] <= 3
    if kind == "classify":
        wanted = alberts[name].classify(asked["text"], asked.get("pair"))
        assert near(found["depths"][-1]["prediction"], plain(wanted))


def test_a_model_without_an_endpoint_is_an_error(server):
    for path, body in (
        ("/classify", {"texts": "a", "model": "words"}),
        ("/fill", {"texts": "a [MASK]", "model": "pairs"}),
        ("/answer", {"question": "a", "context": "b", "model": "names"}),
    ):
        answer = server.post(path, body)
        assert answer.status_code == 424 and "does not have" in answer.json()["error"], answer.text
    answer = server.post("/explain", {"text": LONG})
    assert answer.status_code == 422 and "has at most 64" in answer.json()["error"]


# What describes it -----------------------------------------------------------------------------------------------


def test_description_docs_and_page(server):
    described = server.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1") and "/v1/models/{name}" in described["paths"]
    docs = server.get("/docs")
    assert docs.headers["content-type"].startswith("text/html") and "/v1/embeddings" in docs.text
    assert "http://" not in docs.text and "https://" not in docs.text.replace("https://json-schema.org", "")
    page = server.get("/")
    assert page.status_code == 200 and "connect-src 'self'" in page.headers["content-security-policy"]
    missing = server.get("/nothing")
    assert missing.status_code == 404 and "/v1/embeddings" in missing.json()["error"]
    wrong = server.get("/embed")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert server.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
