"""A student at work: it learns what a teacher gives (vectors, scores of a task, hidden states, attention), and right answers beside it.

In: a task and examples (or texts and no task), the student, a `DistillSettings`, and what the teacher `TeacherOutputs`. Out: a `Work` for `loop.py`. Before this file:
`finetune.py`, whose work it changes, `imitate.py` with the losses, and `watching.py`; `recover.py`, `qat.py` and `lessons.py` call it.

    loss = labels · right answers + logits · KL (softened) + vectors · (2 · (1 - cos) + KL of similarities) + hidden · distance + attention · KL
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact, Meta
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, ModelOutput, pool
from albertkit.model.albert_model import tensors_of
from albertkit.runtime.batching import group_by_length
from albertkit.tasks.task import Feature, Task
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune_task as finetune
from albertkit.train.checkpoint import TrainState
from albertkit.train.distill_losses import attention_loss, hidden_loss, scores_as_output, vector_loss
from albertkit.train.distill_settings import TEACHER_OUTPUTS, DistillSettings
from albertkit.train.distributed import ProcessGroup, call_in_dtype
from albertkit.train.elastic import APART, keep_heads, same_task
from albertkit.train.teacher_states import LayerStates, record_attention
from albertkit.train.train_settings import TrainSettings

PROJECTION = "heads.lesson.linear.weight"  # the projection to the teacher's width, in checkpoints only


@dataclass(frozen=True)
class TeacherOutputs:
    """What a teacher gives: computed before (`logits`, `vectors`), or looked at while the student learns (`watched`)."""

    watched: nn.Module | None = None
    logits: Callable[[Sequence[Feature]], list[Any]] | None = None
    """Scores for the features of the examples."""
    vectors: np.ndarray | None = None
    """One row for each text to learn from, then one for each held-out text."""
    meta: Meta | None = None
    """The teacher's."""
    identity: tuple[str, ...] = ()
    """What tells a training with this teacher, and from this start, from others."""


