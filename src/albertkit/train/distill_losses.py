"""Losses of distillation: what a student and a teacher compute for one batch, and how far that differs.

In: a `Batch`, and a teacher: an ALBERT model, or a BERT-like encoder of transformers. Out: `LayerStates` of both, and
losses without a gradient for the teacher. Both must have the same vocabulary, because their tokens are compared one by
one. After this file: `distill_task.py`. Logits are compared by `task_heads.DISTILL_LOSSES`, vectors come from
`teachers.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as RustTokenizer
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.model import AlbertModel, Batch, ModelOutput
from albertkit.model.albert_model import ClassLogits, SpanLogits
from albertkit.model.attention import Attention
from albertkit.model.encoder import EncoderOutput
from albertkit.tokenizer import Tokenizer
from albertkit.train.teachers import is_albert, load_transformers_encoder, max_positions

PLAIN_OPTIONS = {"head_size", "brightmart_layout", "scale_embedding"}  # options that do not change attention
PROJECTIONS = {"query": ("query", "q_lin"), "key": ("key", "k_lin"), "value": ("value", "v_lin")}
COMPARED_TEXTS = 64  # on which two tokenizers are compared
SIMILARITY_SCALE = 20.0

AttentionStates = tuple[Tensor, Tensor, Tensor]  # queries, keys and values, each (tokens, heads, d)


@dataclass(frozen=True)
class LayerStates:
    """What a model computes on the way to its output."""

    layers: tuple[Tensor, ...]
    """Hidden states after the embeddings and after each layer, each (tokens, H)."""
    attention: AttentionStates | None = None
    """Of the last layer."""


# Teachers --------------------------------------------------------------------------------------------------------


@contextmanager
def record_attention(model: nn.Module) -> Iterator[Callable[[], AttentionStates]]:
    """A function that computes queries, keys and values of the last attention that ran inside the block."""
    last: list[tuple[Any, Tensor]] = []

    def record(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        last[:] = [(module, inputs[0])]

    def attention() -> AttentionStates:
        module, hidden = last[0]
        query, key, value = (
            F.linear(hidden.float(), part.weight, part.bias).unflatten(-1, (module.heads, -1))
            for part in (module.query, module.key, module.value)
        )
        return query, key, value

    hooks = [m.register_forward_pre_hook(record) for m in model.modules() if isinstance(m, Attention)]
    try:
        yield attention
    finally:
        for hook in hooks:
            hook.remove()


def require_plain_attention(artifact: Artifact, who: str) -> None:
    """Raise an error unless attention is softmax(QKᵀ/√d)·V over all tokens."""
    special = sorted(set(artifact.config.options.active()) - PLAIN_OPTIONS)
    if special:
        raise AlbertkitError(
            f"the {who} has the option {special[0]}, and attention can be distilled for plain layers only. Omit "
            "'attention', and distill hidden."
        )


class AlbertTeacher(nn.Module):
    """An ALBERT model as a teacher."""

    def __init__(self, artifact: Artifact, attention: bool = False) -> None:
        super().__init__()
        if attention:
            require_plain_attention(artifact, "teacher")
        encoder = {n: a for n, a in artifact.weights.items() if n.startswith("encoder.")}
        self.model = AlbertModel.from_artifact(Artifact(artifact.config, encoder, None)).requires_grad_(False)
        self.width, self.attention = artifact.config.hidden_size, attention
        self.max_length = artifact.config.max_position_embeddings

    def forward(self, batch: Batch) -> tuple[LayerStates, EncoderOutput]:
        with record_attention(self.model) as attention:
            encoded = self.model.encoder(batch, keep_layers=True)
            return LayerStates(encoded.layers, attention() if self.attention else None), encoded


class TransformersTeacher(nn.Module):
    """An encoder of transformers as a teacher."""

    def __init__(self, model: Any, attention: bool = False) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.width, self.heads, self.attention = model.config.hidden_size, model.config.num_attention_heads, attention
        self.max_length = max_positions(model)
        self.has_segments = "token_type_ids" in inspect.signature(model.forward).parameters
        self.outputs: dict[str, Tensor] = {}
        if attention:
            self._record_projections()

    def _record_projections(self) -> None:
        """Keep the outputs of the last query, key and value projections."""
        for kind, names in PROJECTIONS.items():
            modules = [m for n, m in self.model.named_modules() if n.rpartition(".")[2] in names]
            if not modules or getattr(self.model.config, "position_embedding_type", None) not in (None, "absolute"):
                raise AlbertkitError(
                    f"attention of {type(self.model).__name__} is not available (only of BERT, RoBERTa, ELECTRA, "
                    "DistilBERT and ALBERT). Distill hidden instead."
                )
            modules[-1].register_forward_hook(lambda _m, _i, out, kind=kind: self.outputs.__setitem__(kind, out))

    def forward(self, batch: Batch) -> tuple[LayerStates, None]:
        inside = batch.padding.mask  # (texts, longest)
        inputs = {"input_ids": batch.pad(batch.ids), "attention_mask": inside.long()}
        if self.has_segments:
            inputs["token_type_ids"] = batch.pad(batch.segments)
        out = self.model(**inputs, output_hidden_states=True)
        attention = None
        if self.attention:
            query, key, value = (
                self.outputs[kind][inside].float().unflatten(-1, (self.heads, -1)) for kind in PROJECTIONS
            )
            attention = (query, key, value)
        return LayerStates(tuple(h[inside].float() for h in out.hidden_states), attention), None


def require_same_tokens(
    student: Tokenizer, teacher: Tokenizer | RustTokenizer, texts: Sequence[str], folder: Path | str
) -> None:
    """Raise an error if a teacher splits text into other tokens than the student."""
    if isinstance(teacher, Tokenizer):
        table = dict(teacher.vocabulary.ids)
    else:
        table = teacher.get_vocab(with_added_tokens=True)
    ids, teacher_ids = ([e.ids for e in one.encode_batch(list(texts))] if texts else [] for one in (student, teacher))
    if table != dict(student.vocabulary.ids) or teacher_ids != ids:
        why = f"it has {len(table):,} tokens, the student {student.vocab_size:,}"
        if len(table) == student.vocab_size:
            why = "as many tokens, but other ones, or other rules"
        raise AlbertkitError(
            f"{folder} splits text differently from the student ({why}), but hidden states and attention are compared "
            "token by token. Use a student with the teacher's vocabulary (--shape does), or distill vectors or logits."
        )


def open_state_teacher(
    folder: Path | str, tokenizer: Tokenizer, texts: Sequence[str], attention: bool = False
) -> AlbertTeacher | TransformersTeacher:
    """A teacher whose hidden states are distilled: any ALBERT checkpoint or artifact, or an encoder of transformers."""
    sample = list(texts)[:COMPARED_TEXTS]
    if is_albert(folder):
        artifact = open_model(folder)
        if artifact.config.options.static:
            raise AlbertkitError(f"{folder} is a static model, which has no hidden states. Distill its vectors.")
        if artifact.tokenizer is None:
            raise AlbertkitError(f"{folder} has no tokenizer. Put tokenizer.json beside the weights.")
        require_same_tokens(tokenizer, artifact.tokenizer, sample, folder)
        return AlbertTeacher(artifact, attention)
    model, rust = load_transformers_encoder(Path(folder), torch.device("cpu"))
    rust.no_truncation()
    require_same_tokens(tokenizer, rust, sample, folder)
    return TransformersTeacher(model, attention)


# Losses ----------------------------------------------------------------------------------------------------------


def similarity_rows(vectors: Tensor, scale: float) -> Tensor:
    """log softmax of the similarities of each text to the others, (texts, texts), from vectors of length 1."""
    diagonal = torch.eye(len(vectors), device=vectors.device, dtype=torch.bool)
    return (scale * vectors @ vectors.T).masked_fill(diagonal, -1e4).log_softmax(-1)


def vector_loss(
    student: Tensor, teacher: Tensor, scale: float = SIMILARITY_SCALE, target_rows: Tensor | None = None
) -> Tensor:
    """2 · mean(1 - cos), where both have the same width, plus the KL of the rows of in-batch similarities.

    target_rows: `similarity_rows` of the teacher, where they are known already.
    """
    student, teacher = F.normalize(student, dim=-1), F.normalize(teacher, dim=-1)
    if student.shape == teacher.shape:
        distance = 2 * (1 - (student * teacher).sum(-1).mean())
    else:
        distance = student.new_zeros(())
    target_rows = similarity_rows(teacher, scale) if target_rows is None else target_rows
    return distance + F.kl_div(similarity_rows(student, scale), target_rows, log_target=True, reduction="batchmean")


def layer_map(student: int, teacher: int) -> list[int]:
    """The teacher's layer for each layer of the student, 0 the embeddings: evenly spaced, the last for the last."""
    return [(2 * i * teacher + student) // (2 * student) for i in range(student + 1)]


def hidden_loss(student: LayerStates, teacher: LayerStates, project: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean squared error of hidden states, divided by the teacher's mean square, averaged over layers."""
    layers = layer_map(len(student.layers) - 1, len(teacher.layers) - 1)
    losses = []
    for hidden, layer in zip(student.layers, layers, strict=True):
        target = teacher.layers[layer].float()
        losses.append(F.mse_loss(project(hidden.float()), target) / target.square().mean().clamp(min=1e-12))
    return torch.stack(losses).mean()


def relations(first: Tensor, second: Tensor, batch: Batch) -> list[Tensor]:
    """log softmax(a·bᵀ/√d) inside each text, for packed (tokens, heads, d).

    One tensor (texts, heads, n, n) for each run of equal lengths.
    """
    out = []
    sizes = [texts * length for texts, length in batch.runs]
    for a, b, (texts, length) in zip(first.split(sizes), second.split(sizes), batch.runs, strict=True):
        a, b = (x.view(texts, length, *x.shape[1:]).transpose(1, 2) for x in (a, b))
        out.append((a @ b.transpose(-1, -2) / math.sqrt(a.shape[-1])).log_softmax(-1))
    return out


def attention_loss(student: LayerStates, teacher: LayerStates, batch: Batch) -> Tensor:
    """KL of the last layer's attention and of the relations of its values (MiniLM, arXiv 2002.10957), per token and
    head.

    With different numbers of heads: relations of queries, of keys and of values, over as many parts as both can be
    divided into (arXiv 2012.15828).
    """
    assert student.attention is not None and teacher.attention is not None
    (q, k, v), (tq, tk, tv) = student.attention, teacher.attention
    if q.shape[1] == tq.shape[1]:
        pairs = [((q, k), (tq, tk)), ((v, v), (tv, tv))]
    else:
        parts = math.gcd(q.shape[1], tq.shape[1] * tq.shape[2])
        cut = [x.flatten(1).unflatten(1, (parts, -1)) for x in (q, k, v, tq, tk, tv)]
        pairs = [((a, a), (b, b)) for a, b in zip(cut[:3], cut[3:], strict=True)]
    total = q.new_zeros(())
    for own, target in pairs:
        a, b = relations(*own, batch), relations(*target, batch)
        rows = sum(x.shape[0] * x.shape[1] * x.shape[2] for x in a)
        total = total + sum(F.kl_div(x, y, log_target=True, reduction="sum") for x, y in zip(a, b, strict=True)) / rows
    return total


def scores_as_output(heads: tuple[str, ...], rows: list[Any], device: torch.device) -> ModelOutput:
    """The stored scores of each text (`finetune_task.split_scores`) as a model output with heads alone."""
    outputs: dict[str, Any] = {}
    for number, head in enumerate(heads):
        arrays = [row[number] if len(heads) > 1 else row for row in rows]
        join = np.concatenate if head in ("tag", "answer") else np.stack
        scores = torch.from_numpy(np.ascontiguousarray(join(arrays), np.float32)).to(device)
        if head == "answer":
            outputs[head] = SpanLogits(scores[:, 0], scores[:, 1])
        else:
            outputs[head] = scores if head == "vector" else ClassLogits(scores)
    return ModelOutput(None, outputs)  # type: ignore[arg-type]
