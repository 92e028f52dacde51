"""Task heads, and their losses against labels or against another model's scores.

In: a `Task` and the initial model, or a model's output and the targets. Out: a model with the task's heads, or the mean
loss. Next: `finetune_task.py` uses `LOSSES`; `elastic.py` and `distill_task.py` also use `distill_loss`. Losses of
hidden states are in `distill_task.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, ModelOutput
from albertkit.model.albert_model import CustomHead, Head, build_head, to_tensors
from albertkit.tasks import TASKS
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.generation import GenerateTask, check_can_generate
from albertkit.tasks.match import MatchTask
from albertkit.tasks.task import IGNORE_INDEX, Task
from albertkit.weights import CUSTOM_HEADS, HEADS

HeadClass = Callable[[int, int], nn.Module]
"""Makes a custom head from the hidden size and the number of outputs."""


def build_task_model(initial: Artifact, task: Task) -> AlbertModel:
    """The initial encoder with new heads for the task. Of its old heads, only the MLM head is kept."""
    prefixes: tuple[str, ...] = ("encoder.",)
    if "mlm" in task.heads:
        check_can_generate(initial.config, initial.weights)
        prefixes = ("encoder.", "heads.mlm.")
    weights = {name: array for name, array in initial.weights.items() if name.startswith(prefixes)}
    heads = {name: build_task_head(name, initial, task) for name in task.heads if name != "vector"}
    model = AlbertModel(initial.config, heads)
    missing, unexpected = model.load_state_dict(to_tensors(weights), strict=False)
    wrong = [name for name in missing if not name.startswith(("heads.", "encoder.pooler."))] + list(unexpected)
    if wrong:
        raise AlbertkitError(f"the weights do not fit the model at {wrong[0]!r}. Check the folder's config.json.")
    return model


def build_task_head(name: str, initial: Artifact, task: Task) -> nn.Module:
    """A new head with one row per label, or the one that the task's method `module` returns."""
    if name in CUSTOM_HEADS and hasattr(task, "module"):
        module = task.module(name, initial.config)
        if module is not None:
            return CustomHead(name, module, initial.config.hidden_size, task.outputs(name))
    if name not in HEADS:
        if not hasattr(task, "module") or custom_loss(task) is None:
            raise AlbertkitError(
                f"the head {name!r} is not built in: the built-in heads are {', '.join(HEADS)}. Add the methods "
                "module(name, config) and loss(output, targets) to the task."
            )
        head: nn.Module = task.module(name, initial.config)
        return head
    return build_head(name, initial.config, labels=task.outputs(name))


def with_head(task: Task, head: HeadClass) -> Task:
    """The task with a custom head: what a subclass with the method `module` does."""
    if len(task.heads) != 1 or task.heads[0] not in CUSTOM_HEADS:
        raise AlbertkitError(
            f"head is not available for {task.name}: its heads are {', '.join(task.heads)}, and one of "
            f"{', '.join(CUSTOM_HEADS)} can be replaced. Omit head, or write a subclass of the task (own-layers.md)."
        )

    def module(self: Task, name: str, config: AlbertConfig) -> nn.Module:
        return head(config.hidden_size, self.outputs(name))

    fields: Any = dataclasses.fields(task)  # type: ignore[arg-type]
    custom: type[Task] = type(type(task).__name__, (type(task),), {"module": module})
    return custom(**{field.name: getattr(task, field.name) for field in fields if field.init})


@torch.no_grad()
def init_bias_from_frequencies(head: Head, targets: Sequence[Sequence[float]]) -> None:
    """Initialize the biases of a multi-label head with the label frequencies.

    Rare labels have scores far below 0. A bias moves by one learning rate per step, which is too slow. Without this
    function, the encoder would first learn one strong direction for all texts.
    """
    frequency = torch.tensor(targets, dtype=torch.float64).mean(0).clamp(1e-4, 1 - 1e-4)
    head.linear.bias.copy_(torch.log(frequency / (1 - frequency)))


