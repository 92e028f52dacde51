"""Fine-tuning: labelled examples and a pre-trained model to a model for one task.

In: a `Task` (`tasks/`), examples, the model to start from, `TrainSettings`. Out: a `Work` for `loop.py`; `finetune` does all of it.

Texts are packed without padding. Batches hold texts of like length: a stretch of shuffled examples is sorted, cut into batches, and the
batches are shuffled; seed and epoch decide it, so that a place in the data is two numbers.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.compress.cost import operations
from albertkit.errors import AlbertkitError, nearest
from albertkit.model import AlbertModel, Batch, ModelOutput, pool
from albertkit.model.albert_model import build_head, to_tensors
from albertkit.runtime.batching import group_by_length
from albertkit.tasks import TASKS, load_task
from albertkit.tasks.answer import AnswerTask
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.generation import check_can_generate
from albertkit.tasks.task import IGNORE_INDEX, Feature, Task
from albertkit.tokenizer import Tokenizer
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import ProcessGroup, call_in_dtype, compute_dtype
from albertkit.train.loop import Alarm
from albertkit.train.task_losses import LOSSES, own_loss
from albertkit.train.train_settings import TrainSettings
from albertkit.weights import HEADS

STRETCH = 50  # batches that are sorted by length together
BUDGET = 4096  # tokens at once in an evaluation
POOLED = {"classify", "choose"}  # heads that read the first token alone
NO_LESSON = {
    "labels", "kind", "stride", "overlap", "target_length", "mean", "std", "known_labels",  # the targets show these
    "temperature", "threshold", "min_probability", "max_answer", "n_best", "target_words",  # found or read after the training
}  # fmt: skip


class FinetuneObjective(nn.Module):
    """Texts and targets to a loss."""

    def __init__(self, model: AlbertModel, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.heads = task.heads
        self.dtype = torch.float32

    def run(self, batch: Batch, targets: Sequence[Any] = ()) -> ModelOutput:
        """The model's output for the task's heads; each choice is scored by itself, and words where `targets` ask for one."""
        inputs: dict[str, dict[str, Any]] = {"choose": {"choices": 1}} if "choose" in self.heads else {}
        if "mlm" in self.heads:
            asked = torch.tensor([t != IGNORE_INDEX for row in targets for t in row], device=batch.ids.device)
            inputs["mlm"] = {"positions": asked.nonzero()[:, 0]}
        heads = [head for head in self.heads if head != "vector"]
        first = set(self.heads) <= POOLED
        out: ModelOutput = call_in_dtype(self.model, self.dtype, batch, heads=heads, inputs=inputs, first_only=first)
        if "vector" in self.heads:
            out.heads["vector"] = pool(out.encoded, "mean")
        return out

    def forward(self, batch: Batch, targets: list[Any], texts: int) -> tuple[Tensor, Tensor]:
        """(loss, its sum and count); a task of one's own may bring its `loss(output, targets)`."""
        out, own = self.run(batch, targets), own_loss(self.task)
        loss = own(out, targets) if own else LOSSES[self.heads](self.task, out, targets)
        return loss, torch.stack([loss.detach() * texts, torch.full_like(loss, texts).detach()])[None]


