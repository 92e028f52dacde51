"""Text classification and regression: one class, several classes, or a number for a text or a pair.

In: `TextExample`s. Out: `Classification`s, and metrics from scikit-learn and scipy. Imports `task.py`. `dialogue.py`
uses this module to classify turns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from albertkit.errors import AlbertkitError, check_choice, need
from albertkit.tasks.examples import TextExample
from albertkit.tasks.task import Feature, Task, TaskResult, check_variety, softmax
from albertkit.tokenizer import Tokenizer

OUT_OF_SCOPE = "oos"  # the class of texts that belong to no other class
KINDS = ("single", "multi", "regression")
EVEN_ODDS = 0.5  # a class with a lower probability is more likely wrong than right


@dataclass(frozen=True)
class Classification(TaskResult):
    """The predicted label of a text.

    >>> from albertkit import Classification
    >>> Classification("praise", probability=0.97).label
    'praise'
    """

    label: str | tuple[str, ...] | float
    """The class, the classes, or the value."""
    probability: float = 1.0
    """Probability of the class; for several classes, their joint probability."""
    probabilities: dict[str, float] | None = None
    """Probability of every class."""


@dataclass(frozen=True)
class ClassifyTask(Task):
    """Classification of texts or pairs, and regression."""

    labels: tuple[str, ...]
    kind: str = "single"
    temperature: float = 1.0
    """Softmax temperature, fitted on held-out examples: scores are divided by it."""
    threshold: float = 0.5
    """Several classes: those with at least this probability are predicted."""
    min_probability: float = 0.0
    """One class: a text whose best class has a lower probability is out of scope."""
    class_weights: tuple[float, ...] | None = None
    """Weights of the classes in the loss; None: all equal."""
    mean: float = 0.0
    std: float = 1.0
    """Regression: value = mean + std · score."""
    separator: str | None = None
    """Several classes: what separated them in the training file."""
    score_scale: float = 1.0
    """Scores in training = this times scores; not 1 if temperature or std are in the weights. For early exit."""

    name = "classify"
    heads = ("classify",)
    usage = "classify"
    example_types = (TextExample,)
    truncates = True
    can_train_on_frozen_vectors = True

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)

    @classmethod
    def from_examples(
        cls, examples: Sequence[TextExample], kind: str | None = None, separator: str | None = None
    ) -> ClassifyTask:
        """The task with the kind and the classes of these examples."""
        labels = [e.label for e in examples]
        if kind is None:
            kind = label_kind(labels[0])
        if kind == "regression":
            values = np.array([float(label) for label in labels], np.float64)  # type: ignore[arg-type]
            check_variety(examples, set(values.tolist()), "value")
            return cls((), "regression", mean=float(values.mean()), std=float(values.std()) or 1.0)
        counts = Counter(name for label in labels for name in _class_names(label))
        if kind == "single":
            check_variety(examples, counts, "class")
        return cls(tuple(sorted(counts)), kind, separator=separator)

    def features(self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One feature per example; the longer text of a pair is truncated first."""
        features: dict[int, Feature] = {}
        for has_pair in (False, True):
            numbers = [i for i, example in enumerate(examples) if (example.pair is not None) == has_pair]
            pairs = [examples[i].pair or "" for i in numbers] if has_pair else None
            encodings = tokenizer.encode_batch([examples[i].text for i in numbers], pairs, max_length=max_length)
            for i, encoding in zip(numbers, encodings, strict=True):
                features[i] = Feature(encoding.ids, encoding.segments, i, self.target(examples[i]))
        return [features[i] for i in range(len(examples))]

    @staticmethod
    def numeric_label(example: TextExample) -> float:
        try:
            return float(example.label)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise AlbertkitError(
                f"{example.where or 'an example'} has the label {example.label!r}, but the model predicts numbers. "
                "Write a number."
            ) from None

    def target(self, example: TextExample) -> int | list[float] | float | None:
        """The label as a class number, a list of 0 and 1, or a standardized value; None if missing or unknown.

        Unknown labels are not used in training, and count as errors in metrics.
        """
        if example.label is None:
            return None
        if self.kind == "regression":
            return (self.numeric_label(example) - self.mean) / self.std
        names = _class_names(example.label)
        if not all(name in self.labels for name in names):
            return None
        return [float(label in names) for label in self.labels] if self.kind == "multi" else self.labels.index(names[0])

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[TextExample]
    ) -> list[Classification]:
        return [self.result(np.asarray(row, np.float64)) for row in scores]

    def result(self, row: np.ndarray) -> Classification:
        """The label of one text, from its scores (classes,)."""
        if self.kind == "regression":
            return Classification(self.mean + self.std * float(row[0]))
        probabilities = self.probabilities(row[None])[0]
        by_name = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if self.kind == "multi":
            names = tuple(name for name, p in by_name.items() if p >= self.threshold)
            return Classification(names, float(np.prod(np.maximum(probabilities, 1 - probabilities))), by_name)
        best = int(probabilities.argmax())
        if probabilities[best] < self.min_probability and self.labels[best] != OUT_OF_SCOPE:
            return Classification(OUT_OF_SCOPE, 1 - float(probabilities[best]), by_name)
        return Classification(self.labels[best], float(probabilities[best]), by_name)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes) scores → probabilities, at the task's temperature."""
        scores = scores / self.temperature
        if self.kind == "multi":
            return 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
        return softmax(scores)

    def measure(self, results: Sequence[Classification], examples: Sequence[TextExample]) -> dict[str, float]:
        """Regression: correlations. Several classes: F1. One class: accuracy, F1 and Matthews' correlation.

        With two classes, F1 is that of the second class; otherwise it is the mean over classes.
        """
        need("sklearn", "train", "measuring")
        if self.kind == "regression":
            return self._regression_metrics(results, examples)
        from sklearn import metrics

        if self.kind == "multi":
            truth, predicted = (
                np.array([[float(name in _class_names(item.label)) for name in self.labels] for item in part])
                for part in (examples, results)
            )
            return {
                "f1": float(metrics.f1_score(truth, predicted, average="micro", zero_division=0)),
                "f1_macro": float(metrics.f1_score(truth, predicted, average="macro", zero_division=0)),
                "exact": float((truth == predicted).all(1).mean()),
            }
        truth_names, names = [str(e.label) for e in examples], [str(r.label) for r in results]
        second = [self.labels[1]] if len(self.labels) == 2 else None  # unknown labels may be among the names
        is_constant = len({*truth_names, *names}) < 2  # scikit-learn would warn, and return 0
        values = {
            "accuracy": float(metrics.accuracy_score(truth_names, names)),
            "f1": float(metrics.f1_score(truth_names, names, zero_division=0, average="macro", labels=second)),
            "mcc": 0.0 if is_constant else float(metrics.matthews_corrcoef(truth_names, names)),
        }
        return values | out_of_scope_metrics(results, examples)

    def _regression_metrics(
        self, results: Sequence[Classification], examples: Sequence[TextExample]
    ) -> dict[str, float]:
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import mean_squared_error

        predicted = [float(r.label) for r in results]  # type: ignore[arg-type]
        truth = [self.numeric_label(e) for e in examples]
        is_constant = len(set(predicted)) < 2 or len(set(truth)) < 2
        return {
            "spearman": 0.0 if is_constant else float(spearmanr(predicted, truth).statistic),
            "pearson": 0.0 if is_constant else float(pearsonr(predicted, truth).statistic),
            "rmse": math.sqrt(mean_squared_error(truth, predicted)),
        }

    def fit_temperature(self, scores: np.ndarray, examples: Sequence[TextExample]) -> float:
        """The temperature with the lowest loss on held-out examples; 1 for a regression or without known labels."""
        all_targets = [self.target(example) for example in examples]
        known = [i for i, target in enumerate(all_targets) if target is not None]
        if self.kind == "regression" or not len(scores) or not known:
            return 1.0
        from scipy.optimize import minimize_scalar

        scores, targets = scores[known], np.array([all_targets[i] for i in known])

        def loss(log_temperature: float) -> float:
            scaled = scores.astype(np.float64) / math.exp(log_temperature)
            if self.kind == "multi":
                return float((np.logaddexp(0, scaled) - targets * scaled).mean())
            top = scaled.max(1, keepdims=True)
            total = top[:, 0] + np.log(np.exp(scaled - top).sum(1))
            return float((total - scaled[np.arange(len(targets)), targets]).mean())

        return math.exp(float(minimize_scalar(loss, bounds=(-2.0, 3.0), method="bounded").x))

    def fit_min_probability(self, scores: np.ndarray, examples: Sequence[TextExample]) -> ClassifyTask:
        """The task that also rejects texts whose best class is unlikely, if this is better on held-out examples.

        This applies only if out of scope is a class, because its few training examples cannot cover all topics.
        Better means a higher sum of two accuracies: of texts in scope, and of texts out of scope.
        """
        outside = np.array([e.label == OUT_OF_SCOPE for e in examples])
        if self.kind != "single" or OUT_OF_SCOPE not in self.labels or len(set(outside.tolist())) < 2:
            return self
        without = replace(self, temperature=self.fit_temperature(scores, examples), min_probability=0.0)

        def score(task: ClassifyTask) -> float:
            results = zip(task.results(list(scores), (), examples), examples, strict=True)
            correct = np.array([r.label == e.label for r, e in results])
            return float(correct[outside].mean() + correct[~outside].mean())

        return max((without, replace(without, min_probability=EVEN_ODDS)), key=score)


def label_kind(label: str | float | tuple[str, ...] | None) -> str:
    """single (a class), multi (a tuple of classes) or regression (a float)."""
    return "regression" if isinstance(label, float) else "multi" if isinstance(label, tuple) else "single"


def _class_names(label: str | float | tuple[str, ...] | None) -> tuple[str, ...]:
    return label if isinstance(label, tuple) else (str(label),)


def out_of_scope_metrics(results: Sequence[Classification], examples: Sequence[TextExample]) -> dict[str, float]:
    """If some texts are out of scope: the accuracy of the others, and the F1 of detecting them."""
    truth = [example.label == OUT_OF_SCOPE for example in examples]
    if not any(truth) or all(truth):
        return {}
    from sklearn.metrics import f1_score

    predicted = [result.label == OUT_OF_SCOPE for result in results]
    correct = [r.label == e.label for r, e in zip(results, examples, strict=True) if e.label != OUT_OF_SCOPE]
    return {
        "in_scope_accuracy": sum(correct) / len(correct),
        "out_of_scope_f1": float(f1_score(truth, predicted, zero_division=0)),
    }
