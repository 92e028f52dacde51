"""Distillation as a training task: a student is trained on the outputs of a teacher, and optionally on labels.

In: a task and examples (or texts without a task), the student, `DistillSettings`, and the `TeacherOutputs`. Out: a
`TrainingTask` for `loop.py`. Before this file: `finetune_task.py`, which it extends; `distill.py` and `recover.py`
run it.

    loss = labels · task loss + logits · KL (with temperature) + vectors · (2 · (1 - cos) + KL of similarities)
           + hidden · mean squared error
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, ModelOutput, pool
from albertkit.model.albert_model import ClassLogits, SpanLogits, to_tensors
from albertkit.runtime.batching import group_by_length
from albertkit.tasks.task import Feature, Task
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune_task as finetune
from albertkit.train.checkpoint import TrainState
from albertkit.train.distill_data import TEACHER_OUTPUTS, DistillData, DistillSettings
from albertkit.train.distributed import ProcessGroup
from albertkit.train.task_heads import (
    DISTILLABLE,
    LOSSES,
    build_task_model,
    copy_heads,
    distill_loss,
    has_same_task,
    task_name,
)
from albertkit.train.teachers import AlbertTeacher
from albertkit.train.train_settings import TrainSettings

PROJECTION = "heads.distill.linear.weight"  # from the student's width to the teacher's, in checkpoints only
CHUNK = 4096  # texts tokenized together
SIMILARITY_SCALE = 20.0


@dataclass(frozen=True)
class TeacherOutputs:
    """The outputs of a teacher: computed before training (`logits`, `vectors`), or during it (`states`)."""

    states: AlbertTeacher | None = None
    """The module that computes the hidden states of a batch."""
    logits: Callable[[Sequence[Feature]], list[Any]] | None = None
    """Scores for the features of the examples."""
    vectors: np.ndarray | None = None
    """One row for each training text, then one for each held-out text."""
    pooling: str | None = None
    """The teacher's pooling; by default the student's."""
    identity: tuple[str, ...] = ()
    """Identifies teacher and initial model, so that a run with others is not resumed."""


@dataclass(frozen=True)
class TextsOnly(Task):
    """Texts without a task."""

    truncates = True

    def features(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Token ids of each text, truncated."""
        features = []
        for start in range(0, len(examples), CHUNK):
            encodings = tokenizer.encode_batch(list(examples[start : start + CHUNK]), max_length=max_length)
            features += [Feature(e.ids, [0] * len(e.ids), start + n, target=0) for n, e in enumerate(encodings)]
        return features


# Losses ----------------------------------------------------------------------------------------------------------


def similarity_rows(vectors: Tensor) -> Tensor:
    """Log-softmax of the similarities of each text to the others, (texts, texts), from unit vectors."""
    diagonal = torch.eye(len(vectors), device=vectors.device, dtype=torch.bool)
    return (SIMILARITY_SCALE * vectors @ vectors.T).masked_fill(diagonal, -1e4).log_softmax(-1)


def vector_loss(student: Tensor, teacher: Tensor, target_rows: Tensor | None = None) -> Tensor:
    """KL of the in-batch similarities, plus 2 · mean(1 - cos) if both have the same width.

    target_rows: `similarity_rows` of the teacher, if they were computed before.
    """
    student, teacher = F.normalize(student, dim=-1), F.normalize(teacher, dim=-1)
    if student.shape == teacher.shape:
        distance = 2 * (1 - (student * teacher).sum(-1).mean())
    else:
        distance = student.new_zeros(())
    target_rows = similarity_rows(teacher) if target_rows is None else target_rows
    return distance + F.kl_div(similarity_rows(student), target_rows, log_target=True, reduction="batchmean")


def layer_map(student: int, teacher: int) -> list[int]:
    """The teacher layer for each student layer, evenly spaced; 0 is the embeddings, and last maps to last."""
    return [(2 * i * teacher + student) // (2 * student) for i in range(student + 1)]


def hidden_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], project: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean squared error of hidden states, divided by the teacher's mean square, averaged over layers."""
    losses = []
    for hidden, layer in zip(student, layer_map(len(student) - 1, len(teacher) - 1), strict=True):
        target = teacher[layer].float()
        losses.append(F.mse_loss(project(hidden.float()), target) / target.square().mean().clamp(min=1e-12))
    return torch.stack(losses).mean()


def scores_as_output(heads: tuple[str, ...], rows: list[Any], device: torch.device) -> ModelOutput:
    """The stored scores of each text (`finetune_task.split_scores`) as a model output with heads only."""
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