class FinetuneTask:
    """The work of fine-tuning, for `loop.train`."""

    metric_names: tuple[str, ...] = ("loss",)
    has_fixed_shape = False

    def __init__(
        self,
        task: Task,
        start: Artifact,
        train: Sequence[Any],
        dev: Sequence[Any],
        settings: TrainSettings,
        max_length: int = 128,
        metric: str | None = None,
    ) -> None:
        if start.tokenizer is None:
            raise AlbertkitError("the model to start from holds no tokenizer, so it cannot read text")
        self.task, self.initial_model, self.settings = task, start, settings
        self.tokenizer: Tokenizer = start.tokenizer
        self.max_length = min(max_length, start.config.max_position_embeddings)
        self.examples, self.dev = train, dev
        self.features = units(task.features(train, self.tokenizer, self.max_length), len(train))
        if not self.features:
            raise AlbertkitError("there are no examples to learn from")
        self.dev_features = task.features(dev, self.tokenizer, self.max_length) if len(dev) else []
        torch.manual_seed(settings.seed)
        self.model = self.build_model()
        self.objective = FinetuneObjective(self.model, task)
        self.metric = metric
        length = int(np.mean([len(f.ids) for unit in self.features for f in unit]))
        self.flops_per_token = 3 * operations(start.config, max(1, min(length, self.max_length)))["total"]
        seen = repr(
            (
                type(self).__name__,
                task.labels,
                start.config,
                [(f.ids, f.target) for unit in self.features for f in unit],
                *taught_with(task),
            )
        )
        self.identity = hashlib.sha256(seen.encode() + self.identity_bytes()).hexdigest()[:16]
        self.at = (0, 0)
        self._order: tuple[int, list[np.ndarray]] | None = None
        self.seen: list[Any] = []

    def identity_bytes(self) -> bytes:
        """What tells the model to start from, or whatever else a training must not go on without, from others."""
        weights = {n: a for n, a in self.initial_model.weights.items() if n.startswith("encoder.")}
        return b"".join(hashlib.sha256(weights[n].tobytes()).digest() for n in sorted(weights))

    def build_model(self) -> AlbertModel:
        """The model to train; a work of one's own may add modules."""
        model = fresh(self.initial_model, self.task)
        if self.task.heads == ("classify",) and self.task.kind == "multi":
            begin_at_shares(model.heads["classify"], [f.target for unit in self.features for f in unit])
        return model

    def make_batch(self, features: Sequence[Feature], examples: Sequence[Any]) -> Batch:
        """Features as what the encoder reads; a work of one's own may add what else is known of the examples (`model/fusion.py`)."""
        return batch_of(features)

    @property
    def selection_metric(self) -> str:
        """The score that chooses the best checkpoint: the one asked for, or the task's first."""
        return self.metric or next(iter(self.names()), "loss")

    def names(self) -> list[str]:
        """Names of the scores there are, once an evaluation has been made."""
        return self.seen

    def compile(self) -> None:
        """Nothing: lengths differ from batch to batch, and compiling what does not depend on them did not pay (LOG.md)."""

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.features) // self.settings.batch_size)

    def order(self, epoch: int) -> list[np.ndarray]:
        """The examples of each batch of an epoch."""
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.settings.seed, epoch])
            order, size = rng.permutation(len(self.features)), self.settings.batch_size
            lengths = np.array([max(len(f.ids) for f in unit) for unit in self.features])
            made = []
            for start in range(0, len(order), STRETCH * size):
                stretch = order[start : start + STRETCH * size]
                stretch = stretch[np.argsort(-lengths[stretch], kind="stable")]
                made += [stretch[i : i + size] for i in range(0, len(stretch), size)]
            self._order = epoch, [made[i] for i in rng.permutation(len(made))]
        return self._order[1]

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """This process's texts of the next batch."""
        self.objective.dtype = compute_dtype(self.settings, processes.device)
        epoch, number = self.at
        whole = self.order(epoch)[number]
        self.at = (epoch, number + 1) if number + 1 < len(self.order(epoch)) else (epoch + 1, 0)
        mine = whole[processes.rank :: processes.world_size] if len(whole) >= processes.world_size else whole
        most = self.settings.micro_batch_size or len(mine)
        tokens = sum(len(f.ids) for i in whole for f in self.features[i])
        parts = [
            self.part([self.features[i] for i in mine[s : s + most]], processes) for s in range(0, len(mine), most)
        ]
        return parts, tokens

    def part(self, chosen: list[list[Feature]], processes: ProcessGroup) -> tuple[Any, ...]:
        """Some examples as (batch, targets, examples)."""
        features = [feature for unit in chosen for feature in unit]
        batch = self.make_batch(features, self.examples).to(processes.device)
        return batch, [f.target for f in features], len(chosen)

    def scores(self, features: Sequence[Feature]) -> list[Any]:
        """The heads' scores for each feature of the held-out examples, as the task reads them."""
        return scores_of(self.objective, features, lambda chosen: self.make_batch(chosen, self.dev))

    def evaluate(self) -> dict[str, float]:
        """The task's metrics on the held-out examples."""
        if not self.dev_features:
            return {}
        self.last_scores = self.scores(self.dev_features)
        self.fit_thresholds(self.last_scores)
        return self.judge()

    def fit_thresholds(self, scores: list[Any]) -> None:
        """What held-out scores decide: the floor below which a text is out of scope, the threshold of no answer."""
        if isinstance(self.task, ClassifyTask):
            self.task = self.task.fit_min_probability(np.stack(scores), self.dev)
        elif isinstance(self.task, AnswerTask) and self.task.threshold is not None:
            self.task = self.task.fit_threshold(self.task.results(scores, self.dev_features, self.dev), self.dev)

    def judge(self) -> dict[str, float]:
        """Results and metrics of the scores there are."""
        self.results = self.task.results(self.last_scores, self.dev_features, self.dev)
        found = self.task.measure(self.results, self.dev)
        self.seen = list(found)
        if self.metric is not None and self.metric not in found:
            hint = nearest(self.metric, found)
            raise AlbertkitError(f"there is no metric {self.metric!r}{hint}; choose one of {', '.join(found)}")
        return found

    def check_metric(self) -> None:
        """Refuse a metric that there is not, before anything is learnt: scores of 0 have the names of any others."""
        if self.metric is None or not self.dev_features or "mlm" in self.objective.heads:
            return
        hidden = self.initial_model.config.hidden_size
        self.last_scores = [nothing(self.task, feature, hidden) for feature in self.dev_features]
        self.judge()
        self.seen = []

    def check_metrics(self, numbers: dict[str, float], progress: float, step: int) -> Alarm | None:
        """None: whether a fine-tuning collapsed is judged by its predictions, when it is done."""
        return None

    def data_position(self) -> dict[str, Any]:
        """Epoch and batch."""
        return {"epoch": self.at[0], "batch": self.at[1], "examples": self.identity}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Saved weights, and the place in the data."""
        if data.get("examples") != self.identity:
            raise AlbertkitError(
                "this folder holds a training on other examples, or from another model or teacher, with another pruning or seed, or with other settings of the loss; choose another one, or delete it to begin anew"
            )
        self.model.load_state_dict(to_tensors(artifact.weights))
        self.at = (int(data.get("epoch", 0)), int(data.get("batch", 0)))

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The model as it is now."""
        task = self.task
        if (
            metrics and isinstance(task, ClassifyTask) and len(self.dev) and not task.min_probability
        ):  # a floor has its temperature
            task = dataclasses.replace(task, temperature=task.fit_temperature(np.stack(self.last_scores), self.dev))
        done = {
            "step": "finetune",
            "task": task.name or type(task).__name__.lower(),
            "updates": state.step,
            "minutes": round(state.seconds / 60, 2),
            "examples": len(self.features),
            "settings": {k: v for k, v in asdict(self.settings).items() if v is not None},
        }
        known = details(task, self.max_length)
        if isinstance(task, ClassifyTask) and all(getattr(e, "pair", None) is not None for e in self.examples):
            known["pairs"] = True  # what it reads; `distill` must not give it single lines
        meta = dataclasses.replace(
            self.initial_model.meta, task=kind_of(task), labels=tuple(task.labels), details=known,
            metrics={"dev": metrics} if metrics else {}, made=(*self.initial_model.meta.made, done), quantisation=None, depth=None,
        )  # fmt: skip
        if "vector" in task.heads:  # as it was trained
            meta = dataclasses.replace(meta, pooling="mean", prompts={})
        return Artifact(self.model.config, self.model.weights(), self.tokenizer, meta)


