"""Elastic depth: a fine-tuned model is trained so that every depth is a good model, with one head for all of them.

In: a task, examples, a fine-tuned model (or a pre-trained one), `ElasticSettings`. Out: a `Work` for `loop.py`. Before this file: `finetune.py`, whose work it
changes; `tune.py` calls it; `runtime/early_exit.py` uses what comes out.

One pass gives the hidden states after every layer, and the head reads those of the full depth and of the depths drawn:

    loss = full + shallow · mean over depths of [ (1 - teach) · right answers + teach · what the full depth says ] + λ · consistency

Where what the full depth says is its distribution over classes (or its value, or its vector), without a gradient. Shared layers make this natural: depth d
and depth d + 1 are the same function, applied once more. For vectors alone, `distill.py` does the same with teachers; its models are elastic as they come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, ModelOutput, pool
from albertkit.runtime.batching import group_by_length
from albertkit.runtime.calibration import calibrate_scores
from albertkit.tasks.task import Feature, Task, lower_is_better
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import call_in_dtype
from albertkit.train.finetune_task import (
    BUDGET,
    IGNORE_INDEX,
    LOSSES,
    FinetuneObjective,
    FinetuneTask,
    kind_of,
    split_scores,
)
from albertkit.train.pretrain import consistency
from albertkit.train.train_settings import ElasticSettings, TrainSettings

OVER = "over_depths"
INGREDIENTS = (
    "elastic",
    "sampled_depths",
    "shallow_weight",
    "distill_weight",
    "temperature",
    "consistency_weight",
)  # of the loss


class MultiDepthModel(nn.Module):
    """A model whose heads read what several depths give, from one pass."""

    def __init__(self, model: AlbertModel, heads: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, heads

    def forward(self, batch: Batch, depths: Sequence[int]) -> tuple[dict[int, ModelOutput], tuple[Tensor, ...]]:
        """(output by depth, hidden states after every layer)."""
        encoder = self.model.encoder
        encoded = encoder(batch, depth=max(depths), keep_layers=True)
        found = {}
        for depth in depths:
            hidden = encoded.layers[depth]
            pooled = None if encoder.pooler is None else torch.tanh(encoder.pooler(batch.first(hidden)))
            here = dataclasses.replace(encoded, hidden=hidden, pooled=pooled, layers=())
            heads: dict[str, Any] = {}
            for name in self.names:
                if name == "vector":
                    heads[name] = pool(here, "mean")
                else:
                    heads[name] = self.model.heads[name](here, **({"choices": 1} if name == "choose" else {}))
            found[depth] = ModelOutput(here, heads)
        return found, encoded.layers[1:]


# What the full depth says, as a loss -----------------------------------------------------------------------------


def apart(mine: Tensor, theirs: Tensor, soften: float) -> Tensor:
    """KL of two rows of scores, on average over rows; gradients keep their size, whatever `soften` is."""
    mine, theirs = (scores.float().div(soften).log_softmax(-1) for scores in (mine, theirs))
    return soften**2 * F.kl_div(mine, theirs, log_target=True, reduction="batchmean")


def classify_apart(task: Any, mine: ModelOutput, full: ModelOutput, targets: list[Any], soften: float) -> Tensor:
    """Of classes, of each class alone, or of values."""
    ours, theirs = mine.heads["classify"].logits.float(), full.heads["classify"].logits.float().detach()
    if task.kind == "single":
        return apart(ours, theirs, soften)
    if task.kind == "multi":
        return soften**2 * F.binary_cross_entropy_with_logits(ours / soften, torch.sigmoid(theirs / soften))
    return F.mse_loss(ours, theirs)


def tag_apart(task: Any, mine: ModelOutput, full: ModelOutput, targets: list[Any], soften: float) -> Tensor:
    """Of labels, at the first piece of each word."""
    ours, theirs = mine.heads["tag"].logits, full.heads["tag"].logits.detach()
    read = torch.tensor([t != IGNORE_INDEX for row in targets for t in row], device=ours.device)
    return apart(ours[read], theirs[read], soften) if bool(read.any()) else ours.sum() * 0


def answer_apart(task: Any, mine: ModelOutput, full: ModelOutput, targets: list[Any], soften: float) -> Tensor:
    """Of first and of last tokens, over the tokens of each text."""
    batch, ours, theirs = mine.encoded.batch, mine.heads["answer"], full.heads["answer"]
    sides = ((ours.start, theirs.start), (ours.end, theirs.end))
    return sum(apart(batch.pad(a.float(), -1e4), batch.pad(b.float().detach(), -1e4), soften) for a, b in sides) / 2  # type: ignore[return-value]


def choose_apart(task: Any, mine: ModelOutput, full: ModelOutput, targets: list[Any], soften: float) -> Tensor:
    """Of the choices of each question."""
    firsts = [i for i, target in enumerate(targets) if target is not None]
    sizes = [b - a for a, b in zip(firsts, [*firsts[1:], len(targets)], strict=True)]
    ours, theirs = (
        nn.utils.rnn.pad_sequence(list(scores.float()[:, 0].split(sizes)), batch_first=True, padding_value=-1e4)
        for scores in (mine.heads["choose"].logits, full.heads["choose"].logits.detach())
    )  # (questions, most choices)
    return apart(ours, theirs, soften)


def intent_apart(task: Any, mine: ModelOutput, full: ModelOutput, targets: list[Any], soften: float) -> Tensor:
    """Of intents and of slots."""
    intents = apart(mine.heads["classify"].logits, full.heads["classify"].logits.detach(), soften)
    return intents + tag_apart(task, mine, full, [t[1] for t in targets], soften)


def match_apart(task: Any, mine: ModelOutput, full: ModelOutput, targets: list[Any], soften: float) -> Tensor:
    """Twice the distance (1 - cosine) of vectors, as in `distill.py`."""
    return 2 * (1 - F.cosine_similarity(mine.heads["vector"].float(), full.heads["vector"].float().detach()).mean())


APART = {
    ("classify",): classify_apart,
    ("tag",): tag_apart,
    ("answer",): answer_apart,
    ("choose",): choose_apart,
    ("classify", "tag"): intent_apart,
    ("vector",): match_apart,
}


# The work --------------------------------------------------------------------------------------------------------


class ElasticObjective(FinetuneObjective):
    """Texts and targets to the loss of several depths."""

    def __init__(self, model: AlbertModel, task: Task, options: ElasticSettings) -> None:
        super().__init__(model, task)
        self.options = options
        self.deep = MultiDepthModel(model, self.heads)
        self.full = model.config.num_hidden_layers

    def outputs(self, batch: Batch, depths: Sequence[int]) -> tuple[dict[int, ModelOutput], tuple[Tensor, ...]]:
        """As `MultiDepthModel` gives them, computed in the chosen precision."""
        found: tuple[dict[int, ModelOutput], tuple[Tensor, ...]]
        found = call_in_dtype(self.deep, self.dtype, batch, depths)
        return found

    def drawn(self) -> list[int]:
        """The shallower depths of this update; the loop seeds the draw by the step."""
        every = list(range(1, self.full)) if self.options.elastic else []
        if not self.options.sampled_depths or self.options.sampled_depths >= len(every):
            return every
        return sorted(every[i] for i in torch.randperm(len(every))[: self.options.sampled_depths].tolist())

    def forward(self, batch: Batch, targets: list[Any], texts: int) -> tuple[Tensor, Tensor]:
        """(loss, sums of `ElasticTask.metric_names`)."""
        options, depths = self.options, self.drawn()
        found, layers = self.outputs(batch, [*depths, self.full])
        truth, near = LOSSES[self.heads], APART[self.heads]
        whole = truth(self.task, found[self.full], targets)
        losses = []
        for depth in depths:
            loss = whole.new_zeros(())
            if options.distill_weight < 1:
                loss = loss + (1 - options.distill_weight) * truth(self.task, found[depth], targets)
            if options.distill_weight > 0:
                loss = loss + options.distill_weight * near(
                    self.task, found[depth], found[self.full], targets, options.temperature
                )
            losses.append(loss)
        shallow = torch.stack(losses).mean() if losses else whole.new_zeros(())
        alike = consistency(layers) if options.consistency_weight else whole.new_zeros(())
        total = whole + options.shallow_weight * shallow + options.consistency_weight * alike
        count = whole.new_full((), texts)
        sums = [torch.stack([part.detach() * texts, count]) for part in (whole, shallow, alike)]
        return total, torch.stack(sums[: 3 if options.consistency_weight else 2])


class ElasticTask(FinetuneTask):
    """The work of making every depth a good model, for `loop.train`."""

    selection_metric = OVER

    def __init__(
        self,
        task: Task,
        start: Artifact,
        train: Sequence[Any],
        dev: Sequence[Any],
        settings: TrainSettings,
        options: ElasticSettings,
    ) -> None:
        self.options = options
        super().__init__(task, start, train, dev, settings, options.max_length or 128, options.metric)
        if same_task(task, start):
            keep_heads(self.model, start)
        self.objective: ElasticObjective = ElasticObjective(self.model, task, options)
        self.metric_names = ("loss", "shallow_loss", *(("consistency_loss",) if options.consistency_weight else ()))
        self.exits: dict[str, Any] | None = None

    def identity_bytes(self) -> bytes:
        """The model to start from, and the settings of the loss that are not the usual ones."""
        usual = ElasticSettings()
        given = {n: getattr(self.options, n) for n in INGREDIENTS if getattr(self.options, n) != getattr(usual, n)}
        return super().identity_bytes() + (repr(given).encode() if given else b"")

    @torch.no_grad()
    def by_depth(self, features: Sequence[Feature]) -> dict[int, list[Any]]:
        """The heads' scores for each feature, after every depth."""
        self.objective.eval()
        depths = range(1, self.objective.full + 1)
        found: dict[int, list[Any]] = {depth: [None] * len(features) for depth in depths}
        device = next(self.model.parameters()).device
        for places in group_by_length([len(f.ids) for f in features], BUDGET, BUDGET):
            batch = self.make_batch([features[i] for i in places], self.dev).to(device)
            for depth, out in self.objective.outputs(batch, depths)[0].items():
                for i, row in zip(places, split_scores(out, self.objective.heads), strict=True):
                    found[depth][i] = row
        return found

    def evaluate(self) -> dict[str, float]:
        """The task's metrics at the full depth; the chosen one at every depth (`accuracy_at_3`); and `over_depths`, half of the full depth and half of
        the mean over all, by which the best checkpoint is chosen (the full depth alone where no other one is learnt).
        """
        if not self.dev_features:
            return {}
        scores, full = self.by_depth(self.dev_features), self.objective.full
        self.fit_thresholds(scores[full])
        results = {d: self.task.results(rows, self.dev_features, self.dev) for d, rows in scores.items()}
        self.last_scores, self.results = scores[full], results[full]
        found = self.task.measure(self.results, self.dev)
        name = self.metric or next(iter(found))
        if name not in found:
            raise AlbertkitError(f"there is no metric {name!r}; choose one of {', '.join(found)}")
        each = {d: found[name] if d == full else self.task.measure(results[d], self.dev)[name] for d in results}
        sign = -1 if lower_is_better(name) else 1
        mean = float(np.mean(list(each.values()))) if self.options.elastic else found[name]
        exits = calibrate_scores(self.task, scores, self.dev_features, self.dev, results)
        self.exits = None if exits is None else exits.to_dict()
        return {
            **found,
            OVER: sign * (found[name] + mean) / 2,
            **{f"{name}_at_{d}": value for d, value in each.items() if d != full},
        }

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The model as it is now, with its metric at every depth, and when texts may leave."""
        plain = {name: value for name, value in metrics.items() if "_at_" not in name and name != OVER}
        made = super().to_artifact(plain, state)
        step = {**made.meta.made[-1], "step": "elastic", "depths": {n: getattr(self.options, n) for n in INGREDIENTS}}
        details, scores = dict(made.meta.details), dict(made.meta.metrics)
        if metrics and self.exits is not None:
            details["early_exit"] = self.exits
            scores["dev at depth"] = {n.split("_at_")[1]: value for n, value in metrics.items() if "_at_" in n}
        meta = dataclasses.replace(made.meta, details=details, metrics=scores, made=(*made.meta.made[:-1], step))
        return dataclasses.replace(made, meta=meta)


def same_task(task: Any, start: Artifact) -> bool:
    """Whether the model to start from was fine-tuned for this very task, so that its heads fit."""
    before = (start.meta.task, tuple(start.meta.labels), tuple(start.meta.details.get("intents", ())))
    return before == (kind_of(task), tuple(task.labels), tuple(getattr(task, "intents", ())))


def keep_heads(model: AlbertModel, start: Artifact) -> None:
    """The heads that a model fine-tuned for the same task brings along."""
    state = {n: torch.from_numpy(np.array(a)) for n, a in start.weights.items() if n.startswith("heads.")}
    mine = model.state_dict()
    fitting = {n: a for n, a in state.items() if n in mine and mine[n].shape == a.shape}
    model.load_state_dict(fitting, strict=False)