# Training --------------------------------------------------------------------------------------------------------


class DistillObjective(finetune.FinetuneObjective):
    """The loss of texts, against targets and the outputs of a teacher."""

    def __init__(
        self, model: AlbertModel, task: Task, distill: DistillSettings, outputs: TeacherOutputs, pooling: str
    ) -> None:
        super().__init__(model, task)
        self.distill, self.teacher_vectors, self.pooling = distill, outputs.vectors, pooling
        self.reads_all_tokens = self.reads_all_tokens or not self.heads or bool(distill.vectors)
        self.teacher = outputs.states
        self.parts = [name for name in ("labels", *TEACHER_OUTPUTS) if getattr(distill, name)]
        self.logits: list[Any] = []
        own_width = model.config.hidden_size
        self.projection: nn.Module = nn.Identity()
        if distill.hidden and self.teacher is not None and self.teacher.width != own_width:
            self.projection = nn.Linear(own_width, self.teacher.width, bias=False)
            nn.init.normal_(self.projection.weight, std=own_width**-0.5)

    def train(self, mode: bool = True) -> DistillObjective:
        """Set the mode of the student only: the teacher always runs without dropout."""
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def losses(self, batch: Batch, targets: list[Any], rows: list[tuple[int, int]]) -> dict[str, Tensor]:
        """Each part of the loss; `rows` are the indices of each text's feature and example."""
        distill, losses = self.distill, {}
        out = self.run(batch, targets, keep_layers=bool(distill.hidden))
        if distill.labels:
            losses["labels"] = LOSSES[self.heads](self.task, out, targets)
        if distill.logits:
            full = scores_as_output(self.heads, [self.logits[row] for row, _ in rows], batch.ids.device)
            losses["logits"] = distill_loss(self.task, out, full, targets, distill.temperature)
        if self.teacher is not None:
            with torch.no_grad():
                teacher = self.teacher(batch)
        if distill.vectors:
            if self.teacher_vectors is None:
                target = pool(teacher, self.pooling).float()
            else:
                vectors = self.teacher_vectors[[example for _, example in rows]]
                target = torch.from_numpy(np.asarray(vectors, np.float32)).to(out.encoded.hidden.device)
            losses["vectors"] = vector_loss(pool(out.encoded, self.pooling).float(), target)
        if distill.hidden:
            losses["hidden"] = hidden_loss(out.encoded.layers, teacher.layers, self.projection)
        return losses

    def forward(  # type: ignore[override]
        self, batch: Batch, targets: list[Any], texts: int, rows: list[tuple[int, int]], share: float
    ) -> tuple[Tensor, Tensor]:
        """(loss, sums of `DistillTask.metric_names`); `share` weighs this part of a batch by its texts."""
        losses = self.losses(batch, targets, rows)
        total = torch.stack([getattr(self.distill, name) * losses[name] for name in self.parts]).sum()
        sums = [torch.stack([losses[name].detach() * texts, total.new_tensor(texts)]) for name in self.parts]
        return share * total, torch.stack(sums)


