"""Text generation: a text is written from another one, word by word, by an encoder that has learnt to fill masks.

In: `RewriteExample` examples. Out: `GeneratedText`. Before this file: `rewrites.py`; after it: `train/finetune_task.py` and `runtime/generate.py`.

The input of a training is

    [CLS] source [SEP] target [SEP] [MASK] [MASK] … [MASK]

Source tokens see the source. A target token sees the source, the targets before it and itself. For each target token there is a mask at the
same position, which sees the source, the targets before it and itself, and must say what stands there; nobody else sees it. So one pass
trains every position, and each is asked what it will be asked in use (UniLM, Dong et al. 2019; s2s-ft, Bao et al. 2021). In use there is one mask: the next word's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, need
from albertkit.tasks.examples import RewriteExample
from albertkit.tasks.tag import IGNORE_INDEX
from albertkit.tasks.task import Feature
from albertkit.tasks.word_alignment import CJK, split_words
from albertkit.tokenizer import Tokenizer

KNOWN_OPTIONS = {"scale_embedding", "head_size", "brightmart_layout"}  # that work word by word as they do at once
SPECIALS = 3  # [CLS] and two [SEP]
LEAST = 4  # tokens of a source


@dataclass(frozen=True)
class GeneratedText:
    """A text that was written, and how sure the model is of it."""

    text: str
    score: float
    """Mean log-probability of its tokens, the end included."""
    finished: bool
    """Whether it came to an end by itself, rather than at the most tokens allowed."""
    depth: ClassVar[int | None] = None


@dataclass(frozen=True)
class TargetPrediction:
    """What a model says at every token of a text when all tokens before are the right ones."""

    text: str
    """The ids it said, each once."""
    loss: float
    """Summed over tokens."""
    correct: int
    tokens: int


@dataclass(frozen=True)
class GenerateTask:
    """Source to target."""

    target_length: int = 32
    """Most tokens to write; the source gets the rest of the longest input."""
    smoothing: float = 0.0
    """Share of the loss that is spread over all words."""
    target_words: int = 10
    """Mean words of a target in the training data: what the copy baseline takes."""

    name = "generate"
    head = "mlm"
    labels: ClassVar[tuple[str, ...]] = ()
    outputs = 0

    def __post_init__(self) -> None:
        if not 1 <= self.target_length <= 100_000:
            raise AlbertkitError(f"target_length is {self.target_length}; it must be 1 or more")
        if not 0 <= self.smoothing < 1:
            raise AlbertkitError(f"smoothing is {self.smoothing}; it must be from 0 up to, not including, 1")

    @classmethod
    def from_examples(cls, examples: Sequence[RewriteExample], **settings: Any) -> GenerateTask:
        """The task; the examples must have targets."""
        for example in examples:
            if not example.target:
                raise AlbertkitError(f"{example.where or 'an example'} has no target; training needs one")
        lengths = [len(split_words(example.target or "")) for example in examples]
        return cls(**{"target_words": max(1, round(float(np.mean(lengths)))), **settings})

    def room(self, max_length: int) -> int:
        """Tokens of a source that are read."""
        room = max_length - self.target_length - SPECIALS
        if room < LEAST:
            raise AlbertkitError(
                f"target_length is {self.target_length} and the longest input has {max_length} tokens, which leaves "
                f"{max(0, room)} for a source; make --target-length smaller or --max-length larger"
            )
        return room

    def sources(self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> list[list[int]]:
        """[CLS] source [SEP] as the model reads it; long sources lose their end."""
        first, last, _ = special_ids(tokenizer)
        room = self.room(max_length)
        return [[first, *ids[:room], last] for ids in tokenizer.ids_batch(texts)]

    def features(self, examples: Sequence[RewriteExample], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One for each example; a target that is cut has no end to learn."""
        _, last, mask = special_ids(tokenizer)
        sources = self.sources([example.source for example in examples], tokenizer, max_length)
        targets = tokenizer.ids_batch([example.target or "" for example in examples])
        made = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            right = [*target, last][: self.target_length]
            begin, count = len(source), len(right)
            ids = [*source, *right, *[mask] * count]
            places = list(range(begin, begin + count))
            made.append(
                Feature(
                    ids, [0] * begin + [1] * 2 * count, number, [IGNORE_INDEX] * (begin + count) + right,
                    positions=[*range(begin), *places, *places],
                    ranks=[0] * begin + [2 * i for i in range(1, count + 1)] + [2 * i - 1 for i in range(1, count + 1)],
                )
            )  # fmt: skip
        return made

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[RewriteExample]
    ) -> list[TargetPrediction]:
        """What was said at each mask, from (masks, 2): the likeliest token, and the log-probability of the right one."""
        made = []
        for row, feature in zip(scores, features, strict=True):
            right = [target for target in feature.target if target != IGNORE_INDEX]
            said = row[:, 0].astype(int).tolist()
            hits = sum(a == b for a, b in zip(said, right, strict=True))
            made.append(
                TargetPrediction(" ".join(map(str, dict.fromkeys(said))), -float(row[:, 1].sum()), hits, len(right))
            )
        return made

    def measure(self, results: Sequence[Any], examples: Sequence[RewriteExample]) -> dict[str, float]:
        """Loss and accuracy for each word of right texts, as in training; BLEU and ROUGE-L of written ones, beside those of a copy."""
        if results and isinstance(results[0], TargetPrediction):
            tokens = sum(r.tokens for r in results)
            loss = sum(r.loss for r in results) / tokens
            return {"loss": loss, "word_accuracy": sum(r.correct for r in results) / tokens}
        right = [example.target or "" for example in examples]
        found = text_quality([result.text for result in results], right)
        copied = text_quality([first_words(example.source, self.target_words) for example in examples], right)
        length = sum(len(split_words(r.text)) for r in results) / max(1, sum(len(split_words(t)) for t in right))
        return {**found, **{f"copy_{name}": value for name, value in copied.items()}, "length_ratio": length}


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of [CLS], [SEP] and [MASK]."""
    first, last, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    if first is None or last is None or mask is None:
        raise AlbertkitError("this vocabulary lacks [CLS], [SEP] or [MASK], and a model that writes needs all three")
    return first, last, mask


def check_can_generate(config: AlbertConfig, names: Collection[str]) -> None:
    """Refuse a model that cannot write: what it lacks, or what it has that does not work word by word."""
    odd = sorted(set(config.options.active()) - KNOWN_OPTIONS)
    if odd:
        raise AlbertkitError(
            f"this model has the option {odd[0]}, which does not work word by word; start from a canonical one"
        )
    if "heads.mlm.bias" not in names:
        raise AlbertkitError(
            "this model has no masked-word head, and writing needs one; start from a pre-trained model, such as small-pretrained"
        )
    if config.type_vocab_size < 2:
        raise AlbertkitError("this model knows one segment, and source and target need two; start from another one")


def first_words(text: str, count: int) -> str:
    """The beginning of a text: what a baseline writes."""
    words = split_words(text)[:count]
    return text[words[0][0] : words[-1][1]] if words else ""


class RougeTokenizer:
    """Words for rouge-score, which by itself knows only Latin letters."""

    def tokenize(self, text: str) -> list[str]:
        """Words in lower case, without marks; Chinese by characters."""
        lower = text.lower()
        return [lower[a:b] for a, b in split_words(lower) if any(c.isalnum() for c in lower[a:b])]


def text_quality(written: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """ROUGE-L (mean F1) and BLEU of the whole, from 0 to 1, in lower case."""
    need("rouge_score", "generate", "measuring written texts")
    need("sacrebleu", "generate", "measuring written texts")
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

    scorer = RougeScorer(["rougeL"], tokenizer=RougeTokenizer())
    rouge = [scorer.score(truth, text)["rougeL"].fmeasure for text, truth in zip(written, right, strict=True)]
    letters = "".join(right)
    chinese = len(CJK.findall(letters)) > len(letters) / 2
    bleu = BLEU(lowercase=True, tokenize="zh" if chinese else "13a").corpus_score(list(written), [list(right)])
    return {"rouge_l": float(np.mean(rouge)), "bleu": bleu.score / 100}
