"""LlamaIndex accepts the embedding as its own, and stores it."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest

from albertkit import Albert
from tests.adapters.conftest import QUERY, TEXTS

core = pytest.importorskip("llama_index.core")
from llama_index.core.base.embeddings.base import BaseEmbedding  # noqa: E402
from llama_index.core.ingestion import IngestionPipeline  # noqa: E402
from llama_index.core.schema import TextNode  # noqa: E402

from albertkit.adapters.llama_index import AlbertEmbedding  # noqa: E402


@pytest.fixture(scope="module")
def embedding():
    return AlbertEmbedding(dim=64, depth=3)


def test_the_embedding_computes_the_vectors_of_the_model(embedding):
    expected = Albert(depth=3).embed([*TEXTS, QUERY], dim=64)
    assert isinstance(embedding, BaseEmbedding)
    assert np.allclose(embedding.get_text_embedding_batch(TEXTS), expected[:-1], atol=1e-6)
    assert np.allclose(embedding.get_text_embedding(TEXTS[0]), expected[0], atol=1e-6)
    assert np.allclose(embedding.get_query_embedding(QUERY), expected[-1], atol=1e-6)
    assert np.allclose(asyncio.run(embedding.aget_query_embedding(QUERY)), expected[-1], atol=1e-6)
    assert np.allclose(asyncio.run(embedding.aget_text_embedding_batch(TEXTS)), expected[:-1], atol=1e-6)


def test_an_index_of_llama_index_finds_with_it(embedding):
    nodes = [TextNode(text=text, id_=str(place)) for place, text in enumerate(TEXTS)]
    retriever = core.VectorStoreIndex(nodes, embed_model=embedding).as_retriever(similarity_top_k=1)
    assert retriever.retrieve(QUERY)[0].node.node_id == "0"


def test_it_is_a_step_of_a_pipeline(embedding):
    (node,) = IngestionPipeline(transformations=[embedding]).run(nodes=[TextNode(text=TEXTS[0])])
    assert np.allclose(node.embedding, embedding.get_text_embedding(TEXTS[0]), atol=1e-6)


def test_a_stored_embedding_computes_the_same(embedding):
    for again in (AlbertEmbedding.from_dict(embedding.to_dict()), pickle.loads(pickle.dumps(embedding))):
        assert (again.model_name, again.depth, again.dim) == ("small", 3, 64)
        assert again.get_query_embedding(QUERY) == embedding.get_query_embedding(QUERY)
