"""`Albert` with the interface of LangChain's embeddings, without importing LangChain.

In: a model and texts. Out: vectors as lists of floats. Before this file: `albert.py`.
"""

from __future__ import annotations

from pathlib import Path

from albertkit.albert import Albert


class AlbertEmbeddings:
    """`embed_documents` and `embed_query`, as LangChain and similar libraries call them.

    A model's prompts named `passage` (or `document`) and `query` are put before the texts, if it has them.

    >>> len(AlbertEmbeddings().embed_query("where did the cat sit?"))
    256
    """

    def __init__(self, model: Albert | str | Path | None = None, *, bits: int | None = None) -> None:
        self.albert = model if isinstance(model, Albert) else Albert(model, bits=bits)

    def _prompt(self, *names: str) -> str | None:
        return next((name for name in names if name in self.albert.metadata.prompts), None)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector per text."""
        vectors: list[list[float]] = self.albert.embed(texts, prompt=self._prompt("passage", "document")).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of one query."""
        vector: list[float] = self.albert.embed(text, prompt=self._prompt("query")).tolist()
        return vector
