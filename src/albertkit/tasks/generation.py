"""Text generation: an MLM encoder predicts the target token by token from the source.

In: `RewriteExample`s. Out: `GeneratedText`s. `train/finetune_task.py` trains the task. `runtime/generate.py` applies it
with one mask for the next token. `GenerateTask.features` documents the training input.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, need
from albertkit.tasks.examples import CJK, RewriteExample, split_words
from albertkit.tasks.task import IGNORE_INDEX, Feature, Task, TaskResult
from albertkit.tokenizer import Tokenizer

SUPPORTED_OPTIONS = {"scale_embedding", "head_size", "brightmart_layout"}  # options that support generation
SPECIAL_TOKENS = 3  # [CLS] and two [SEP]
MIN_SOURCE = 4  # tokens of a source


@dataclass(frozen=True)
class GeneratedText(TaskResult):
    """A generated text.

    >>> from albertkit import GeneratedText
    >>> GeneratedText("A short summary.", score=-0.4, finished=True).text
    'A short summary.'
    """

    text: str
    score: float
    """Mean log-probability of its tokens, including the end token."""
    finished: bool
    """Whether the model predicted the end token before the maximum length."""


@dataclass(frozen=True)
class TargetPrediction:
    """Predictions for every token of a target, given the correct preceding tokens (teacher forcing)."""

    text: str
    """The predicted ids, each once."""
    loss: float
    """Summed over tokens."""
    correct: int
    tokens: int


@dataclass(frozen=True)
class GenerateTask(Task):
    """Source to target."""

    target_length: int = 32
    """Maximum tokens to generate; the source gets the rest of the input."""
    label_smoothing: float = 0.0
    """Share of the loss that is spread over the vocabulary."""
    target_words: int = 10
    """Mean number of words of a target in the training data, which is the length of the copy baseline."""

    name = "generate"
    heads = ("mlm",)
    usage = "generate"
    example_types = (RewriteExample,)
    generates_text = True
    can_exit_early = False
    can_be_explained = False
    has_correct_results = False

    def __post_init__(self) -> None:
        if not 1 <= self.target_length <= 100_000:
            raise AlbertkitError(f"target_length={self.target_length} is too small. Pass 1 or more.")
        if not 0 <= self.label_smoothing < 1:
            raise AlbertkitError(f"label_smoothing={self.label_smoothing} is out of range. Pass 0 or more, below 1.")

    @classmethod
    def from_examples(cls, examples: Sequence[RewriteExample], **settings: float) -> GenerateTask:
        """The task with the mean length of these targets."""
        lengths = [len(split_words(example.target or "")) for example in examples]
        values: dict[str, Any] = {"target_words": max(1, round(float(np.mean(lengths)))), **settings}
        return cls(**values)

    def sources(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
        """[CLS] source [SEP] as ids; long sources are truncated."""
        first, last, _ = special_ids(tokenizer)
        room = self.text_room(max_length)
        if room < MIN_SOURCE:
            raise AlbertkitError(
                f"target_length={self.target_length} leaves {max(0, room)} of {max_length} tokens for a source. "
                "Use a smaller --target-length or a larger --max-length."
            )
        return [[first, *ids[:room], last] for ids in tokenizer.ids_batch(texts)]

    def text_room(self, max_length: int) -> int:
        """Tokens of a source, without special tokens."""
        return max_length - self.target_length - SPECIAL_TOKENS

    def find_truncated(
        self, examples: Sequence[RewriteExample], features: Sequence[Feature], tokenizer: Tokenizer, max_length: int
    ) -> list[int]:
        """The indexes of the examples with a source that is truncated."""
        room = self.text_room(max_length)
        sources = tokenizer.ids_batch([example.source for example in examples])
        return [place for place, ids in enumerate(sources) if len(ids) > room]

    def find_truncated_targets(self, features: Sequence[Feature], tokenizer: Tokenizer) -> list[int]:
        """The indexes of the examples with a target that is truncated: it has no end token."""
        return [feature.example for feature in features if feature.target[-1] != special_ids(tokenizer)[1]]

    def features(self, examples: Sequence[RewriteExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One per example: [CLS] source [SEP] target [SEP] [MASK] … [MASK]; a truncated target has no end token.

        Source tokens attend to the source. A target token also attends to itself and to earlier target tokens. Each
        target token has a mask at its position, which predicts it from the source and the earlier target tokens. No
        other token attends to a mask, so one pass trains every position (UniLM, Dong et al. 2019; s2s-ft, Bao et al.
        2021).
        """
        _, last, mask = special_ids(tokenizer)
        sources = self.sources([example.source for example in examples], tokenizer, max_length)
        targets = tokenizer.ids_batch([example.target or "" for example in examples])
        features = []
        for number, (source, ids) in enumerate(zip(sources, targets, strict=True)):
            target = [*ids, last][: self.target_length]
            begin, count = len(source), len(target)
            places, steps = list(range(begin, begin + count)), range(1, count + 1)
            features.append(
                Feature(
                    ids=[*source, *target, *[mask] * count],
                    segments=[0] * begin + [1] * 2 * count,
                    example=number,
                    target=[IGNORE_INDEX] * (begin + count) + target,
                    positions=[*range(begin), *places, *places],
                    ranks=[0] * begin + [2 * i for i in steps] + [2 * i - 1 for i in steps],
                )
            )
        return features

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[RewriteExample]
    ) -> list[TargetPrediction]:
        """The predictions at each mask, from (masks, 2): the most likely id, and the log-probability of the target."""
        results = []
        for row, feature in zip(scores, features, strict=True):
            target = [i for i in feature.target if i != IGNORE_INDEX]
            predicted = row[:, 0].astype(int).tolist()
            correct = sum(a == b for a, b in zip(predicted, target, strict=True))
            text = " ".join(map(str, dict.fromkeys(predicted)))
            results.append(TargetPrediction(text, -float(row[:, 1].sum()), correct, len(target)))
        return results

    def measure(
        self, results: Sequence[TargetPrediction | GeneratedText], examples: Sequence[RewriteExample]
    ) -> dict[str, float]:
        """In training: loss and accuracy per token. Of generated texts: BLEU and ROUGE-L, beside a copy baseline."""
        predictions = [r for r in results if isinstance(r, TargetPrediction)]
        if predictions:
            tokens = sum(r.tokens for r in predictions)
            loss = sum(r.loss for r in predictions) / tokens
            return {"loss": loss, "word_accuracy": sum(r.correct for r in predictions) / tokens}
        targets = [example.target or "" for example in examples]
        copies = text_quality([first_words(example.source, self.target_words) for example in examples], targets)
        words = sum(len(split_words(target)) for target in targets)
        return {
            **text_quality([result.text for result in results], targets),
            **{f"copy_{name}": value for name, value in copies.items()},
            "length_ratio": sum(len(split_words(r.text)) for r in results) / max(1, words),
        }


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of [CLS], [SEP] and [MASK]."""
    first, last, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    if first is None or last is None or mask is None:
        raise AlbertkitError("this vocabulary lacks [CLS], [SEP] or [MASK]; text generation needs all three.")
    return first, last, mask


def check_can_generate(config: AlbertConfig, names: Collection[str]) -> None:
    """Raise an error if a model cannot generate text. names: names of its weights."""
    odd = sorted(set(config.options.active()) - SUPPORTED_OPTIONS)
    if odd:
        raise AlbertkitError(
            f"this model has the option {odd[0]}, which does not support generation. Use a canonical base model."
        )
    if "heads.mlm.bias" not in names:
        raise AlbertkitError(
            "this model has no masked-language-model head, which text generation needs. "
            "Use a pre-trained base model, such as small-pretrained."
        )
    if config.type_vocab_size < 2:
        raise AlbertkitError("this model has one segment: source and target need two. Use another base model.")


def first_words(text: str, count: int) -> str:
    """The first words of a text, as a copy baseline."""
    words = split_words(text)[:count]
    return text[words[0][0] : words[-1][1]] if words else ""


class RougeTokenizer:
    """Tokenizer for rouge-score, whose default tokenizer supports only Latin letters."""

    def tokenize(self, text: str) -> list[str]:
        """Words in lower case, without punctuation; Chinese by characters."""
        lower = text.lower()
        return [lower[a:b] for a, b in split_words(lower) if any(c.isalnum() for c in lower[a:b])]


def text_quality(texts: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """ROUGE-L (mean F1) and corpus BLEU, from 0 to 1, in lower case."""
    need("rouge_score", "generate", "measuring generated texts")
    need("sacrebleu", "generate", "measuring generated texts")
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

    scorer = RougeScorer(["rougeL"], tokenizer=RougeTokenizer())
    rouge = [scorer.score(target, text)["rougeL"].fmeasure for text, target in zip(texts, targets, strict=True)]
    letters = "".join(targets)
    chinese = len(CJK.findall(letters)) > len(letters) / 2
    bleu = BLEU(lowercase=True, tokenize="zh" if chinese else "13a").corpus_score(list(texts), [list(targets)])
    return {"rouge_l": float(np.mean(rouge)), "bleu": bleu.score / 100}
