"""Chroma: `AlbertEmbeddingFunction` for the vectors of a collection.

In: a model folder or the name of a built-in model. Out: an `EmbeddingFunction` of chromadb. Import this module before
you open a collection: it registers the function, so that Chroma finds it by its name. Needs the extra `chroma`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from albertkit.adapters.role_vectors import embed_role
from albertkit.albert import Albert
from albertkit.builtin import DEFAULT
from albertkit.errors import AlbertkitError, check_keys, need

try:
    from chromadb.api.types import Documents, EmbeddingFunction, Space
    from chromadb.utils.embedding_functions import register_embedding_function
except ImportError:
    need("chromadb", "chroma", "albertkit.adapters.chroma")
    raise

Config = dict[str, str | int | None]
KEYS = ("model", "depth", "dim", "version")


@register_embedding_function
class AlbertEmbeddingFunction(EmbeddingFunction[Documents]):
    """Sentence vectors, with the model's prompts for queries and passages if it has them.

    model: a folder or the name of a built-in model. depth: layers to apply; the default is the model's. dim: keep the
    first dimensions of each vector. A collection stores these settings and the model's version, and opens with them.

    >>> AlbertEmbeddingFunction(dim=128)(["a cat"])[0].shape
    (128,)
    """

    def __init__(self, model: str | Path = DEFAULT, depth: int | None = None, dim: int | None = None) -> None:
        self.model = str(Path(model).absolute()) if Path(model).exists() else str(model)
        self.depth, self.dim = depth, dim
        self.albert = Albert(self.model, depth=depth)

    def __call__(self, input: Documents) -> list[np.ndarray]:
        return list(embed_role(self.albert, input, "passage", self.dim))

    def embed_query(self, input: Documents) -> list[np.ndarray]:
        """The vectors of queries."""
        return list(embed_role(self.albert, input, "query", self.dim))

    @staticmethod
    def name() -> str:
        """The name under which it is registered."""
        return "albertkit"

    def default_space(self) -> Space:
        """The distance for new collections."""
        return "cosine"

    def get_config(self) -> Config:
        """What a collection stores to open the same model again."""
        return {"model": self.model, "depth": self.depth, "dim": self.dim, "version": self.albert.name}

    @staticmethod
    def validate_config(config: Config) -> None:
        """Raise for unknown keys."""
        check_keys("key", config, KEYS, " in the configuration of albertkit")

    @staticmethod
    def build_from_config(config: Config) -> AlbertEmbeddingFunction:
        """The function of a stored configuration; a model that has changed since is an error."""
        AlbertEmbeddingFunction.validate_config(config)
        model = config["model"]
        depth, dim = (None if (value := config[key]) is None else int(value) for key in ("depth", "dim"))
        function = AlbertEmbeddingFunction(str(model), depth, dim)
        if function.albert.name != config["version"]:
            raise AlbertkitError(
                f"{model} is now model {function.albert.name}, but the collection has vectors of {config['version']}. "
                "Restore the model, or add the documents to a new collection."
            )
        return function

    def validate_config_update(self, old_config: Config, new_config: Config) -> None:
        """Raise if another model, depth or width would compute other vectors for the same collection."""
        changed = [key for key in ("version", "dim") if old_config.get(key) != new_config.get(key)]
        if changed:
            raise AlbertkitError(
                f"{changed[0]} changes from {old_config.get(changed[0])} to {new_config.get(changed[0])}: vectors of "
                "different models do not mix. Add the documents to a new collection."
            )