class DistillTask(finetune.FinetuneTask):
    """Distillation, for `loop.train`."""

    step = "distill"
    """The name of this step in the history of the model."""
    is_trained = False
    """Whether the student was trained for its task before; then the initial model may be the best."""

    def __init__(
        self,
        data: DistillData,
        student: Artifact,
        settings: TrainSettings,
        distill: DistillSettings,
        outputs: TeacherOutputs,
        max_length: int = 128,
    ) -> None:
        task: Any = data.task or TextsOnly()
        self.has_task, self.distill, self.outputs = data.task is not None, distill, outputs
        if not self.has_task and (distill.logits or distill.labels):
            raise AlbertkitError(
                "logits and labels need a task, but the data has none. Pass examples of a task, and a teacher "
                "fine-tuned for it."
            )
        if self.has_task and task.heads not in DISTILLABLE:
            raise AlbertkitError(f"{task_name(task)!r} cannot be distilled. Fine-tune the model instead.")
        super().__init__(task, student, data.train, data.dev, settings, max_length)
        pooling = (outputs.pooling if distill.vectors else None) or student.metadata.pooling
        self.objective: DistillObjective = DistillObjective(self.model, task, distill, outputs, pooling)
        self.metric_names: tuple[str, ...] = tuple(f"{name}_loss" for name in self.objective.parts)
        features = [feature for unit in self.features for feature in unit]
        if distill.logits:
            assert outputs.logits is not None
            self.objective.logits = outputs.logits(features)
        numbers = {id(feature): n for n, feature in enumerate(features)}
        self.features = [
            [dataclasses.replace(f, target=(f.target, (numbers[id(f)], f.example))) for f in unit]
            for unit in self.features
        ]

    def identity_bytes(self) -> bytes:
        """The settings and the teacher; the student's weights only where `TeacherOutputs.identity` includes them."""
        return hashlib.sha256(repr((self.distill, self.outputs.identity)).encode()).digest()

    def build_model(self) -> AlbertModel:
        """The student; its heads are kept if they are for this task."""
        if not self.has_task:
            return AlbertModel.from_artifact(self.initial_model)
        model = build_task_model(self.initial_model, self.task)
        if has_same_task(self.task, self.initial_model):
            copy_heads(model, self.initial_model)
        return model

    @property
    def selection_metric(self) -> str:
        """The metric of the task; without a task, the loss."""
        return super().selection_metric if self.has_task else "loss"

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """The next batch; its parts are weighted by their number of texts."""
        parts, tokens = super().next_batch(step, progress, processes)
        total = sum(part[2] for part in parts)
        return [(*part, len(parts) * part[2] / total) for part in parts], tokens

    def micro_batch(self, units: list[list[Feature]], processes: ProcessGroup) -> tuple[Any, ...]:
        """Some examples as (batch, targets, examples, indices of each one's feature and example)."""
        batch, pairs, texts = super().micro_batch(units, processes)
        return batch, [target for target, _ in pairs], texts, [row for _, row in pairs]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The task's metrics on held-out examples; without a task, the losses on held-out texts."""
        if self.has_task or not self.dev_features:
            return super().evaluate()
        self.objective.eval()
        device = next(self.model.parameters()).device
        sums = torch.zeros(len(self.metric_names), 2, device=device)
        for places in group_by_length(
            [len(f.ids) for f in self.dev_features], finetune.EVAL_TOKENS, finetune.EVAL_TOKENS
        ):
            features = [self.dev_features[i] for i in places]
            batch = Batch.of([f.ids for f in features]).to(device)
            rows = [(0, len(self.examples) + i) for i in places]
            sums += self.objective(batch, [0] * len(rows), len(rows), rows, 1.0)[1]
        losses = {name: a / max(b, 1) for name, (a, b) in zip(self.metric_names, sums.tolist(), strict=True)}
        weights = [getattr(self.distill, name) for name in self.objective.parts]
        return {"loss": sum(w * v for w, v in zip(weights, losses.values(), strict=True)), **losses}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Restore saved weights, including the projection, and the position in the data."""
        weights = dict(artifact.weights)
        projection = weights.pop(PROJECTION, None)
        super().restore(dataclasses.replace(artifact, weights=weights), data)
        if projection is not None and isinstance(self.objective.projection, nn.Linear):
            self.objective.projection.load_state_dict(to_tensors({"weight": projection}))

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The current model, with the projection, which `without_projection` removes."""
        artifact = super().to_artifact(metrics, state) if self.has_task else self._without_task(metrics)
        history = artifact.metadata.history
        step = {
            **(history[-1] if self.has_task else {}),
            "step": self.step,
            "steps": state.step,
            "minutes": state.minutes,
            "examples": len(self.features),
            "distill": {n: v for n, v in dataclasses.asdict(self.distill).items() if v},
        }
        weights = dict(artifact.weights)
        if isinstance(self.objective.projection, nn.Linear):
            weights[PROJECTION] = self.objective.projection.weight.detach().cpu().numpy()
        history = (*(history[:-1] if self.has_task else history), step)
        return dataclasses.replace(
            artifact, weights=weights, metadata=dataclasses.replace(artifact.metadata, history=history)
        )

    def _without_task(self, metrics: dict[str, float]) -> Artifact:
        """The model without a task; its task is vectors if it was trained on vectors."""
        before = self.initial_model.metadata
        details = {name: value for name, value in before.details.items() if name != "early_exit"}
        metrics = {"held-out": metrics} if metrics else {}  # type: ignore[dict-item]
        depth = before.depth if self.is_trained else None
        meta = dataclasses.replace(before, metrics=metrics, details=details, quantization=None, depth=depth)
        if self.distill.vectors:
            meta = dataclasses.replace(meta, task="embed", pooling=self.objective.pooling, normalize=True, prompts={})
        return Artifact(self.model.config, self.model.weights(), self.tokenizer, meta)


def without_projection(artifact: Artifact) -> Artifact:
    """A trained student without the projection to the teacher's width."""
    return dataclasses.replace(artifact, weights={n: a for n, a in artifact.weights.items() if n != PROJECTION})
