"""`Albert` in the clothes of other libraries: LangChain's embeddings and scikit-learn's transformer, without importing either."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from albertkit.albert import Albert


class AlbertEmbeddings:
    """What LangChain and its relatives call: `embed_documents` and `embed_query`, as lists of floats.

    A model's prompts named `passage` (or `document`) and `query` are put before the texts, if it has them.
    """

    def __init__(self, model: Any = None, **settings: Any) -> None:
        self.albert = model if isinstance(model, Albert) else Albert(model, **settings)

    def _prompt(self, *names: str) -> str | None:
        return next((name for name in names if name in self.albert.meta.prompts), None)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector a text."""
        vectors: list[list[float]] = self.albert.embed(texts, prompt=self._prompt("passage", "document")).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of one question."""
        vector: list[float] = self.albert.embed(text, prompt=self._prompt("query")).tolist()
        return vector


class AlbertVectors:
    """scikit-learn's way: `AlbertVectors(folder).fit_transform(texts)`, usable as a step of a Pipeline.

    `__init__` stores, `fit` opens the model and returns self, `transform` gives (texts, dim).
    """

    def __init__(
        self, model: Any = None, *, pooling: str | None = None, depth: int | None = None, bits: int | None = None
    ) -> None:
        self.model, self.pooling, self.depth, self.bits = model, pooling, depth, bits

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings, as scikit-learn asks for them."""
        return {"model": self.model, "pooling": self.pooling, "depth": self.depth, "bits": self.bits}

    def set_params(self, **settings: Any) -> AlbertVectors:
        """Change settings."""
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    def fit(self, texts: Iterable[str] | None = None, y: Any = None) -> AlbertVectors:
        """Open the model; nothing is learnt."""
        self.albert_ = self.model if isinstance(self.model, Albert) else Albert(self.model, bits=self.bits)
        return self

    def transform(self, texts: Iterable[str]) -> np.ndarray:
        """Sentence vectors."""
        return self.albert_.embed(texts, pooling=self.pooling, depth=self.depth)

    def fit_transform(self, texts: Iterable[str], y: Any = None) -> np.ndarray:
        """Both at once."""
        return self.fit(texts).transform(texts)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn wants to know of a step: it takes texts and needs no labels."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(string=True, two_d_array=False),
        )