def scored(model: Artifact, examples: Sequence[Any], device: str = "auto") -> tuple[Any, list[Feature], list[Any]]:
    """(task, features, the heads' scores of each feature) of a fine-tuned model, computed in float32."""
    task = load_task(model.meta)
    net = AlbertModel.from_artifact(model)
    net.to("cuda" if device == "auto" and torch.cuda.is_available() else device.replace("auto", "cpu"))
    if model.tokenizer is None:
        raise AlbertkitError("the model holds no tokenizer, so it cannot read text")
    features = task.features(examples, model.tokenizer, int(model.meta.details.get("max_length", 128)))
    return task, features, scores_of(FinetuneObjective(net, task), features, batch_of)


def scores_of(
    objective: FinetuneObjective, features: Sequence[Feature], batched: Callable[[Sequence[Feature]], Batch]
) -> list[Any]:
    """The heads' scores for each feature, as the task reads them."""
    objective.eval()
    found: list[Any] = [None] * len(features)
    device = next(objective.parameters()).device
    for places in group_by_length([len(f.ids) for f in features], BUDGET, BUDGET):
        chosen = [features[i] for i in places]
        targets = [f.target for f in chosen]
        with torch.no_grad():
            out = objective.run(batched(chosen).to(device), targets)
        parts = split_words(out, targets) if objective.heads == ("mlm",) else None
        for i, row in zip(places, parts or split_scores(out, objective.heads), strict=True):
            found[i] = row
    return found


