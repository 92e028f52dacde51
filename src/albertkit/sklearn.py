"""scikit-learn estimators: `AlbertVectorizer` for vectors, `AlbertClassifier` for classes.

In: lists of texts and labels. Out: vectors or labels. It builds on `albert.py` and `train/`. It needs scikit-learn, and
torch for a classifier that is not `frozen`.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.file_io import new_folder
from albertkit.runtime.embed import list_texts
from albertkit.runtime.runtime_model import Depth
from albertkit.tasks.dataset import split_examples
from albertkit.tasks.examples import TextExample

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import Tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted
except ImportError as missing:  # pragma: no cover
    raise AlbertkitError("estimators need scikit-learn: run  pip install 'albertkit[frozen]'") from missing

MIN_SPLIT_EXAMPLES = 50  # with at least this many examples, some are held out
REMEDY = "Pass more examples or epochs, a lower learning_rate, or frozen=True"


class AlbertVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Sentence vectors as a step of a pipeline.

    model: a folder or the name of a built-in model. The default is the built-in English model. pooling, depth, bits:
    as in `Albert`.

    >>> AlbertVectorizer().fit_transform(["a cat", "a dog"]).shape
    (2, 384)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        pooling: str | None = None,
        depth: Depth | None = None,
        bits: int | None = None,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.depth = depth
        self.bits = bits

    def fit(self, X: Iterable[str], y: object = None) -> AlbertVectorizer:
        """Open the model. Nothing is trained."""
        self.albert_ = Albert(self.model, bits=self.bits)
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:
        """Sentence vectors (texts, dim)."""
        check_is_fitted(self)
        return self.albert_.embed(list_texts(X), pooling=self.pooling, depth=self.depth)

    @property
    def _n_features_out(self) -> int:
        """The number of columns, for `get_feature_names_out` and `set_output`."""
        return self.albert_.dim

    def __sklearn_tags__(self) -> Tags:
        return reads_texts(super().__sklearn_tags__())


def reads_texts(tags: Tags) -> Tags:
    """The tags of an estimator whose input is a list of texts."""
    tags.input_tags.string, tags.input_tags.two_d_array = True, False
    return tags


class AlbertClassifier(ClassifierMixin, BaseEstimator):
    """Text classification.

    model: the base model. The default is the built-in English model. frozen: train only a head on its sentence vectors,
    which takes seconds. Otherwise the whole model is fine-tuned. Of 50 examples or more, 10 % are held out to choose
    the best epoch and to calibrate. nearest: no training; predict the class whose mean sentence vector is nearest.
    epochs, learning_rate, batch_size, max_length, seed, optimizer: as in `albertkit finetune`; of these, a frozen model
    accepts only max_length and seed. `save` writes a model folder for `Albert` and all commands.

    >>> AlbertClassifier().fit(["a cat", "a dog"] * 9, ["cat", "dog"] * 9).predict(["a cat"])
    array(['cat'], dtype='<U3')
    """

    def __init__(
        self,
        model: str | Path | None = None,
        frozen: bool = True,
        epochs: float | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_length: int = 128,
        seed: int = 0,
        nearest: bool = False,
        optimizer: str | None = None,
    ) -> None:
        self.model = model
        self.frozen = frozen
        self.nearest = nearest
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.seed = seed
        self.optimizer = optimizer

    def fit(self, X: Sequence[str], y: Sequence[Any]) -> AlbertClassifier:
        """Train on texts and their labels."""
        texts, labels = list_texts(X), np.asarray(y)
        if labels.shape != (len(texts),):
            raise AlbertkitError(
                f"there are {len(texts)} texts and labels of shape {labels.shape}. Pass one label per text."
            )
        values = (x.item() if isinstance(x, np.generic) else x for x in np.asarray(y, object))
        invalid = [value for value in values if not isinstance(value, str | int | float) or value != value]
        if invalid:  # `labels` has NaN as "nan"
            raise AlbertkitError(f"one label is {invalid[0]!r}. Pass one text or number per text.")
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        self.names_ = {str(label): label for label in self.classes_.tolist()}
        if len(self.names_) < len(self.classes_):
            raise AlbertkitError("two labels are identical as text. Rename one of them.")
        examples = [TextExample(text, label=str(label)) for text, label in zip(texts, labels.tolist(), strict=True)]
        with tempfile.TemporaryDirectory() as folder:
            model = self._train(examples, Path(folder))
            self.files_ = {file.name: file.read_bytes() for file in sorted(model.iterdir())}
        self._open()
        return self

    def __sklearn_tags__(self) -> Tags:
        return reads_texts(super().__sklearn_tags__())

    def save(self, folder: str | Path) -> Path:
        """Write the trained model as a folder. An existing folder is not overwritten."""
        check_is_fitted(self)
        with new_folder(Path(folder)) as aside:
            self._write(aside)
        return Path(folder)

    def _write(self, folder: Path) -> None:
        for name, data in self.files_.items():
            (folder / name).write_bytes(data)

    def _open(self) -> None:
        """Open the trained model from a temporary folder, which is deleted with it."""
        folder = Path(tempfile.mkdtemp())
        self._write(folder)
        self.albert_ = Albert(folder)
        weakref.finalize(self.albert_, shutil.rmtree, folder, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the open model, so that a fitted classifier can be copied."""
        return {name: value for name, value in super().__getstate__().items() if name != "albert_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "files_" in state:
            self._open()

    def _train(self, examples: list[TextExample], folder: Path) -> Path:
        from albertkit.train.train_settings import FinetuneSettings

        options = FinetuneSettings(
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            max_length=self.max_length,
            seed=self.seed,
            freeze=self.frozen,
            nearest=self.nearest,
            optimizer=self.optimizer,
        )
        if self.nearest and not self.frozen:
            raise AlbertkitError("nearest=True does not train the model, so frozen=False is not available. Omit one.")
        if self.frozen:
            from albertkit.interop.convert import open_model
            from albertkit.train.frozen_head import fit_head, write_head

            artifact = fit_head(Albert(self.model), open_model(self.model), examples, settings=options)
            return write_head(artifact, self.model, folder / "model")
        from albertkit.train.finetune import finetune_examples

        learn, dev = split_examples(examples) if len(examples) >= MIN_SPLIT_EXAMPLES else (examples, [])
        done = finetune_examples("classify", learn, dev, folder / "run", self.model, options)
        if "failed" in done.runs[0]:
            warnings.warn(f"{done.runs[0]['failed']}: the training failed. {REMEDY}", ConvergenceWarning, stacklevel=3)
        return done.model

    def predict(self, X: Sequence[str]) -> np.ndarray:
        """The label of each text."""
        check_is_fitted(self)
        return np.array([self.names_[str(result.label)] for result in self.albert_.classify(list_texts(X))])

    def predict_proba(self, X: Sequence[str]) -> np.ndarray:
        """Probabilities, one column per class of `classes_`."""
        check_is_fitted(self)
        by_text = [result.probabilities or {} for result in self.albert_.classify(list_texts(X))]
        rows = [[row[str(label)] for label in self.classes_.tolist()] for row in by_text]
        return np.array(rows, float).reshape(-1, len(self.classes_))