@dataclass(frozen=True)
class TextsOnly(Task):
    """Texts without a task: strings, or arrays of token ids without special tokens."""

    def features(self, examples: Sequence[Any], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Token ids of each text; what is too long is cut."""
        made = []
        for start in range(0, len(examples), 4096):
            part = examples[start : start + 4096]
            if isinstance(part[0], str):
                rows = [e.ids for e in tokenizer.encode_batch(list(part), max_length=max_length)]
            else:
                first, last = tokenizer.cls_id or 0, tokenizer.sep_id or 0
                rows = [[first, *row[: max_length - 2].tolist(), last] for row in part]
            made += [Feature(ids, [0] * len(ids), start + n, target=0) for n, ids in enumerate(rows)]
        return made


class DistillObjective(finetune.FinetuneObjective):
    """Texts, targets and what the teacher gave to a loss."""

    def __init__(
        self, model: AlbertModel, task: Any, lesson: DistillSettings, gives: TeacherOutputs, pooling: str
    ) -> None:
        super().__init__(model, task)
        self.lesson, self.gives, self.pooling = lesson, gives, pooling
        self.called: nn.Module = model
        self.teacher = gives.watched
        self.parts = [name for name in ("labels", *TEACHER_OUTPUTS) if getattr(lesson, name)]
        self.logits: list[Any] = []
        width, own = getattr(self.teacher, "width", 0), model.config.hidden_size
        self.turn: nn.Module = nn.Identity()
        if lesson.hidden and width != own:
            self.turn = nn.Linear(own, width, bias=False)
            nn.init.normal_(self.turn.weight, std=own**-0.5)

    def train(self, mode: bool = True) -> DistillObjective:
        """The student alone trains: a teacher never drops anything."""
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def run(self, batch: Batch, targets: Sequence[Any] = (), layers: bool = False) -> ModelOutput:
        """As in `finetune.py`; with `layers`, hidden states after every layer are kept."""
        inputs = {"choose": {"choices": 1}} if "choose" in self.heads else None
        heads = [head for head in self.heads if head != "vector"]
        first = bool(self.heads) and set(self.heads) <= finetune.POOLED and not layers and not self.lesson.vectors
        out: ModelOutput = call_in_dtype(
            self.called, self.dtype, batch, heads=heads, inputs=inputs, first_only=first, keep_layers=layers
        )
        if "vector" in self.heads:
            out.heads["vector"] = pool(out.encoded, "mean")
        return out

    def losses(self, batch: Batch, targets: list[Any], rows: list[tuple[int, int]]) -> dict[str, Tensor]:
        """Each part of the loss; `rows` say which feature and which example each text is."""
        lesson, found = self.lesson, {}
        with record_attention(self.model) as parts:
            out = self.run(batch, targets, lesson.watches)
            mine = LayerStates(out.encoded.layers, parts() if lesson.attention else None)
        if lesson.labels:
            found["labels"] = finetune.LOSSES[self.heads](self.task, out, targets)
        if lesson.logits:
            full = scores_as_output(self.heads, [self.logits[row] for row, _ in rows], batch.ids.device)
            found["logits"] = APART[self.heads](self.task, out, full, targets, lesson.soften)
        theirs, encoded = None, None
        if self.teacher is not None:
            with torch.no_grad():
                theirs, encoded = self.teacher(batch)
        if lesson.vectors:
            wanted = self.vectors(rows, encoded, out.encoded.hidden.device)
            found["vectors"] = vector_loss(pool(out.encoded, self.pooling).float(), wanted)
        if lesson.hidden and theirs is not None:
            found["hidden"] = hidden_loss(mine, theirs, self.turn)
        if lesson.attention and theirs is not None:
            found["attention"] = attention_loss(mine, theirs, batch)
        return found

    def vectors(self, rows: list[tuple[int, int]], encoded: Any, device: torch.device) -> Tensor:
        """The teacher's vectors: those that were kept, or of what it just read."""
        if self.gives.vectors is not None:
            return torch.from_numpy(np.asarray(self.gives.vectors[[example for _, example in rows]], np.float32)).to(
                device
            )
        return pool(encoded, self.pooling).float()

    def forward(  # type: ignore[override]
        self, batch: Batch, targets: list[Any], texts: int, rows: list[tuple[int, int]], share: float
    ) -> tuple[Tensor, Tensor]:
        """(loss, sums of `Imitating.metric_names`); `share` weighs this part of a batch by its texts."""
        found = self.losses(batch, targets, rows)
        total = torch.stack([getattr(self.lesson, name) * found[name] for name in self.parts]).sum()
        sums = [torch.stack([found[name].detach() * texts, total.new_tensor(texts)]) for name in self.parts]
        return share * total, torch.stack(sums)


class DistillTask(finetune.FinetuneTask):
    """The work of learning from a teacher, for `loop.train`."""

    step = "distill"
    """What it is called in the model's history."""
    is_trained = False
    """Whether the student knows its task already, so that the start itself may be the best (see `loop.TrainingRun.open`)."""

    def __init__(
        self,
        task: Any,
        start: Artifact,
        train: Sequence[Any],
        dev: Sequence[Any],
        settings: TrainSettings,
        lesson: DistillSettings,
        gives: TeacherOutputs,
        max_length: int = 128,
        metric: str | None = None,
    ) -> None:
        self.free, self.lesson, self.gives = isinstance(task, TextsOnly), lesson, gives
        if self.free and (lesson.logits or lesson.labels):
            raise AlbertkitError(
                "logits and labels belong to a task; give examples of one, and a teacher fine-tuned for it"
            )
        if not self.free and task.heads not in APART:
            raise AlbertkitError(
                f"nothing can be learnt from a teacher for {finetune.kind_of(task)!r}; fine-tune the model instead"
            )
        super().__init__(task, start, train, dev, settings, max_length, metric)
        pooling = gives.meta.pooling if gives.meta is not None and lesson.vectors else start.meta.pooling
        self.objective: DistillObjective = DistillObjective(self.model, task, lesson, gives, pooling)
        self.metric_names: tuple[str, ...] = tuple(f"{name}_loss" for name in self.objective.parts)
        flat = [feature for unit in self.features for feature in unit]
        if lesson.logits:
            if gives.logits is None:
                raise AlbertkitError("scores are to be learnt, and no teacher gives any")
            self.objective.logits = gives.logits(flat)
        place = {id(feature): n for n, feature in enumerate(flat)}
        self.features = [
            [dataclasses.replace(f, target=(f.target, (place[id(f)], f.example))) for f in unit]
            for unit in self.features
        ]

    def identity_bytes(self) -> bytes:
        """The lesson and who gives it. The student's weights only where `Gives.identity` has them: see `recover.Recovery`."""
        return hashlib.sha256(repr((self.lesson, self.gives.identity)).encode()).digest()

    def build_model(self) -> AlbertModel:
        """The student, with the heads it has, if they are for this task."""
        if self.free:
            return AlbertModel.from_artifact(self.initial_model)
        model = finetune.fresh(self.initial_model, self.task)
        if same_task(self.task, self.initial_model):
            keep_heads(model, self.initial_model)
        return model

    @property
    def selection_metric(self) -> str:
        """The task's own score; without a task, the loss."""
        return "loss" if self.free else super().selection_metric

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """The next batch; its parts count by how many texts they hold."""
        parts, tokens = super().next_batch(step, progress, processes)
        total = sum(part[2] for part in parts)
        return [(*part, len(parts) * part[2] / total) for part in parts], tokens

    def part(self, chosen: list[list[Feature]], processes: ProcessGroup) -> tuple[Any, ...]:
        """Some examples as (batch, targets, examples, the number of each one's feature and example)."""
        batch, both, texts = super().part(chosen, processes)
        return batch, [target for target, _ in both], texts, [row for _, row in both]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The task's metrics on held-out examples; without a task, the losses on held-out texts."""
        if not self.free or not self.dev_features:
            return super().evaluate()
        self.objective.eval()
        device = next(self.model.parameters()).device
        sums = torch.zeros(len(self.metric_names), 2, device=device)
        for places in group_by_length([len(f.ids) for f in self.dev_features], finetune.BUDGET, finetune.BUDGET):
            features = [self.dev_features[i] for i in places]
            batch = Batch.of([f.ids for f in features]).to(device)
            rows = [(0, len(self.examples) + i) for i in places]
            sums += self.objective(batch, [0] * len(rows), len(rows), rows, 1.0)[1]
        found = {name: a / max(b, 1) for name, (a, b) in zip(self.metric_names, sums.tolist(), strict=True)}
        weights = [getattr(self.lesson, name) for name in self.objective.parts]
        return {"loss": sum(w * v for w, v in zip(weights, found.values(), strict=True)), **found}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Saved weights, the projection among them, and the place in the data."""
        weights = dict(artifact.weights)
        turn = weights.pop(PROJECTION, None)
        super().restore(dataclasses.replace(artifact, weights=weights), data)
        if turn is not None and isinstance(self.objective.turn, nn.Linear):
            self.objective.turn.load_state_dict(tensors_of({"weight": turn}))

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The model as it is now, with the projection, which `without_projection` takes off."""
        made = self.read(metrics) if self.free else super().to_artifact(metrics, state)
        step = {
            **(made.meta.made[-1] if not self.free else {}), "step": self.step, "updates": state.step, "minutes": round(state.seconds / 60, 2),
            "examples": len(self.features), "lesson": {n: v for n, v in dataclasses.asdict(self.lesson).items() if v},
        }  # fmt: skip
        before = made.meta.made if self.free else made.meta.made[:-1]
        weights = dict(made.weights)
        if isinstance(self.objective.turn, nn.Linear):
            weights[PROJECTION] = self.objective.turn.weight.detach().cpu().numpy()
        return dataclasses.replace(made, weights=weights, meta=dataclasses.replace(made.meta, made=(*before, step)))

    def read(self, metrics: dict[str, float]) -> Artifact:
        """The model without a task: it gives vectors, if it was taught any."""
        details = {name: value for name, value in self.initial_model.meta.details.items() if name != "early_exit"}
        meta = dataclasses.replace(
            self.initial_model.meta,
            metrics={"held-out": metrics} if metrics else {},
            details=details,
            quantisation=None,
        )
        if self.lesson.vectors:
            meta = dataclasses.replace(meta, task="embed", pooling=self.objective.pooling, normalise=True, prompts={})
        return Artifact(self.model.config, self.model.weights(), self.tokenizer, meta)


def without_projection(artifact: Artifact) -> Artifact:
    """A trained student without the projection it learnt through."""
    return dataclasses.replace(artifact, weights={n: a for n, a in artifact.weights.items() if n != PROJECTION})
