"""Classes and numbers for texts and pairs: one class, several at once, or a value.

In: `TextExample` examples. Out: `Classification` results. Metrics are scikit-learn's and scipy's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from albertkit.errors import AlbertkitError, nearest, need
from albertkit.tasks.examples import TextExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer

OUT_OF_SCOPE = "oos"  # the class of texts that fit none
KINDS = ("single", "multi", "regression")
LIKELIER = 0.5  # a class below this probability is likelier wrong than right


@dataclass(frozen=True)
class Classification:
    """What a text was found to be."""

    label: str | tuple[str, ...] | float
    """The class, the classes, or the value."""
    probability: float = 1.0
    """How sure: of the class, or of all classes of a multi-label answer together."""
    probabilities: dict[str, float] | None = None
    """Of every class."""
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""


@dataclass(frozen=True)
class ClassifyTask:
    """Text classification, single or pair; sentiment, matching, regression."""

    labels: tuple[str, ...]
    kind: str = "single"
    temperature: float = 1.0
    """Scores are divided by it, so that probabilities mean what they say; found on held-out examples."""
    threshold: float = 0.5
    """Multi-label: classes at least this likely are given."""
    min_probability: float = 0.0
    """Single class: below this probability a text is out of scope."""
    class_weights: tuple[float, ...] | None = None
    """Of each class in the loss; None weighs all alike."""
    mean: float = 0.0
    std: float = 1.0
    """Regression: value = mean + std · score."""

    name = "classify"
    head = "classify"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise AlbertkitError(f"kind is {self.kind!r}; choose one of {', '.join(KINDS)}")

    @classmethod
    def from_examples(cls, examples: Sequence[TextExample], kind: str | None = None) -> ClassifyTask:
        """The task that these examples are about: kind and classes as found in their labels."""
        found = [e.label for e in examples]
        if not found or any(label is None for label in found):
            where = next((e.where for e in examples if e.label is None), "the data")
            raise AlbertkitError(f"{where} has no label; training needs one for each text")
        if kind is None:
            first = found[0]
            kind = "regression" if isinstance(first, float) else "multi" if isinstance(first, tuple) else "single"
        if kind == "regression":
            values = np.array([float(label) for label in found], np.float64)  # type: ignore[arg-type]
            return cls((), "regression", mean=float(values.mean()), std=float(values.std()) or 1.0)
        counts = Counter(c for label in found for c in (label if isinstance(label, tuple) else (str(label),)))
        if len(counts) < 2 and kind == "single":
            raise AlbertkitError(f"all {len(found)} examples have the class {next(iter(counts))!r}; two are needed")
        return cls(tuple(sorted(counts)), kind)

    @property
    def outputs(self) -> int:
        """Rows of the head."""
        return max(1, len(self.labels))

    def features(self, examples: Sequence[TextExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One feature for each example; the longer text of a pair is cut first."""
        alone = [i for i, e in enumerate(examples) if e.pair is None]
        paired = [i for i, e in enumerate(examples) if e.pair is not None]
        made: list[Feature | None] = [None] * len(examples)
        for places in (alone, paired):
            pairs = [examples[i].pair or "" for i in places] if places is paired else None
            found = tokenizer.encode_batch([examples[i].text for i in places], pairs, max_length=max_length)
            for i, encoding in zip(places, found, strict=True):
                target = self.target(examples[i]) if self.has_known_label(examples[i]) else None
                made[i] = Feature(encoding.ids, encoding.segments, i, target)
        return [feature for feature in made if feature is not None]

    def has_known_label(self, example: TextExample) -> bool:
        """Whether the label is one of the task's; others cannot be learnt, and count as missed when measured."""
        label = example.label
        if label is None or self.kind == "regression":
            return label is not None
        return all(one in self.labels for one in (label if isinstance(label, tuple) else (str(label),)))

    @staticmethod
    def value(example: TextExample) -> float:
        """The label as a number."""
        try:
            return float(example.label)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise AlbertkitError(
                f"{example.where or 'an example'} has the label {example.label!r}, and the model gives numbers; give numbers"
            ) from None

    def target(self, example: TextExample) -> int | list[float] | float | None:
        """The label in numbers: a row, a list of 0 and 1, or the value in spreads from the mean."""
        label = example.label
        if label is None:
            return None
        if self.kind == "regression":
            if not isinstance(label, float):
                label = self.value(example)
            return (label - self.mean) / self.std
        for one in label if isinstance(label, tuple) else (str(label),):
            if one not in self.labels:
                raise AlbertkitError(
                    f"{example.where or 'an example'} has the class {one!r}{nearest(one, self.labels)}, which the training "
                    f"data does not have; known are {', '.join(self.labels[:20])}"
                )
        if self.kind == "multi":
            return [float(name in (label if isinstance(label, tuple) else (label,))) for name in self.labels]
        return self.labels.index(str(label))

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[TextExample]
    ) -> list[Classification]:
        """One `Classification` for each example."""
        return [self.result(np.asarray(row, np.float64)) for row in scores]

    def result(self, row: np.ndarray) -> Classification:
        """Scores of one text (classes,) → its label."""
        if self.kind == "regression":
            return Classification(self.mean + self.std * float(row[0]))
        probabilities = self.probabilities(row[None])[0]
        by_name = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if self.kind == "multi":
            given = tuple(name for name, p in by_name.items() if p >= self.threshold)
            sure = float(np.prod(np.maximum(probabilities, 1 - probabilities)))
            return Classification(given, sure, by_name)
        best = int(probabilities.argmax())
        if probabilities[best] < self.min_probability and self.labels[best] != OUT_OF_SCOPE:
            return Classification(OUT_OF_SCOPE, 1 - float(probabilities[best]), by_name)
        return Classification(self.labels[best], float(probabilities[best]), by_name)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes) scores → probabilities, at the task's temperature."""
        scores = scores / self.temperature
        if self.kind == "multi":
            return 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        return scores / scores.sum(-1, keepdims=True)

    def measure(self, results: Sequence[Classification], examples: Sequence[TextExample]) -> dict[str, float]:
        """Accuracy, F1 (of the second of two classes, else the mean over classes), Matthews' correlation; or correlations."""
        need("sklearn", "train", "measuring")
        from scipy.stats import pearsonr, spearmanr
        from sklearn import metrics

        if self.kind == "regression":
            found = [float(r.label) for r in results]  # type: ignore[arg-type]
            right = [self.value(e) for e in examples]
            flat = len(set(found)) < 2 or len(set(right)) < 2
            return {
                "spearman": 0.0 if flat else float(spearmanr(found, right).statistic),
                "pearson": 0.0 if flat else float(pearsonr(found, right).statistic),
                "rmse": math.sqrt(metrics.mean_squared_error(right, found)),
            }
        if self.kind == "multi":
            have = [e.label if isinstance(e.label, tuple) else (str(e.label),) for e in examples]
            truth = np.array([[float(n in labels) for n in self.labels] for labels in have])
            guess = np.array([[float(n in r.label) for n in self.labels] for r in results])  # type: ignore[operator]
            return {
                "f1": float(metrics.f1_score(truth, guess, average="micro", zero_division=0)),
                "f1_macro": float(metrics.f1_score(truth, guess, average="macro", zero_division=0)),
                "exact": float((truth == guess).all(1).mean()),
            }
        right_names, names = [str(e.label) for e in examples], [str(r.label) for r in results]
        second = [self.labels[1]] if len(self.labels) == 2 else None  # labels of neither class may be among the names
        flat = len({*right_names, *names}) < 2  # scikit-learn warns, and says 0
        found_scores = {
            "accuracy": float(metrics.accuracy_score(right_names, names)),
            "f1": float(metrics.f1_score(right_names, names, zero_division=0, average="macro", labels=second)),
            "mcc": 0.0 if flat else float(metrics.matthews_corrcoef(right_names, names)),
        }
        return found_scores | out_of_scope_metrics(results, examples)

    def fit_temperature(self, scores: np.ndarray, examples: Sequence[TextExample]) -> float:
        """The temperature at which held-out labels are likeliest; 1 for a regression, and where no label is known."""
        known = [i for i, e in enumerate(examples) if self.has_known_label(e)]
        if self.kind == "regression" or not len(scores) or not known:
            return 1.0
        from scipy.optimize import minimize_scalar

        scores, targets = scores[known], np.array([self.target(examples[i]) for i in known])

        def loss(log_temperature: float) -> float:
            scaled = scores.astype(np.float64) / math.exp(log_temperature)
            if self.kind == "multi":
                return float((np.logaddexp(0, scaled) - targets * scaled).mean())
            top = scaled.max(1, keepdims=True)
            total = top[:, 0] + np.log(np.exp(scaled - top).sum(1))
            return float((total - scaled[np.arange(len(targets)), targets]).mean())

        return math.exp(float(minimize_scalar(loss, bounds=(-2.0, 3.0), method="bounded").x))

    def fit_min_probability(self, scores: np.ndarray, examples: Sequence[TextExample]) -> ClassifyTask:
        """Where out of scope is a class: the task that also says it of texts whose best class is likelier wrong than right,
        if that is better on held-out examples. Few examples of what fits nothing teach the class only what they are about.

        Better is a higher mean of two shares: right among texts in scope, and found among those out of it.
        """
        strange = np.array([e.label == OUT_OF_SCOPE for e in examples])
        if self.kind != "single" or OUT_OF_SCOPE not in self.labels or len(set(strange.tolist())) < 2:
            return self
        plain = replace(self, temperature=self.fit_temperature(scores, examples), min_probability=0.0)

        def score(task: ClassifyTask) -> float:
            found = zip(task.results(list(scores), (), examples), examples, strict=True)
            right = np.array([r.label == e.label for r, e in found])
            return float(right[strange].mean() + right[~strange].mean())

        return max((plain, replace(plain, min_probability=LIKELIER)), key=score)


def out_of_scope_metrics(found: Sequence[Classification], examples: Sequence[TextExample]) -> dict[str, float]:
    """Where some texts are out of scope: accuracy among the others, and F1 of finding them."""
    strange = [example.label == OUT_OF_SCOPE for example in examples]
    if not any(strange) or all(strange):
        return {}
    from sklearn.metrics import f1_score

    said = [result.label == OUT_OF_SCOPE for result in found]
    inside = [r.label == e.label for r, e in zip(found, examples, strict=True) if e.label != OUT_OF_SCOPE]
    return {
        "in_scope_accuracy": sum(inside) / len(inside),
        "out_of_scope_f1": float(f1_score(strange, said, zero_division=0)),
    }