def has_same_task(task: Task, model: Artifact) -> bool:
    """Whether a model was fine-tuned for this task with these labels, so that its heads fit."""
    before = (model.metadata.task, tuple(model.metadata.labels), tuple(model.metadata.details.get("intents", ())))
    return before == (task_name(task), tuple(task.labels), tuple(getattr(task, "intents", ())))


def copy_heads(model: AlbertModel, source: Artifact) -> None:
    """Copy the heads of a model that was fine-tuned for the same task."""
    for name in source.head_graphs:
        if not isinstance(model.heads[name], CustomHead):
            raise AlbertkitError(
                f"the model has a custom head {name!r}, whose Python class is not stored: it cannot be trained here. "
                "Train it in Python with a task that has the method module, or start from a model without this head."
            )
    heads = to_tensors({n: a for n, a in source.weights.items() if n.startswith("heads.")})
    state = model.state_dict()
    fitting = {n: a for n, a in heads.items() if n in state and state[n].shape == a.shape}
    model.load_state_dict(fitting, strict=False)


def task_name(task: Task) -> str:
    """The name in `albertkit.json`: the built-in task that this task is or extends, or `embed` for custom heads."""
    return task.name if task.name in TASKS and set(task.heads) <= {*HEADS, "vector"} else "embed"


