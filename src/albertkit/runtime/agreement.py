"""Do the vectors of two models agree on real sentences? One verdict for `quantize` and `export`.

In: the outputs of two models for the same sentences. Out: `Agreement`. Without texts of the user, these are the
sentences of `data/sample_sentences.json`, 64 in English and 64 in Chinese. Before this file: `activation_moments.py`;
after it: `compress/quantize.py` and `interop/onnx_export.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.input_warnings import find_problems
from albertkit.runtime.activation_moments import reads_english
from albertkit.tokenizer import Tokenizer

SENTENCES = Path(__file__).parents[1] / "data" / "sample_sentences.json"
COMPARED = 64  # texts of the user
# Lowest mean and lowest single cosine of a verdict. `docs/results/compression.md` has the scores of such models.
GOOD, FAIR = (0.98, 0.9), (0.9, 0.7)


class ComparedTexts(NamedTuple):
    """The texts of a comparison, and how to call them."""

    texts: list[str]
    kind: str


@dataclass(frozen=True)
class Agreement:
    """How well the outputs of two models agree, over some texts: cosines, or 1 less half the squared difference."""

    mean: float
    least: float
    texts: int
    kind: str

    @classmethod
    def of(cls, cosines: np.ndarray, kind: str) -> Agreement:
        return cls(float(cosines.mean()), float(cosines.min()), len(cosines), kind)

    @property
    def verdict(self) -> str:
        """`good`, `fair` or `poor`; NaN is poor."""
        for name, (mean, least) in (("good", GOOD), ("fair", FAIR)):
            if self.mean >= mean and self.least >= least:
                return name
        return "poor"

    def __str__(self) -> str:
        return f"{self.mean:.4f} (lowest {self.least:.4f}) on {self.texts} {self.kind}: {self.verdict}"


def compared_texts(tokenizer: Tokenizer | None, texts: Sequence[str] | None = None) -> ComparedTexts | None:
    """Texts of the user, else built-in sentences that the tokenizer can read; None if it reads neither language."""
    if tokenizer is None:
        return None
    if texts is not None:
        sample = [text for text in texts if text.strip()][:COMPARED]
        if not sample:
            raise AlbertkitError("there are no texts to compare the models on. Pass a file with some typical texts.")
        return ComparedTexts(sample, "texts")
    sentences: dict[str, list[str]] = read_json(SENTENCES)
    languages = ["English", "Chinese"] if reads_english(tokenizer) else ["Chinese", "English"]
    for language in languages:
        if not find_problems(tokenizer, sentences[language]).unreadable:
            return ComparedTexts(sentences[language], f"built-in {language} sentences")
    return None
