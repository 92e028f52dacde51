"""LlamaIndex: `AlbertEmbedding` for vectors.

In: a model folder or the name of a built-in model. Out: a `BaseEmbedding` of llama-index-core, which computes in this
process. Needs the extra `llama-index`.
"""

from __future__ import annotations

import asyncio

from albertkit.adapters.role_vectors import embed_role
from albertkit.albert import Albert
from albertkit.builtin import DEFAULT
from albertkit.errors import need

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
except ImportError:
    need("llama_index.core", "llama-index", "albertkit.adapters.llama_index")
    raise


class AlbertEmbedding(BaseEmbedding):
    """Sentence vectors, with the model's prompts for queries and passages if it has them.

    model_name: a folder or the name of a built-in model. depth: layers to apply; the default is the model's. dim: keep
    the first dimensions of each vector.

    >>> len(AlbertEmbedding(dim=128).get_query_embedding("a cat"))
    128
    """

    model_name: str = Field(default=DEFAULT, description="A folder, or the name of a built-in model.")
    depth: int | None = Field(default=None, description="Layers to apply; the default is the model's.")
    dim: int | None = Field(default=None, description="Keep the first dimensions of each vector.")
    embed_batch_size: int = Field(default=512, description="Texts per call.", gt=0, le=2048)
    _albert: Albert | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """The name in serialized form."""
        return "AlbertEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._embed(texts, is_query=False)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], is_query=False)[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], is_query=True)[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def _embed(self, texts: list[str], is_query: bool) -> list[list[float]]:
        if self._albert is None:  # opened when it is first used
            self._albert = Albert(self.model_name, depth=self.depth)
        vectors: list[list[float]]
        vectors = embed_role(self._albert, texts, "query" if is_query else "passage", self.dim).tolist()
        return vectors
