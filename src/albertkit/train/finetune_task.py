"""Fine-tuning as a training task for the loop: batches, loss, evaluation, and the resulting artifact.

In: a `Task` (`tasks/`), examples, the initial model, `TrainSettings`. Out: `FinetuneTask` for `loop.py`. Before this
file: `task_heads.py`. After it: `finetune_runs.py` runs it, `elastic.py` and `distill_task.py` extend it. Texts are
packed without padding, and batches contain texts of similar length. Seed and epoch determine the batches, so the
position in the data is two numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact, require_tokenizer
from albertkit.errors import AlbertkitError, check_finite, nearest
from albertkit.model import AlbertModel, Batch, ModelOutput, pool
from albertkit.model.albert_model import CustomHead, Head, to_tensors
from albertkit.runtime.batching import group_by_length
from albertkit.tasks import load_task
from albertkit.tasks.answer import AnswerTask
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.dataset import HELD_OUT, TRAIN, report_truncated
from albertkit.tasks.task import IGNORE_INDEX, Feature, Task
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import ProcessGroup, call_in_dtype, compute_dtype
from albertkit.train.loop import Alarm
from albertkit.train.task_heads import (
    LOSSES,
    build_task_model,
    custom_loss,
    init_bias_from_frequencies,
    task_name,
)
from albertkit.train.train_settings import TrainSettings, recorded_settings

SORTED_BATCHES = 50  # batches whose texts are sorted by length together
EVAL_TOKENS = 4096  # tokens per forward pass of an evaluation
FIRST_TOKEN_HEADS = {"classify", "choose"}  # heads that read the first token only
FIELDS_WITHOUT_LOSS = {
    *("labels", "kind", "stride", "overlap", "target_length", "mean", "std", "known_labels"),  # targets depend on these
    *("temperature", "threshold", "min_probability", "score_scale"),  # used after training
    *("max_answer", "n_best", "target_words"),
}
"""Fields of a task that do not change the loss, given the targets."""


class FinetuneObjective(nn.Module):
    """The loss of texts against targets."""

    def __init__(self, model: AlbertModel, task: Task) -> None:
        super().__init__()
        self.model, self.task, self.heads = model, task, task.heads
        self.network: nn.Module = model  # the model, or a wrapper around it
        has_custom_head = any(isinstance(head, CustomHead) for head in model.heads.values())
        self.reads_all_tokens = has_custom_head or not set(self.heads) <= FIRST_TOKEN_HEADS
        self.dtype = torch.float32

    def run(self, batch: Batch, targets: Sequence[Any] = (), keep_layers: bool = False) -> ModelOutput:
        """The output of the task's heads. Each choice is scored separately; MLM scores targets only."""
        inputs: dict[str, dict[str, Any]] = {"choose": {"choices": 1}} if "choose" in self.heads else {}
        if "mlm" in self.heads:
            is_target = torch.tensor([t != IGNORE_INDEX for row in targets for t in row], device=batch.ids.device)
            inputs["mlm"] = {"positions": is_target.nonzero()[:, 0]}
        heads = [head for head in self.heads if head != "vector"]
        options = {"first_only": not (self.reads_all_tokens or keep_layers), "keep_layers": keep_layers}
        out: ModelOutput = call_in_dtype(self.network, self.dtype, batch, heads=heads, inputs=inputs, **options)
        if "vector" in self.heads:
            out.heads["vector"] = pool(out.encoded, "mean")
        return out

    def forward(self, batch: Batch, targets: list[Any], texts: int) -> tuple[Tensor, Tensor]:
        """(loss, sum and count of the loss)."""
        out, custom = self.run(batch, targets), custom_loss(self.task)
        loss = custom(out, targets) if custom else LOSSES[self.heads](self.task, out, targets)
        return loss, torch.stack([loss.detach() * texts, torch.full_like(loss, texts).detach()])[None]