def units(features: list[Feature], examples: int) -> list[list[Feature]]:
    """What is drawn together: all choices of a question; else each feature by itself. Those without a target are left out."""
    if any(f.target is None for f in features):
        grouped: list[list[Feature]] = [[] for _ in range(examples)]
        for feature in features:
            grouped[feature.example].append(feature)
        return [unit for unit in grouped if any(f.target is not None for f in unit)]
    return [[feature] for feature in features]


def taught_with(task: Any) -> list[tuple[str, Any]]:
    """The settings of a task that change what is learnt from the same targets (loss, weights …), where they are not the usual ones."""
    fields = [f for f in dataclasses.fields(task) if f.name not in NO_LESSON] if dataclasses.is_dataclass(task) else []
    given = [(f.name, getattr(task, f.name), f.default) for f in fields]
    own = [("loss", type(task).__name__)] if own_loss(task) else []
    return own + [(n, v) for n, v, usual in given if isinstance(v, str | int | float | tuple | list) and v != usual]


def nothing(task: Any, feature: Feature, hidden: int) -> Any:
    """Scores of 0 for a feature, as the task's heads give them."""
    labels, length = len(task.labels), len(feature.ids)
    classes = len(getattr(task, "intents", ())) or max(1, labels)
    shapes = {
        "classify": (classes,),
        "tag": (length, labels),
        "answer": (length, 2),
        "choose": (1,),
        "vector": (hidden,),
    }
    found = [np.zeros(shapes[head], np.float32) for head in task.heads]
    return found[0] if len(found) == 1 else tuple(found)


def batch_of(features: Sequence[Feature]) -> Batch:
    """Features as what the encoder reads, with the positions and the order of looking that they ask for."""
    batch = Batch.of([f.ids for f in features], [f.segments for f in features])
    if any(f.positions is not None for f in features):
        rows = [f.positions or range(len(f.ids)) for f in features]
        batch = dataclasses.replace(batch, positions=torch.tensor([p for row in rows for p in row]))
    if any(f.ranks is not None for f in features):
        ranks = batch.pad(torch.tensor([rank for f in features for rank in f.ranks or [0] * len(f.ids)]))
        before = (ranks % 2 == 0)[:, None, :] & (ranks[:, None, :] <= ranks[:, :, None])
        batch = dataclasses.replace(batch, attention_mask=before | torch.eye(ranks.shape[1], dtype=torch.bool))
    return batch


