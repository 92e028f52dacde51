"""LangChain's own classes accept the embeddings and the vector store, and results are those of `Albert` and `Index`."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from albertkit import AlbertkitError, Index
from tests.adapters.conftest import QUERY, TEXTS

core = pytest.importorskip("langchain_core")
from langchain_core.documents import Document  # noqa: E402
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings  # noqa: E402
from langchain_core.runnables import RunnableLambda  # noqa: E402
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore  # noqa: E402

from albertkit.adapters.langchain import AlbertEmbeddings, AlbertVectorStore  # noqa: E402


@pytest.fixture
def store(index):
    found = AlbertVectorStore(index)
    found.add_texts(TEXTS, ids=["1", "2", "3"])
    return found


def test_embeddings_are_the_vectors_of_the_model(albert):
    embeddings = AlbertEmbeddings(albert, dim=64)
    assert isinstance(embeddings, Embeddings)
    assert np.allclose(embeddings.embed_documents(TEXTS), albert.embed(TEXTS, dim=64), atol=1e-6)
    assert np.allclose(asyncio.run(embeddings.aembed_query(QUERY)), albert.embed(QUERY, dim=64), atol=1e-6)
    assert embeddings.embed_documents([]) == []


def test_prompts_of_a_model_are_those_of_queries_and_passages(albert, monkeypatch):
    monkeypatch.setitem(albert.metadata.prompts, "query", "question: ")
    embeddings = AlbertEmbeddings(albert)
    assert np.allclose(embeddings.embed_query(QUERY), albert.embed("question: " + QUERY), atol=1e-6)
    assert np.allclose(embeddings.embed_documents([QUERY])[0], albert.embed(QUERY), atol=1e-6)


def test_langchain_searches_with_the_embeddings(albert):
    memory = InMemoryVectorStore.from_texts(TEXTS, AlbertEmbeddings(albert))
    assert memory.similarity_search(QUERY, k=1)[0].page_content == TEXTS[0]


def test_a_store_finds_what_its_index_finds(store):
    assert isinstance(store, VectorStore)
    found = store.similarity_search_with_score(QUERY, k=2, mode="vector", min_score=-1)
    hits = store.index.search(QUERY, 2, "vector", min_score=-1)
    assert [(document.id, score) for document, score in found] == [(hit.id, hit.score) for hit in hits]
    assert store.similarity_search(QUERY, k=1)[0] == Document(id="1", page_content=TEXTS[0])
    vector = store.embeddings.embed_query(QUERY)
    assert [one.id for one in store.similarity_search_by_vector(vector, 2, -1)] == [hit.id for hit in hits]


def test_a_retriever_is_part_of_a_chain(store):
    retriever = store.as_retriever(search_kwargs={"k": 1, "mode": "keyword"})
    chain = retriever | RunnableLambda(lambda documents: [document.page_content for document in documents])
    assert chain.invoke("flour") == [TEXTS[2]]
    assert asyncio.run(chain.ainvoke("train")) == [TEXTS[1]]
    strict = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.3})
    assert [document.id for document in strict.invoke(QUERY)] == ["1"]


def test_an_unknown_keyword_of_a_search_is_an_error(store):
    with pytest.raises(TypeError, match="filter"):
        store.as_retriever(search_kwargs={"filter": {"source": "a"}}).invoke(QUERY)


def test_texts_are_replaced_and_deleted_by_id(store):
    store.add_documents([Document(id="1", page_content="A cat."), Document(id="4", page_content="A dog.")])
    assert len(store.index) == 4 and store.similarity_search("cat", mode="keyword")[0].id == "1"
    assert store.delete(["1", "4"]) and not store.delete(["1", "2"])
    assert [document.id for document in store.similarity_search(QUERY, min_score=-1)] == ["3"]
    with pytest.raises(AlbertkitError, match="ids is None"):
        store.delete()
    with pytest.raises(AlbertkitError, match="2 texts, 1 ids and 2 metadatas"):
        store.add_texts(["a", "b"], ids=["1"])


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"source": "notes.txt", "line": 3},
        {"source": "{draft}.txt"},
        {"source": "notes.txt", "author": "Ann", "tags": ["a", "б"], "page": 3},
        {"line": "three"},
    ],
)
def test_metadata_comes_back_as_it_was(store, metadata):
    store.add_texts(["Only this."], [metadata], ids=["9"])
    assert store.similarity_search("only this", k=1, mode="keyword")[0].metadata == metadata


@pytest.mark.parametrize("line", [True, 2**70])
def test_a_line_that_an_index_cannot_store_comes_back_as_it_was(store, line):
    store.add_texts(["Only this."], [{"line": line}], ids=["9"])
    found = store.similarity_search("only this", k=1)[0].metadata["line"]
    assert found == line and type(found) is type(line)


def test_documents_with_and_without_ids(store):
    first, second = store.add_documents([Document(id="1", page_content="One."), Document(page_content="Two.")])
    assert first == "1" and store.similarity_search("two", k=1, mode="keyword")[0].id == second
    with pytest.raises(AlbertkitError, match="1 texts, 0 ids"):
        store.add_texts(["Three."], ids=[])


def test_metadata_that_is_not_json_is_an_error(store):
    for value in (object(), float("nan")):
        with pytest.raises(AlbertkitError, match="'9' is not JSON"):
            store.add_texts(["a"], [{"value": value}], ids=["9"])


def test_a_store_from_texts_is_a_file_that_opens_again(albert, tmp_path):
    for text in TEXTS:
        store = AlbertVectorStore.from_texts([text], AlbertEmbeddings(albert), path=tmp_path / "new.idx")
        store.index.close()
    with Index.open(tmp_path / "new.idx", albert) as again:
        assert len(again) == 3 and again.search("train", 1, "keyword")[0].text == TEXTS[1]


def test_embeddings_that_an_index_cannot_name_are_an_error(albert, tmp_path):
    for embeddings in (DeterministicFakeEmbedding(size=8), AlbertEmbeddings(albert, dim=64)):
        with pytest.raises(AlbertkitError, match="a model that it can name"):
            AlbertVectorStore.from_texts(TEXTS, embeddings, path=tmp_path / "new.idx")
    assert not (tmp_path / "new.idx").exists()
