"""Elastic depth: training of a model at every depth, with one head for all depths.

In: a fine-tuned model, examples, `ElasticSettings`, optionally unlabelled texts. Out: a `FinetuneResult` with the
metric at every depth and the calibration of early exit (`runtime/early_exit.py`). Before this file:
`finetune_task.py`, which it extends. One pass gives the hidden states after every layer, and the head reads those of
the full depth and of the sampled depths:

    loss = full + shallow_weight · mean over depths of [ (1 - w) · labels + w · full depth ] + λ · consistency

where w is `distill_weight`, and the predictions of the full depth have no gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError, check_finite
from albertkit.interop.convert import open_model
from albertkit.model import AlbertModel, Batch, ModelOutput, pool
from albertkit.runtime.batching import group_by_length
from albertkit.runtime.calibration import calibrate_scores
from albertkit.tasks import TASKS, load_task
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask
from albertkit.tasks.dataset import check_known_labels
from albertkit.tasks.examples import Span, TaggedExample, TextExample, split_words
from albertkit.tasks.tag import IntentTask, TagTask
from albertkit.tasks.task import Feature, Task, lower_is_better
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import call_in_dtype
from albertkit.train.finetune_report import FinetuneResult, warn_of_few
from albertkit.train.finetune_runs import FinetuneJob, run_seeds
from albertkit.train.finetune_task import (
    EVAL_TOKENS,
    FinetuneObjective,
    FinetuneTask,
    predict_scores,
    split_scores,
)
from albertkit.train.presets import preset_epochs
from albertkit.train.pretrain import consistency_loss
from albertkit.train.run_settings import check_not_deleted
from albertkit.train.task_heads import LOSSES, copy_heads, distill_loss, has_same_task
from albertkit.train.train_settings import ElasticSettings, Log, TrainSettings

OVER_DEPTHS = "over_depths"
# The fields of `ElasticSettings` that change the loss.
LOSS_FIELDS = ("elastic", "sampled_depths", "shallow_weight", "distill_weight", "temperature", "consistency_weight")
DepthOutputs = tuple[dict[int, ModelOutput], tuple[Tensor, ...]]
"""Outputs by depth, and hidden states after every layer."""


class MultiDepthModel(nn.Module):
    """A model whose heads read the hidden states of several depths, from one pass."""

    def __init__(self, model: AlbertModel, heads: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, heads

    def forward(self, batch: Batch, depths: Sequence[int]) -> DepthOutputs:
        encoder = self.model.encoder
        encoded = encoder(batch, depth=max(depths), keep_layers=True)
        outputs = {}
        for depth in depths:
            hidden = encoded.layers[depth]
            pooled = None if encoder.pooler is None else torch.tanh(encoder.pooler(batch.first(hidden)))
            encoded_at_depth = dataclasses.replace(encoded, hidden=hidden, pooled=pooled, layers=())
            heads: dict[str, Any] = {}
            for name in self.names:
                if name == "vector":
                    heads[name] = pool(encoded_at_depth, "mean")
                else:
                    options = {"choices": 1} if name == "choose" else {}
                    heads[name] = self.model.heads[name](encoded_at_depth, **options)
            outputs[depth] = ModelOutput(encoded_at_depth, heads)
        return outputs, encoded.layers[1:]


class ElasticObjective(FinetuneObjective):
    """The loss of several depths, of texts against targets."""

    def __init__(self, model: AlbertModel, task: Task, elastic: ElasticSettings) -> None:
        super().__init__(model, task)
        self.elastic = elastic
        self.multi_depth_model = MultiDepthModel(model, self.heads)
        self.full_depth = model.config.num_hidden_layers

    def outputs(self, batch: Batch, depths: Sequence[int]) -> DepthOutputs:
        """The outputs of `MultiDepthModel`, computed in the chosen precision."""
        outputs: DepthOutputs = call_in_dtype(self.multi_depth_model, self.dtype, batch, depths)
        return outputs

    def sample_depths(self) -> list[int]:
        """The shallower depths of this step; the loop seeds the draw."""
        depths, count = list(range(1, self.full_depth)) if self.elastic.elastic else [], self.elastic.sampled_depths
        if not count or count >= len(depths):
            return depths
        return sorted(depths[i] for i in torch.randperm(len(depths))[:count].tolist())

    def forward(self, batch: Batch, targets: list[Any], texts: int) -> tuple[Tensor, Tensor]:
        """(loss, sums of `ElasticTask.metric_names`)."""
        elastic, depths = self.elastic, self.sample_depths()
        outputs, layers = self.outputs(batch, [*depths, self.full_depth])
        label_loss = LOSSES[self.heads]
        full_output = outputs[self.full_depth]
        full = label_loss(self.task, full_output, targets)
        losses = []
        for depth in depths:
            loss, weight = full.new_zeros(()), elastic.distill_weight
            if weight < 1:
                loss = loss + (1 - weight) * label_loss(self.task, outputs[depth], targets)
            if weight > 0:
                distilled = distill_loss(self.task, outputs[depth], full_output, targets, elastic.temperature)
                loss = loss + weight * distilled
            losses.append(loss)
        shallow = torch.stack(losses).mean() if losses else full.new_zeros(())
        consistency = consistency_loss(layers) if elastic.consistency_weight else full.new_zeros(())
        total = full + elastic.shallow_weight * shallow + elastic.consistency_weight * consistency
        count = full.new_full((), texts)
        sums = [torch.stack([part.detach() * texts, count]) for part in (full, shallow, consistency)]
        return total, torch.stack(sums[: 3 if elastic.consistency_weight else 2])


class ElasticTask(FinetuneTask):
    """What `loop.train` trains: every depth of a model, with one head."""

    selection_metric = OVER_DEPTHS

    def __init__(
        self,
        task: Task,
        model: Artifact,
        train: Sequence[Any],
        dev: Sequence[Any],
        settings: TrainSettings,
        elastic: ElasticSettings,
    ) -> None:
        self.elastic = elastic
        super().__init__(task, model, train, dev, settings, elastic.max_length or 128, elastic.metric)
        if has_same_task(task, model):
            copy_heads(self.model, model)
        self.objective: ElasticObjective = ElasticObjective(self.model, task, elastic)
        self.metric_names = ("loss", "shallow_loss", *(("consistency_loss",) if elastic.consistency_weight else ()))
        self.early_exit: dict[str, Any] | None = None

    def identity_bytes(self) -> bytes:
        """The initial model, and the settings of the loss that differ from the defaults."""
        default = ElasticSettings()
        changed = {n: getattr(self.elastic, n) for n in LOSS_FIELDS if getattr(self.elastic, n) != getattr(default, n)}
        return super().identity_bytes() + (repr(changed).encode() if changed else b"")

    @torch.no_grad()
    def scores_by_depth(self, features: Sequence[Feature]) -> dict[int, list[Any]]:
        """The heads' scores of each feature, at every depth."""
        self.objective.eval()
        depths = range(1, self.objective.full_depth + 1)
        scores: dict[int, list[Any]] = {depth: [None] * len(features) for depth in depths}
        device = next(self.model.parameters()).device
        for numbers in group_by_length([len(f.ids) for f in features], EVAL_TOKENS, EVAL_TOKENS):
            batch = self.make_batch([features[i] for i in numbers], self.dev).to(device)
            for depth, output in self.objective.outputs(batch, depths)[0].items():
                for i, row in zip(numbers, split_scores(output, self.objective.heads), strict=True):
                    scores[depth][i] = row
        check_finite("scores", (row for rows in scores.values() for row in rows))
        return scores

    def evaluate(self) -> dict[str, float]:
        """The task's metrics at the full depth, the selected one at every depth (`accuracy_at_3`), and `over_depths`.

        `over_depths` selects the best checkpoint: half of the full depth and half of the mean over all depths
        (of the full depth only, if no other one is trained).
        """
        if not self.dev_features:
            return {}
        scores, full_depth = self.scores_by_depth(self.dev_features), self.objective.full_depth
        self.fit_thresholds(scores[full_depth])
        results = {d: self.task.results(rows, self.dev_features, self.dev) for d, rows in scores.items()}
        self.last_scores, self.results = scores[full_depth], results[full_depth]
        metrics = self.task.measure(self.results, self.dev)
        name = self.metric or next(iter(metrics))
        at_depth = {depth: self.task.measure(result, self.dev)[name] for depth, result in results.items()}
        sign = -1 if lower_is_better(name) else 1
        mean = float(np.mean(list(at_depth.values()))) if self.elastic.elastic else metrics[name]
        calibration = calibrate_scores(self.task, scores, self.dev_features, self.dev, results)
        self.early_exit = None if calibration is None else calibration.to_dict()
        return {
            **metrics,
            OVER_DEPTHS: sign * (metrics[name] + mean) / 2,
            **{f"{name}_at_{depth}": value for depth, value in at_depth.items() if depth != full_depth},
        }

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The current model, with its metric at every depth and the calibration of early exit."""
        full_metrics = {name: value for name, value in metrics.items() if "_at_" not in name and name != OVER_DEPTHS}
        artifact = super().to_artifact(full_metrics, state)
        *before, last = artifact.metadata.history
        step = {**last, "step": "elastic", "depths": {n: getattr(self.elastic, n) for n in LOSS_FIELDS}}
        details, scores = dict(artifact.metadata.details), dict(artifact.metadata.metrics)
        if metrics and self.early_exit is not None:
            details["early_exit"] = self.early_exit
            scores["dev at depth"] = {n.split("_at_")[1]: value for n, value in metrics.items() if "_at_" in n}
        meta = dataclasses.replace(artifact.metadata, details=details, metrics=scores, history=(*before, step))
        return dataclasses.replace(artifact, metadata=meta)


@dataclass(frozen=True)
class UnlabelledTexts:
    """Additional training texts, which are pseudo-labelled."""

    texts: Sequence[str]
    """A tab separates the two texts of a pair."""
    teacher: Artifact | Path | str | None = None
    """The model that labels them; by default the trained model, at its full depth."""


def finetune_elastic(
    model: Artifact | Path | str,
    train: Sequence[Any],
    dev: Sequence[Any],
    output: Path | str,
    settings: ElasticSettings | None = None,
    unlabelled: UnlabelledTexts | None = None,
    log: Log = lambda text: None,
) -> FinetuneResult:
    """Train every depth of a fine-tuned model, and calibrate early exit.

    With a teacher, `model` may be a model without a task. It is then trained for the teacher's task.
    """
    unlabelled, settings = unlabelled or UnlabelledTexts(()), settings or ElasticSettings()
    for path in (model, unlabelled.teacher):
        check_not_deleted(path, Path(output), settings)
    artifact = model if isinstance(model, Artifact) else open_model(model)
    teacher = unlabelled.teacher
    if teacher is not None and not isinstance(teacher, Artifact):
        teacher = open_model(teacher)
    if teacher is not None and not unlabelled.texts:
        raise AlbertkitError("a teacher was passed without texts to label. Pass texts as well.")
    source = task_source(artifact, teacher)
    task = load_task(source.metadata)
    unknown = check_known_labels(task, train, "which cannot be learnt")
    if unknown:
        raise AlbertkitError(f"{unknown[0]}. Omit these examples, or fine-tune a model with these labels first.")
    for note in check_known_labels(task, dev):
        log(note)
    if unlabelled.texts:
        check_pairs(task, train, unlabelled.texts)
        log(f"labelling {len(unlabelled.texts):,} texts")
        train = [*train, *pseudo_label(teacher or artifact, unlabelled.texts, settings.device)]
    share = 0.5 if source is artifact else 1.0  # the model is fine-tuned for the task already
    epochs = settings.epochs or max(1.0, preset_epochs(len(train)) * share)
    length = settings.max_length or int(source.metadata.details.get("max_length", 128))
    settings = dataclasses.replace(settings, epochs=epochs, max_length=length)
    warn_of_few(len(dev))
    return run_seeds(FinetuneJob(task, artifact, train, dev, Path(output), settings), log)


def task_source(model: Artifact, teacher: Artifact | None) -> Artifact:
    """The model or its teacher: the one with the task to train. Raises if the model cannot be trained."""
    if teacher is not None and teacher.metadata.task not in TASKS:
        raise AlbertkitError(
            f"the teacher was made for {teacher.metadata.task!r}, so it cannot label texts. Pass a fine-tuned model."
        )
    if model.config.options.static:
        raise AlbertkitError("this model is static and has no layers to train. Pass a model with layers.")
    for who, artifact in (("the teacher", teacher), ("this model", model)):
        if artifact is not None and artifact.metadata.details.get("reads") == "vector":
            raise AlbertkitError(
                f"{who} is a head on frozen vectors and has no layers to train. Pass one fine-tuned without --freeze."
            )
    if model.metadata.task not in TASKS and teacher is not None:
        return teacher
    for name, value in _labels(model).items():
        if teacher is not None and _labels(teacher)[name] != value:
            raise AlbertkitError(
                f"the teacher has {name} {_labels(teacher)[name]}, but the model has {value}. "
                "Pass a teacher that was fine-tuned on the same examples."
            )
    return model


def _labels(model: Artifact) -> dict[str, Any]:
    meta = model.metadata
    return {"task": meta.task, "labels": sorted(meta.labels), "intents": sorted(meta.details.get("intents", ()))}


def pseudo_label(model: Artifact, texts: Sequence[str], device: str = "auto") -> list[Any]:
    """Examples of the model's task, labelled by its full depth. Texts out of scope are dropped."""
    task = load_task(model.metadata)
    if isinstance(task, ClassifyTask):
        examples: list[Any] = [TextExample(*line.split("\t", 1)) for line in texts]
    elif isinstance(task, TagTask | IntentTask):
        examples = [TaggedExample(line, split_words(line)) for line in texts]
    else:
        raise AlbertkitError(
            f"this model is for {model.metadata.task}: texts can be labelled for classify, tag and intent only. "
            "Omit the unlabelled texts."
        )
    task, features, scores = predict_scores(model, examples, device)
    results = task.results(scores, features, examples)
    labelled: list[Any] = []
    for example, result in zip(examples, results, strict=True):
        if isinstance(example, TaggedExample):
            spans = tuple(Span(s.start, s.end, s.label) for s in result.spans)
            labelled.append(dataclasses.replace(example, spans=spans, intent=getattr(result, "intent", None)))
        elif result.label != OUT_OF_SCOPE or OUT_OF_SCOPE in task.labels:
            labelled.append(dataclasses.replace(example, label=result.label))
    return labelled


def check_pairs(task: Task, examples: Sequence[Any], texts: Sequence[str]) -> None:
    """Raise if only one of unlabelled texts and examples are pairs."""
    if not isinstance(task, ClassifyTask) or not examples:
        return
    has_pairs = examples[0].pair is not None
    for number, line in enumerate(texts, 1):
        if ("\t" in line) != has_pairs:
            problem = "no tab, but the labelled examples are pairs. Separate the two texts with a tab."
            if not has_pairs:
                problem = "a tab, but the labelled examples are single texts. Remove the tab."
            raise AlbertkitError(f"unlabelled text {number:,} ({line[:40]!r}) has {problem}")