class FinetuneTask:
    """What `loop.train` trains: a model for one task. Subclasses may override `build_model` and `make_batch`."""

    metric_names: tuple[str, ...] = ("loss",)
    has_fixed_shape = False

    def __init__(
        self,
        task: Task,
        model: Artifact,
        train: Sequence[Any],
        dev: Sequence[Any],
        settings: TrainSettings,
        max_length: int = 128,
        metric: str | None = None,
    ) -> None:
        self.tokenizer = require_tokenizer(model, "the initial model")
        if isinstance(task, ClassifyTask) and task.kind != "regression":
            task = dataclasses.replace(task, score_scale=1.0)  # scores are now those of this training
        self.task, self.initial_model, self.settings = task, model, settings
        self.max_length = min(max_length, model.config.max_position_embeddings)
        self.examples, self.dev, self.dev_size = train, dev, len(dev)
        self.features = group_features(task.features(train, self.tokenizer, self.max_length), len(train))
        if not self.features:
            raise AlbertkitError("there are no examples to train on. Pass some with labels.")
        self.dev_features = task.features(dev, self.tokenizer, self.max_length) if len(dev) else []
        torch.manual_seed(settings.seed)
        self.model = self.build_model()
        self.objective = FinetuneObjective(self.model, task)
        self.metric = metric
        inputs = [(f.ids, f.target) for unit in self.features for f in unit]
        loss = (*loss_settings(task), *custom_head_shapes(self.model))
        content = repr((type(self).__name__, task.labels, model.config, inputs, *loss))
        self.identity = hashlib.sha256(content.encode() + self.identity_bytes()).hexdigest()[:16]
        self.position = (0, 0)  # epoch and batch
        self._order: tuple[int, list[np.ndarray]] | None = None
        self.last_scores: list[Any] = []  # of the last evaluation, like the results and the metric names
        self.results: list[Any] = []
        self._metric_names: list[str] = []

    def report_truncated(self) -> None:
        """Warn once for each file with texts longer than the maximum length."""
        features = [feature for unit in self.features for feature in unit]
        parts = {TRAIN: (self.examples, features), HELD_OUT: (self.dev, self.dev_features)}
        room = self.initial_model.config.max_position_embeddings
        report_truncated(self.task, parts, self.tokenizer, self.max_length, room)

    def identity_bytes(self) -> bytes:
        """What `identity` depends on besides the examples: the initial weights."""
        weights = {n: a for n, a in self.initial_model.weights.items() if n.startswith("encoder.")}
        return b"".join(hashlib.sha256(weights[n].tobytes()).digest() for n in sorted(weights))

    def build_model(self) -> AlbertModel:
        """The model to train."""
        model = build_task_model(self.initial_model, self.task)
        if self.task.heads == ("classify",) and self.task.kind == "multi":
            head = model.heads["classify"]
            if isinstance(head, Head):
                init_bias_from_frequencies(head, [f.target for unit in self.features for f in unit])
        return model

    def make_batch(self, features: Sequence[Feature], examples: Sequence[Any]) -> Batch:
        """The encoder's input; a subclass may add other features of the examples (`model/fusion.py`)."""
        return pack_features(features)

    @property
    def selection_metric(self) -> str:
        """The metric that selects the best checkpoint: the requested one, or the task's first."""
        return self.metric or next(iter(self._metric_names), "loss")

    def compile(self) -> None:
        """Compile nothing: lengths differ from batch to batch (LOG.md)."""

    @property
    def batches(self) -> int:
        """Batches per epoch."""
        return -(-len(self.features) // self.settings.batch_size)

    def order(self, epoch: int) -> list[np.ndarray]:
        """The examples of each batch of an epoch."""
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.settings.seed, epoch])
            order, size = rng.permutation(len(self.features)), self.settings.batch_size
            lengths = np.array([max(len(f.ids) for f in unit) for unit in self.features])
            batches = []
            for start in range(0, len(order), SORTED_BATCHES * size):
                part = order[start : start + SORTED_BATCHES * size]
                part = part[np.argsort(-lengths[part], kind="stable")]
                batches += [part[i : i + size] for i in range(0, len(part), size)]
            self._order = epoch, [batches[i] for i in rng.permutation(len(batches))]
        return self._order[1]

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """This process's texts of the next batch."""
        self.objective.dtype = compute_dtype(self.settings, processes.device)
        epoch, number = self.position
        batch = self.order(epoch)[number]
        self.position = (epoch, number + 1) if number + 1 < len(self.order(epoch)) else (epoch + 1, 0)
        units = batch[processes.rank :: processes.world_size] if len(batch) >= processes.world_size else batch
        size = self.settings.micro_batch_size or len(units)
        tokens = sum(len(f.ids) for i in batch for f in self.features[i])
        micro_batches = [
            self.micro_batch([self.features[i] for i in units[start : start + size]], processes)
            for start in range(0, len(units), size)
        ]
        return micro_batches, tokens

    def micro_batch(self, units: list[list[Feature]], processes: ProcessGroup) -> tuple[Any, ...]:
        """Some examples as (batch, targets, number of examples)."""
        features = [feature for unit in units for feature in unit]
        batch = self.make_batch(features, self.examples).to(processes.device)
        return batch, [f.target for f in features], len(units)

    def evaluate(self) -> dict[str, float]:
        """The task's metrics on the held-out examples."""
        if not self.dev_features:
            return {}
        self.last_scores = compute_scores(
            self.objective, self.dev_features, lambda features: self.make_batch(features, self.dev)
        )
        self.fit_thresholds(self.last_scores)
        return self._measure()

    def fit_thresholds(self, scores: list[Any]) -> None:
        """Choose the out-of-scope probability, or the no-answer threshold, on held-out scores."""
        if isinstance(self.task, ClassifyTask):
            self.task = self.task.fit_min_probability(np.stack(scores), self.dev)
        elif isinstance(self.task, AnswerTask) and self.task.threshold is not None:
            self.task = self.task.fit_threshold(self.task.results(scores, self.dev_features, self.dev), self.dev)

    def _measure(self) -> dict[str, float]:
        """Results and metrics of `last_scores`."""
        self.results = self.task.results(self.last_scores, self.dev_features, self.dev)
        metrics = self.task.measure(self.results, self.dev)
        self._metric_names = list(metrics)
        if self.metric is not None and self.metric not in metrics:
            hint = nearest(self.metric, metrics)
            raise AlbertkitError(f"there is no metric {self.metric!r}{hint}. Choose one of {', '.join(metrics)}.")
        return metrics

    def check_metric(self) -> None:
        """Raise before training if the metric does not exist: scores of 0 have the same metric names."""
        if self.metric is None or not self.dev_features or "mlm" in self.objective.heads:
            return
        hidden_size = self.initial_model.config.hidden_size
        self.last_scores = [zero_scores(self.task, feature, hidden_size) for feature in self.dev_features]
        self._measure()
        self._metric_names = []

    def check_metrics(self, metrics: dict[str, float], progress: float, step: int) -> Alarm | None:
        """Always None: `collapse.py` checks the predictions of a finished run."""
        return None

    def data_position(self) -> dict[str, Any]:
        """Epoch and batch."""
        return {"epoch": self.position[0], "batch": self.position[1], "examples": self.identity}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Return to saved weights and a position in the data."""
        if data.get("examples") != self.identity:
            raise AlbertkitError(
                "this folder contains a run with other examples, another initial model or teacher, or another loss, "
                "pruning or seed. Choose another folder, or delete it."
            )
        self.model.load_state_dict(to_tensors(artifact.weights))
        epoch, batch = int(data.get("epoch", 0)), int(data.get("batch", 0))
        self.position = (epoch, batch) if batch < self.batches else (epoch + 1, 0)  # batches may be larger now

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The current model."""
        task, before = self.task, self.initial_model.metadata
        has_own_temperature = isinstance(task, ClassifyTask) and bool(task.min_probability)
        if metrics and isinstance(task, ClassifyTask) and len(self.dev) and not has_own_temperature:
            task = dataclasses.replace(task, temperature=task.fit_temperature(np.stack(self.last_scores), self.dev))
        step = {
            "step": "finetune",
            "task": task.name or type(task).__name__.lower(),
            "steps": state.step,
            "minutes": state.minutes,
            "examples": len(self.features),
            "dev_examples": len(self.dev),
            "settings": recorded_settings(self.settings),
        }
        details = task_details(task, self.max_length)
        kinds = {getattr(e, "pair", None) is not None for e in self.examples}
        if isinstance(task, ClassifyTask) and len(kinds) == 1:
            details["pairs"] = kinds.pop()  # `distill` and predictions use texts of this kind only
        meta = dataclasses.replace(
            before,
            task=task_name(task),
            labels=tuple(task.labels),
            details=details,
            metrics={"dev": metrics} if metrics else {},
            history=(*before.history, step),
            quantization=None,
            depth=None,
        )
        if "vector" in task.heads:  # the pooling that was trained
            meta = dataclasses.replace(meta, pooling="mean", prompts={})
        return Artifact(self.model.config, self.model.weights(), self.tokenizer, meta, self.model.head_graphs())


