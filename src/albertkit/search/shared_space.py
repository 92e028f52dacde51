"""`SharedSpace`: English and Chinese texts as vectors of one space, for an index or a classifier with both languages.

In: texts. Out: vectors, each from the built-in model of its language, moved to the shared space
(`runtime/shared_map.py`). It is an `Embedder` of `index.py`; the command line calls it `small-en-zh`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from albertkit.albert import Albert
from albertkit.builtin import CHINESE, DEFAULT, LATIN_WORD, SHARED_SPACE, language_model
from albertkit.errors import check_string
from albertkit.file_io import digest
from albertkit.runtime.embed import list_texts
from albertkit.runtime.runtime_model import Depth
from albertkit.runtime.shared_map import FILE


def model_for(text: str) -> str:
    """The built-in model for most of a text: Chinese if it has at least as many Chinese characters as Latin words.

    >>> model_for("my order 订单 arrived damaged"), model_for("我的 iPhone 坏了"), model_for("12")
    ('small', 'small-zh', 'small')
    """
    if language_model(text) == "small-zh" and len(CHINESE.findall(text)) >= len(LATIN_WORD.findall(text)):
        return "small-zh"
    return DEFAULT


class SharedSpace:
    """English and Chinese texts in one space: a query finds texts of both languages.

    depth: number of layers to apply, or "full". threads: CPU threads. Each model is opened when its first text comes.

    >>> from albertkit import SharedSpace
    >>> space = SharedSpace()
    >>> vectors = space.embed(["Where is the station?", "车站在哪里？", "我喜欢吃苹果。"])
    >>> bool(vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2])
    True
    """

    dim = 384

    def __init__(self, *, depth: Depth | None = None, threads: int | None = None) -> None:
        self.depth, self.threads = depth, threads
        self._models: dict[str, Albert] = {}

    @property
    def name(self) -> str:
        """Identifies the map, both models and what changes a vector."""
        models = (self._model(name).name for name in (DEFAULT, "small-zh"))
        return "+".join([SHARED_SPACE, digest(FILE)[:8], *models])

    def embed(self, texts: str | Iterable[str]) -> np.ndarray:
        """Vectors of length 1: (384,) for one text, (texts, 384) for several."""
        if isinstance(texts, str):
            return np.asarray(self.embed([texts])[0])
        listed = list_texts(texts)
        languages = np.array([model_for(text) for text in listed])
        vectors = np.zeros((len(listed), self.dim), np.float32)
        for language in dict.fromkeys(languages.tolist()):
            places = np.flatnonzero(languages == language)
            vectors[places] = self._model(language).embed([listed[i] for i in places], space="shared")
        return vectors

    def similarity(self, first: str, second: str) -> float:
        """The cosine of two texts, in the same language or not."""
        check_string("first", first)
        check_string("second", second)
        left, right = self.embed([first, second])
        return min(float(left @ right), 1.0)  # rounding may exceed 1

    def _model(self, name: str) -> Albert:
        if name not in self._models:
            self._models[name] = Albert(name, depth=self.depth, threads=self.threads)
        return self._models[name]