def split_words(out: ModelOutput, targets: Sequence[Any]) -> list[np.ndarray]:
    """For each text (masks, 2): the likeliest word, and the log-probability of the right one."""
    rows = [[t for t in row if t != IGNORE_INDEX] for row in targets]
    chances = out.heads["mlm"].logits.float().log_softmax(-1)
    wanted = torch.tensor([t for row in rows for t in row], device=chances.device)
    both = torch.stack([chances.argmax(-1).float(), chances.gather(1, wanted[:, None])[:, 0]], -1).cpu()
    return [part.numpy() for part in both.split([len(row) for row in rows])]


def split_scores(out: ModelOutput, heads: tuple[str, ...]) -> list[Any]:
    """The heads' scores as one array (or a tuple of them) for each text."""
    lengths = list(out.encoded.batch.lengths)
    by_head: list[list[np.ndarray]] = []
    for head in heads:
        found = out.heads[head]
        if head == "tag":
            parts = found.logits.float().cpu().split(lengths)
        elif head == "answer":
            parts = torch.stack([found.start, found.end], -1).float().cpu().split(lengths)
        else:
            parts = getattr(found, "logits", found).float().cpu().unbind(0)
        by_head.append([part.numpy() for part in parts])
    return by_head[0] if len(by_head) == 1 else list(zip(*by_head, strict=True))


def fresh(start: Artifact, task: Task) -> AlbertModel:
    """The encoder to start from, with fresh heads for the task; other heads are dropped, but masked words stay as learnt."""
    kept: tuple[str, ...] = ("encoder.",)
    if "mlm" in task.heads:
        check_can_generate(start.config, start.weights)
        kept = ("encoder.", "heads.mlm.")
    encoder = {name: array for name, array in start.weights.items() if name.startswith(kept)}
    model = AlbertModel(start.config, {name: head_for(name, start, task) for name in task.heads if name != "vector"})
    missing, unexpected = model.load_state_dict(to_tensors(encoder), strict=False)
    odd = [name for name in missing if not name.startswith(("heads.", "encoder.pooler."))] + list(unexpected)
    if odd:
        raise AlbertkitError(f"the weights do not fit the model at {odd[0]!r}")
    return model


@torch.no_grad()
def begin_at_shares(head: Any, targets: Sequence[Any]) -> None:
    """Let a head of several labels begin by saying how frequent each label is.

    Rare labels have scores far below 0. Biases move by a rate a step, too little to get there, so that the encoder
    would first have to learn to give every text one strong direction, which is what tells no text from another.
    """
    share = torch.tensor(targets, dtype=torch.float64).mean(0).clamp(1e-4, 1 - 1e-4)
    head.linear.bias.copy_(torch.log(share / (1 - share)))


def head_for(name: str, start: Artifact, task: Any) -> nn.Module:
    """A fresh head with as many rows as the task has labels; one that is not built in is made by the task."""
    if name not in HEADS:
        if not hasattr(task, "module") or own_loss(task) is None:
            raise AlbertkitError(
                f"the head {name!r} is not built in (there are {', '.join(HEADS)}); give the task the methods module(name, config), which makes it, and loss(output, targets)"
            )
        own: nn.Module = task.module(name, start.config)
        return own
    return build_head(name, start.config, labels=task.outputs(name))


def kind_of(task: Task) -> str:
    """The task's name in `albertkit.json`: of the built-in task that it is or refines; `embed` where heads of one's own are needed to use it."""
    return task.name if task.name in TASKS and set(task.heads) <= {*HEADS, "vector"} else "embed"


def details(task: Any, max_length: int) -> dict[str, Any]:
    """The task's settings, as JSON."""
    fields = dataclasses.fields(task) if dataclasses.is_dataclass(task) else ()
    plain = {f.name: getattr(task, f.name) for f in fields if f.name != "labels"}
    return {"max_length": max_length, **{k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}}
