"""What each task's head is taught with.

In: a `Task`, the model's output, and the targets of the texts. Out: the mean loss. Next: `finetune.py` computes them batch by batch. What is learnt from a
teacher instead of labels is in `distill_losses.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.model import ModelOutput
from albertkit.tasks.task import IGNORE_INDEX


def classify_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy; of each class alone for several labels; squared distance for values."""
    scores = out.heads["classify"].logits.float()  # (texts, classes)
    if task.kind == "single":
        weights = getattr(task, "class_weights", None)
        weight = None if weights is None else torch.tensor(weights, device=scores.device)
        return F.cross_entropy(scores, torch.tensor(targets, device=scores.device), weight)
    wanted = torch.tensor(targets, dtype=torch.float32, device=scores.device)
    if task.kind == "multi":
        return F.binary_cross_entropy_with_logits(scores, wanted)
    return F.mse_loss(scores[:, 0], wanted)


def tag_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy at the first piece of each word."""
    scores = out.heads["tag"].logits.float()  # (tokens, labels)
    wanted = torch.tensor([t for row in targets for t in row], device=scores.device)
    total = F.cross_entropy(scores, wanted, ignore_index=IGNORE_INDEX, reduction="sum")
    return total / (wanted != IGNORE_INDEX).sum().clamp(min=1)


def answer_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy of the first and of the last token of the answer, over the tokens of each text."""
    found, batch = out.heads["answer"], out.encoded.batch
    wanted = torch.tensor(targets, device=found.start.device)  # (texts, 2)
    losses = [
        F.cross_entropy(batch.pad(scores.float(), -1e4), wanted[:, side])
        for side, scores in enumerate((found.start, found.end))
    ]
    return (losses[0] + losses[1]) / 2


def choose_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy over the choices of each question; a target stands at the first choice of each."""
    scores = out.heads["choose"].logits.float()[:, 0]  # (texts,)
    firsts = [i for i, target in enumerate(targets) if target is not None]
    parts = scores.split([b - a for a, b in zip(firsts, [*firsts[1:], len(targets)], strict=True)])
    table = nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-1e4)  # (questions, most choices)
    return F.cross_entropy(table, torch.tensor([targets[i] for i in firsts], device=scores.device))


def intent_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Intent and slots together."""
    scores = out.heads["classify"].logits.float()
    intents = F.cross_entropy(scores, torch.tensor([t[0] for t in targets], device=scores.device))
    return intents + tag_loss(task, out, [t[1] for t in targets])


def words_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy of the right word at each mask."""
    scores = out.heads["mlm"].logits.float()  # (masks, V)
    wanted = torch.tensor([t for row in targets for t in row if t != IGNORE_INDEX], device=scores.device)
    return F.cross_entropy(scores, wanted, label_smoothing=task.label_smoothing)


def match_loss(task: Any, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Losses over the cosines of pairs, see `tasks/match.py`; texts 2i and 2i + 1 are a pair."""
    vectors = F.normalize(out.heads["vector"].float(), dim=-1)
    first, second = vectors[0::2], vectors[1::2]
    wanted = torch.tensor(targets[0::2], dtype=torch.float32, device=vectors.device)
    if task.loss == "mnrl":  # the partner among all second texts, and the other way round
        scores = task.scale * first @ second.T
        right = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2
    cosines = (first * second).sum(-1)
    if task.loss == "contrastive":
        apart = F.relu(cosines - task.margin) ** 2
        return (wanted * (1 - cosines) ** 2 + (1 - wanted) * apart).mean()
    gaps = task.scale * (cosines[:, None] - cosines[None])  # pair i above pair j, where j should be above i
    gaps = gaps.masked_fill(wanted[:, None] >= wanted[None], -1e4).flatten()
    return torch.logsumexp(torch.cat([gaps.new_zeros(1), gaps]), 0)


def own_loss(task: Any) -> Callable[[ModelOutput, list[Any]], Tensor] | None:
    """The loss that a task brings itself; `MatchTask.loss` is the name of one, so it does not count."""
    own = getattr(task, "loss", None)
    return own if callable(own) else None


LOSSES: dict[tuple[str, ...], Callable[[Any, ModelOutput, list[Any]], Tensor]] = {
    ("classify",): classify_loss,
    ("tag",): tag_loss,
    ("answer",): answer_loss,
    ("choose",): choose_loss,
    ("classify", "tag"): intent_loss,
    ("vector",): match_loss,
    ("mlm",): words_loss,
}