def classify_loss(task: ClassifyTask, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy; binary for several labels; squared error for values."""
    scores = out.heads["classify"].logits.float()  # (texts, classes)
    if task.kind == "single":
        weights = getattr(task, "class_weights", None)
        weight = None if weights is None else torch.tensor(weights, device=scores.device)
        return F.cross_entropy(scores, torch.tensor(targets, device=scores.device), weight)
    labels = torch.tensor(targets, dtype=torch.float32, device=scores.device)
    if task.kind == "multi":
        return F.binary_cross_entropy_with_logits(scores, labels)
    return F.mse_loss(scores[:, 0], labels)


def tag_loss(task: Task, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy at the first token of each word."""
    scores = out.heads["tag"].logits.float()  # (tokens, labels)
    labels = torch.tensor([t for row in targets for t in row], device=scores.device)
    total = F.cross_entropy(scores, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return total / (labels != IGNORE_INDEX).sum().clamp(min=1)


def answer_loss(task: Task, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy of the first and of the last token of the answer, over the tokens of each text."""
    span_logits, batch = out.heads["answer"], out.encoded.batch
    labels = torch.tensor(targets, device=span_logits.start.device)  # (texts, 2)
    losses = [
        F.cross_entropy(batch.pad(scores.float(), -1e4), labels[:, side])
        for side, scores in enumerate((span_logits.start, span_logits.end))
    ]
    return (losses[0] + losses[1]) / 2


def choose_loss(task: Task, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy over the choices of each question."""
    table = _choices_by_question(out.heads["choose"].logits.float()[:, 0], targets)
    labels = [target for target in targets if target is not None]
    return F.cross_entropy(table, torch.tensor(labels, device=table.device))


def _choices_by_question(scores: Tensor, targets: list[Any]) -> Tensor:
    """(texts,) → (questions, most choices); the first choice of each question has the target."""
    firsts = [i for i, target in enumerate(targets) if target is not None]
    sizes = [b - a for a, b in zip(firsts, [*firsts[1:], len(targets)], strict=True)]
    return nn.utils.rnn.pad_sequence(list(scores.split(sizes)), batch_first=True, padding_value=-1e4)


def intent_loss(task: Task, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Intent and slots together."""
    scores = out.heads["classify"].logits.float()
    intents = F.cross_entropy(scores, torch.tensor([t[0] for t in targets], device=scores.device))
    return intents + tag_loss(task, out, [t[1] for t in targets])


def generate_loss(task: GenerateTask, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Cross-entropy of the target token at each mask."""
    scores = out.heads["mlm"].logits.float()  # (masks, V)
    labels = torch.tensor([t for row in targets for t in row if t != IGNORE_INDEX], device=scores.device)
    return F.cross_entropy(scores, labels, label_smoothing=task.label_smoothing)


def match_loss(task: MatchTask, out: ModelOutput, targets: list[Any]) -> Tensor:
    """Losses over the cosines of pairs, see `tasks/match.py`; texts 2i and 2i + 1 are a pair."""
    vectors = F.normalize(out.heads["vector"].float(), dim=-1)
    first, second = vectors[0::2], vectors[1::2]
    labels = torch.tensor(targets[0::2], dtype=torch.float32, device=vectors.device)
    if task.loss == "mnrl":  # each text against all second texts, in both directions
        scores = task.scale * first @ second.T
        right = torch.arange(len(scores), device=scores.device)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.T, right)) / 2
    cosines = (first * second).sum(-1)
    if task.loss == "contrastive":
        negative = F.relu(cosines - task.margin) ** 2
        return (labels * (1 - cosines) ** 2 + (1 - labels) * negative).mean()
    gaps = task.scale * (cosines[:, None] - cosines[None])  # pair i above pair j, where j should be above i
    gaps = gaps.masked_fill(labels[:, None] >= labels[None], -1e4).flatten()
    return torch.logsumexp(torch.cat([gaps.new_zeros(1), gaps]), 0)


def custom_loss(task: Task) -> Callable[[ModelOutput, list[Any]], Tensor] | None:
    """The method `loss(output, targets)` of a custom task. `MatchTask.loss` is a string, so it does not count."""
    loss = getattr(task, "loss", None)
    return loss if callable(loss) else None


LOSSES: dict[tuple[str, ...], Callable[[Any, ModelOutput, list[Any]], Tensor]] = {
    ("classify",): classify_loss,
    ("tag",): tag_loss,
    ("answer",): answer_loss,
    ("choose",): choose_loss,
    ("classify", "tag"): intent_loss,
    ("vector",): match_loss,
    ("mlm",): generate_loss,
}


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean KL over rows of scores, times temperature², so that gradients keep their size."""
    student, teacher = (scores.float().div(temperature).log_softmax(-1) for scores in (student, teacher))
    return temperature**2 * F.kl_div(student, teacher, log_target=True, reduction="batchmean")


DISTILLABLE = LOSSES.keys() - {("mlm",)}  # heads that `distill_loss` supports


def distill_loss(
    task: Task, student: ModelOutput, teacher: ModelOutput, targets: list[Any], temperature: float
) -> Tensor:
    """The mean loss of a student's scores against a teacher's, summed over the heads of the task.

    KL of classes, labels of words, answer tokens and choices; binary cross-entropy for several labels; squared error
    for values; twice the cosine distance of vectors.
    """
    losses = []
    for head in task.heads:
        student_head, teacher_head = student.heads[head], teacher.heads[head]
        if head == "vector":
            losses.append(2 * (1 - F.cosine_similarity(student_head.float(), teacher_head.float().detach()).mean()))
            continue
        if head == "answer":
            pad, sides = (
                student.encoded.batch.pad,
                ((student_head.start, teacher_head.start), (student_head.end, teacher_head.end)),
            )
            rows = [(pad(a.float(), -1e4), pad(b.float().detach(), -1e4)) for a, b in sides]
            losses.append((kl_divergence(*rows[0], temperature) + kl_divergence(*rows[1], temperature)) / 2)
            continue
        student_scores, teacher_scores = student_head.logits.float(), teacher_head.logits.float().detach()
        if head == "choose":
            student_scores, teacher_scores = (
                _choices_by_question(x[:, 0], targets) for x in (student_scores, teacher_scores)
            )
        if head == "tag":  # at the first token of each word
            tags = [t[1] for t in targets] if "classify" in task.heads else targets
            is_read = torch.tensor([t != IGNORE_INDEX for row in tags for t in row], device=student_scores.device)
            student_scores, teacher_scores = student_scores[is_read], teacher_scores[is_read]
        if task.kind == "multi":
            probabilities = torch.sigmoid(teacher_scores / temperature)
            losses.append(
                temperature**2 * F.binary_cross_entropy_with_logits(student_scores / temperature, probabilities)
            )
        elif task.kind == "regression":
            losses.append(F.mse_loss(student_scores, teacher_scores))
        else:
            losses.append(
                kl_divergence(student_scores, teacher_scores, temperature)
                if len(student_scores)
                else student_scores.sum()
            )
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]
