"""What a student learns from a teacher, as losses: vectors, scores of a task, hidden states, attention.

In: what both computed for one batch (`watching.Seen`, vectors, kept scores). Out: a number each, without a gradient for the teacher. Next: `student.py`.
The scores of a task are compared by `elastic.APART`, which does the same for the depths of one model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albertkit.model import Batch, ModelOutput
from albertkit.model.heads import Answers, Scores
from albertkit.train.teacher_states import LayerStates

SCALE = 20.0  # of similarities, before their rows are compared


def similarity_rows(vectors: Tensor, scale: float) -> Tensor:
    """log softmax of each text's similarities to the others, (texts, texts), from vectors of length 1."""
    hide = torch.eye(len(vectors), device=vectors.device, dtype=torch.bool)
    return (scale * vectors @ vectors.T).masked_fill(hide, -1e4).log_softmax(-1)


def vector_loss(mine: Tensor, theirs: Tensor, scale: float = SCALE, goal: Tensor | None = None) -> Tensor:
    """Twice the mean distance (1 - cos), where both are of one width, and the KL of the rows of in-batch similarities.

    goal: `similarity_rows` of theirs, where it is known already.
    """
    mine, theirs = F.normalize(mine, dim=-1), F.normalize(theirs, dim=-1)
    near = 2 * (1 - (mine * theirs).sum(-1).mean()) if mine.shape == theirs.shape else mine.new_zeros(())
    goal = similarity_rows(theirs, scale) if goal is None else goal
    return near + F.kl_div(similarity_rows(mine, scale), goal, log_target=True, reduction="batchmean")


def layer_map(student: int, teacher: int) -> list[int]:
    """The teacher's layer for each of the student's, 0 the embeddings: evenly, the last for the last."""
    return [(2 * i * teacher + student) // (2 * student) for i in range(student + 1)]


def hidden_loss(mine: LayerStates, theirs: LayerStates, turn: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean squared distance of hidden states, as a share of the teacher's mean square, on average over layers."""
    places = layer_map(len(mine.layers) - 1, len(theirs.layers) - 1)
    losses = []
    for ours, place in zip(mine.layers, places, strict=True):
        wanted = theirs.layers[place].float()
        losses.append(F.mse_loss(turn(ours.float()), wanted) / wanted.square().mean().clamp(min=1e-12))
    return torch.stack(losses).mean()


def relations(first: Tensor, second: Tensor, batch: Batch) -> list[Tensor]:
    """log softmax(a·bᵀ/√d) inside each text, for packed (tokens, heads, d); (texts, heads, n, n) for each run of equal lengths."""
    out = []
    sizes = [texts * length for texts, length in batch.runs]
    for a, b, (texts, length) in zip(first.split(sizes), second.split(sizes), batch.runs, strict=True):
        a, b = (x.view(texts, length, *x.shape[1:]).transpose(1, 2) for x in (a, b))
        out.append((a @ b.transpose(-1, -2) / math.sqrt(a.shape[-1])).log_softmax(-1))
    return out


def attention_loss(mine: LayerStates, theirs: LayerStates, batch: Batch) -> Tensor:
    """KL of the last layer's attention and of the relations of its values (MiniLM, arXiv 2002.10957), on average over tokens and heads.

    Where the numbers of heads differ: relations of queries, of keys and of values, over as many parts as both can be cut into (arXiv 2012.15828).
    """
    assert mine.attention is not None and theirs.attention is not None
    (q, k, v), (tq, tk, tv) = mine.attention, theirs.attention
    if q.shape[1] == tq.shape[1]:
        pairs = [((q, k), (tq, tk)), ((v, v), (tv, tv))]
    else:
        parts = math.gcd(q.shape[1], tq.shape[1] * tq.shape[2])
        cut = [x.flatten(1).unflatten(1, (parts, -1)) for x in (q, k, v, tq, tk, tv)]
        pairs = [((a, a), (b, b)) for a, b in zip(cut[:3], cut[3:], strict=True)]
    total = q.new_zeros(())
    for ours, other in pairs:
        a, b = relations(*ours, batch), relations(*other, batch)
        rows = sum(x.shape[0] * x.shape[1] * x.shape[2] for x in a)
        total = total + sum(F.kl_div(x, y, log_target=True, reduction="sum") for x, y in zip(a, b, strict=True)) / rows
    return total


def scores_as_output(heads: tuple[str, ...], rows: list[Any], device: torch.device) -> ModelOutput:
    """Scores that were kept for each text (see `finetune.split_scores`) as the output they came from; of heads alone."""
    made: dict[str, Any] = {}
    for number, head in enumerate(heads):
        arrays = [row[number] if len(heads) > 1 else row for row in rows]
        join = np.concatenate if head in ("tag", "answer") else np.stack
        scores = torch.from_numpy(np.ascontiguousarray(join(arrays), np.float32)).to(device)
        if head == "answer":
            made[head] = Answers(scores[:, 0], scores[:, 1])
        else:
            made[head] = scores if head == "vector" else Scores(scores)
    return ModelOutput(None, made)  # type: ignore[arg-type]
