"""scikit-learn's way: `AlbertClassifier().fit(X, y).predict(X)`, also inside a Pipeline or a GridSearchCV.

In: lists of texts and labels. Out: labels. Needs scikit-learn, and torch unless `frozen`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.albert import Albert
from albertkit.tasks.examples import Text

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ImportError as missing:  # pragma: no cover
    raise AlbertkitError("estimators need scikit-learn: run  pip install 'albertkit[train]'") from missing


class AlbertClassifier(ClassifierMixin, BaseEstimator):
    """Classes of texts.

    start: the model to begin with; default the built-in one. frozen: learn only a head on its sentence vectors (seconds); else the whole model is fine-tuned.
    epochs, learning_rate, batch, max_length, seed: as in `albertkit finetune`.
    """

    def __init__(
        self,
        start: str | Path | None = None,
        frozen: bool = True,
        epochs: float | None = None,
        learning_rate: float | None = None,
        batch: int = 32,
        max_length: int = 128,
        seed: int = 0,
    ) -> None:
        self.start = start
        self.frozen = frozen
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch = batch
        self.max_length = max_length
        self.seed = seed

    def fit(self, X: Sequence[str], y: Sequence[Any]) -> AlbertClassifier:
        """Learn from texts and their labels."""
        labels = np.asarray(y)
        self.classes_ = np.unique(labels)
        names = {str(label): label for label in self.classes_.tolist()}
        if len(names) < len(self.classes_):
            raise AlbertkitError("two labels look the same as text; rename one of them")
        examples = [Text(text, label=str(label)) for text, label in zip(X, labels.tolist(), strict=True)]
        with tempfile.TemporaryDirectory() as folder:
            self.albert_ = Albert(self._learn(examples, Path(folder)))
        self.names_ = names
        return self

    def _learn(self, examples: list[Text], folder: Path) -> Path:
        if self.frozen:
            from albertkit.interop.convert import open_model
            from albertkit.train.frozen import fit, write

            made = fit(Albert(self.start), open_model(self.start), examples, seed=self.seed)
            return write(made, self.start, folder / "model")
        from albertkit.train.tune import finetune
        from albertkit.train.tuning import Options

        options = Options(
            epochs=self.epochs, learning_rate=self.learning_rate, batch=self.batch, max_length=self.max_length,
            seed=self.seed,
        )  # fmt: skip
        return finetune("classify", examples, (), folder / "run", self.start, options).model

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """The label of each text."""
        return np.array([self.names_[found.label] for found in self.albert_.classify(list(X))])

    def predict_proba(self, X: Sequence[str]) -> np.ndarray:
        """Probabilities, a column for each of `classes_`."""
        found = self.albert_.classify(list(X))
        return np.array([[row.probabilities[str(label)] for label in self.classes_.tolist()] for row in found])
