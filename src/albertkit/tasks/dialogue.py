"""Dialogue state tracking: the user's goal after each turn, from labels that are predicted for each turn.

In: `DialogueTurn`s. Out: `DialogueState`s and metrics. Imports `classify.py`, which predicts the labels.

A label is "slot=value" for a value that the turn sets, and "request=slot" for a slot that it requests. If the user's
text contains the value, the label is "slot=<named>" and the value is copied from the text, because most values are too
rare to be classes. A later value of a slot replaces an earlier one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import DialogueTurn, TextExample
from albertkit.tasks.task import Feature, Task, TaskResult
from albertkit.tokenizer import Tokenizer

REQUEST = "request"
NAMED = "<named>"  # the value that the user's text contains


@dataclass(frozen=True)
class DialogueState(TaskResult):
    """The state after a turn, and the requests of the turn.

    >>> from albertkit import DialogueState
    >>> DialogueState(goal={"food": "thai"}, requests=frozenset({"phone"})).goal["food"]
    'thai'
    """

    goal: dict[str, str]
    """The value of each slot so far."""
    requests: frozenset[str]
    """The slots that this turn requests."""
    added: dict[str, str] = field(default_factory=dict, compare=False)
    """The values of this turn, new or repeated."""


@dataclass(frozen=True)
class DialogueTask(Task):
    """State tracking: each turn is a text with several labels; the results are the states after each turn."""

    labels: tuple[str, ...]
    known_labels: tuple[str, ...] = ()
    """Every "slot=value" of the training data, to be found in the user's text."""
    threshold: float = 0.5

    name = "dialogue"
    heads = ("classify",)
    kind = "multi"
    usage = "track"
    example_types = (DialogueTurn,)
    can_be_explained = False
    truncates = True
    has_independent_results = False

    @classmethod
    def from_examples(cls, turns: Sequence[DialogueTurn]) -> DialogueTask:
        """The task with the labels of these turns."""
        slot_values = sorted({label for turn in turns for label in turn_labels(turn)})
        if not slot_values:
            raise AlbertkitError("no turn has a label. State tracking needs turns with labels.")
        labels = {label for row in cls((), tuple(slot_values)).training_labels(turns) for label in row}
        return cls(tuple(sorted(labels)), tuple(slot_values))

    def training_labels(self, turns: Sequence[DialogueTurn]) -> list[tuple[str, ...]]:
        """The labels of each turn, sorted, with `NAMED` for the values that the user's text contains."""
        rows = []
        for turn, values in zip(turns, values_in_text(turns, self.known_labels), strict=True):
            named = {f"{slot}={value}": f"{slot}={NAMED}" for slot, value in values.items()}
            rows.append(tuple(sorted(named.get(label, label) for label in turn_labels(turn))))
        return rows

    def features(self, examples: Sequence[DialogueTurn], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One feature per turn; its target omits labels that were not in training."""
        texts = [
            TextExample(turn.system, turn.user, tuple(label for label in row if label in self.labels), turn.where)
            for turn, row in zip(examples, self.training_labels(examples), strict=True)
        ]
        return ClassifyTask(self.labels, "multi").features(texts, tokenizer, max_length)

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[DialogueTurn]
    ) -> list[DialogueState]:
        probabilities = ClassifyTask(self.labels, "multi").probabilities(np.stack(scores).astype(np.float64))
        slots = [label.removesuffix(f"={NAMED}") for label in self.labels if label.endswith(f"={NAMED}")]
        by_turn = []
        for row, values in zip(probabilities.tolist(), values_in_text(examples, self.known_labels), strict=True):
            by_label = dict(zip(self.labels, row, strict=True))
            for slot in slots:
                probability = by_label.pop(f"{slot}={NAMED}")
                if slot in values:
                    label = f"{slot}={values[slot]}"
                    by_label[label] = max(probability, by_label.get(label, 0.0))
            by_turn.append(by_label)
        return track_states(examples, by_turn, self.threshold)

    def measure(self, results: Sequence[DialogueState], examples: Sequence[DialogueTurn]) -> dict[str, float]:
        """Shares of turns: all slots correct ("joint_goal"), all requests ("requests"), each slot ("slot_food")."""
        truth = [true_state(turn) for turn in examples]
        pairs = list(zip(results, truth, strict=True))
        count = max(1, len(pairs))
        slots = sorted({slot for state in truth for slot in state.goal})
        return {
            "joint_goal": sum(a.goal == b.goal for a, b in pairs) / count,
            "requests": sum(a.requests == b.requests for a, b in pairs) / count,
            **{f"slot_{slot}": sum(a.goal.get(slot) == b.goal.get(slot) for a, b in pairs) / count for slot in slots},
        }


def turn_labels(turn: DialogueTurn) -> list[str]:
    return sorted({f"{slot}={value}" for slot, value in turn.updates})


def values_in_text(turns: Sequence[DialogueTurn], known_labels: Sequence[str]) -> list[dict[str, str]]:
    """Slot → value in the user's text, for each turn: the last value of a slot, the longer of overlapping ones."""
    labels: dict[str, list[str]] = {}
    for label in known_labels:
        slot, _, value = label.partition("=")
        if slot != REQUEST and value:
            labels.setdefault(value.casefold(), []).append(label)
    if not labels:
        return [{} for _ in turns]
    longest = sorted(labels, key=lambda value: (-len(value), value))
    pattern = re.compile(f"(?<![a-z0-9])(?:{'|'.join(map(re.escape, longest))})(?![a-z0-9])")
    return [
        dict(label.split("=", 1) for value in pattern.findall(turn.user.casefold()) for label in labels[value])
        for turn in turns
    ]


def track_states(
    turns: Sequence[DialogueTurn], predictions: Sequence[Mapping[str, float]], threshold: float = 0.5
) -> list[DialogueState]:
    """The state after each turn, from the probability of each label.

    For each slot, the most likely value above the threshold replaces the earlier one. Turns of different dialogues may
    alternate. A turn whose number is not higher than that of the previous turn restarts its dialogue.
    """
    goals: dict[str, tuple[int, dict[str, str]]] = {}  # last turn and goal of each dialogue
    states = []
    for turn, probabilities in zip(turns, predictions, strict=True):
        last, goal = goals.get(turn.dialogue, (-1, {}))
        goal = dict(goal) if turn.number > last else {}
        best: dict[str, float] = {}
        requests = set()
        for label, probability in probabilities.items():
            slot, _, value = label.partition("=")
            if probability < threshold:
                continue
            if slot == REQUEST:
                requests.add(value)
            elif probability > best.get(slot, -1.0):
                best[slot], goal[slot] = probability, value
        goals[turn.dialogue] = turn.number, goal
        states.append(DialogueState(goal, frozenset(requests), {slot: goal[slot] for slot in best}))
    return states


def true_state(turn: DialogueTurn) -> DialogueState:
    return DialogueState(
        {slot: value for slot, value in turn.state if slot != REQUEST},
        frozenset(value for slot, value in turn.updates if slot == REQUEST),
        {slot: value for slot, value in turn.updates if slot != REQUEST},
    )