def predict_scores(
    model: Artifact, examples: Sequence[Any], device: str = "auto"
) -> tuple[Any, list[Feature], list[Any]]:
    """(task, features, scores of each feature) of a fine-tuned model, computed in float32."""
    task = load_task(model.metadata)
    tokenizer = require_tokenizer(model)
    network = AlbertModel.from_artifact(model)
    network.to("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))
    features = task.features(examples, tokenizer, int(model.metadata.details.get("max_length", 128)))
    return task, features, compute_scores(FinetuneObjective(network, task), features, pack_features)


def compute_scores(
    objective: FinetuneObjective, features: Sequence[Feature], make_batch: Callable[[Sequence[Feature]], Batch]
) -> list[Any]:
    """The heads' scores of each feature, in the format of the task."""
    objective.eval()
    scores: list[Any] = [None] * len(features)
    device = next(objective.parameters()).device
    for numbers in group_by_length([len(f.ids) for f in features], EVAL_TOKENS, EVAL_TOKENS):
        batch_features = [features[i] for i in numbers]
        targets = [f.target for f in batch_features]
        with torch.no_grad():
            out = objective.run(make_batch(batch_features).to(device), targets)
        rows = split_token_scores(out, targets) if objective.heads == ("mlm",) else split_scores(out, objective.heads)
        for i, row in zip(numbers, rows, strict=True):
            scores[i] = row
    check_finite("scores", scores)
    return scores


def group_features(features: list[Feature], examples: int) -> list[list[Feature]]:
    """Features that stay in one batch: all choices of a question, or one. Features without a target are dropped."""
    if all(f.target is not None for f in features):
        return [[feature] for feature in features]
    units: list[list[Feature]] = [[] for _ in range(examples)]
    for feature in features:
        units[feature.example].append(feature)
    return [unit for unit in units if any(f.target is not None for f in unit)]


def loss_settings(task: Task) -> list[tuple[str, object]]:
    """The fields of a task that change the loss (margin, weights …) and differ from the defaults."""
    fields = [f for f in _fields(task) if f.name not in FIELDS_WITHOUT_LOSS]
    values = [(f.name, getattr(task, f.name), f.default) for f in fields]
    custom: list[tuple[str, object]] = [("loss", type(task).__name__)] if custom_loss(task) else []
    kinds = str | int | float | tuple | list
    return custom + [(name, value) for name, value, default in values if isinstance(value, kinds) and value != default]


def custom_head_shapes(model: AlbertModel) -> list[tuple[str, list[tuple[str, tuple[int, ...]]]]]:
    """The class of each custom head and the shapes of its tensors, by which a run is recognised."""
    heads = [head.module for head in model.heads.values() if isinstance(head, CustomHead)]
    return [(type(head).__name__, [(n, tuple(t.shape)) for n, t in head.state_dict().items()]) for head in heads]


def zero_scores(task: Task, feature: Feature, hidden_size: int) -> np.ndarray | tuple[np.ndarray, ...]:
    """Scores of 0 for a feature, in the shape of the task's heads."""
    length = len(feature.ids)
    shapes = {"tag": (length, len(task.labels)), "answer": (length, 2), "choose": (1,), "vector": (hidden_size,)}
    scores = [np.zeros(shapes.get(head, (task.outputs(head),)), np.float32) for head in task.heads]
    return scores[0] if len(scores) == 1 else tuple(scores)


def pack_features(features: Sequence[Feature]) -> Batch:
    """The encoder's input for some features, with their positions and attention masks."""
    batch = Batch.of([f.ids for f in features], [f.segments for f in features])
    if any(f.positions is not None for f in features):
        rows = [f.positions or range(len(f.ids)) for f in features]
        batch = dataclasses.replace(batch, positions=torch.tensor([p for row in rows for p in row]))
    if any(f.ranks is not None for f in features):
        ranks = batch.pad(torch.tensor([rank for f in features for rank in f.ranks or [0] * len(f.ids)]))
        before = (ranks % 2 == 0)[:, None, :] & (ranks[:, None, :] <= ranks[:, :, None])
        batch = dataclasses.replace(batch, attention_mask=before | torch.eye(ranks.shape[1], dtype=torch.bool))
    return batch


def split_token_scores(out: ModelOutput, targets: Sequence[Any]) -> list[np.ndarray]:
    """(masks, 2) for each text: the most likely token, and the log-probability of the target."""
    rows = [[t for t in row if t != IGNORE_INDEX] for row in targets]
    log_probabilities = out.heads["mlm"].logits.float().log_softmax(-1)
    labels = torch.tensor([t for row in rows for t in row], device=log_probabilities.device)
    best, target = log_probabilities.argmax(-1).float(), log_probabilities.gather(1, labels[:, None])[:, 0]
    return [part.numpy() for part in torch.stack([best, target], -1).cpu().split([len(row) for row in rows])]


def split_scores(out: ModelOutput, heads: tuple[str, ...]) -> list[Any]:
    """The heads' scores as one array (or a tuple of them) for each text."""
    lengths = list(out.encoded.batch.lengths)
    by_head: list[list[np.ndarray]] = []
    for head in heads:
        output = out.heads[head]
        if head == "tag":
            parts = output.logits.float().cpu().split(lengths)
        elif head == "answer":
            parts = torch.stack([output.start, output.end], -1).float().cpu().split(lengths)
        else:
            parts = getattr(output, "logits", output).float().cpu().unbind(0)
        by_head.append([part.numpy() for part in parts])
    return by_head[0] if len(by_head) == 1 else list(zip(*by_head, strict=True))


def task_details(task: Task, max_length: int) -> dict[str, Any]:
    """The task's settings, as JSON."""
    values = {f.name: getattr(task, f.name) for f in _fields(task) if f.name != "labels"}
    return {"max_length": max_length, **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}}


def _fields(task: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(task) if dataclasses.is_dataclass(task) else ()
