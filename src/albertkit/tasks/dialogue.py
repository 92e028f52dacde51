"""Dialogue state tracking: what the user wants so far, turn by turn, from what each turn says.

In: `DialogueTurn`s, and for each the probabilities of labels. Out: texts to classify (several labels each), `DialogueState`s, metrics.
Before this file: `examples.py`; beside it: `classify.py`, which learns and finds the labels.

A label is "slot=value" for what a turn informs of, "request=slot" for what it asks. Where the user's words name the value,
the model learns "slot=<named>" instead, one label for all values of a slot, and the value is read from the words: most
values are too rare to be learnt one by one. The others ("dontcare", "cheap" for "not expensive") are labels of their own.
Only values seen in training are known, so a new value is missed, and counts as wrong. A value is replaced by a later one and
never taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import DialogueTurn, TextExample
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Tokenizer

REQUEST = "request"
NAMED = "<named>"  # stands for the value that the user's words name


@dataclass(frozen=True)
class DialogueState:
    """What holds after a turn, and what the turn asks for."""

    goal: dict[str, str]
    """The value of each slot so far."""
    requests: frozenset[str]
    """The slots asked for in this turn."""
    added: dict[str, str] = field(default_factory=dict, compare=False)
    """The values that this turn gives, new or said again."""
    depth: ClassVar[int | None] = None
    """Layers applied, on results of texts that may leave early (`early_exit=`); no part of what is compared or written."""


@dataclass(frozen=True)
class DialogueTask:
    """State tracking as a task: each turn is a text with several labels; results are the states after each turn."""

    labels: tuple[str, ...]
    known_labels: tuple[str, ...] = ()
    """Every "slot=value" of the training, to be found in the user's words."""
    threshold: float = 0.5

    name = "dialogue"
    head = "classify"
    kind = "multi"

    @classmethod
    def from_examples(cls, turns: Sequence[DialogueTurn]) -> DialogueTask:
        """The labels that these turns have."""
        known = sorted({label for text in turn_texts(turns) for label in text.label or ()})  # type: ignore[union-attr]
        if not known:
            raise AlbertkitError("no turn says anything about a slot; state tracking needs turns with labels")
        folded = cls((), tuple(known)).folded(turns)
        return cls(tuple(sorted({label for text in folded for label in text.label or ()})), tuple(known))  # type: ignore[union-attr]

    @property
    def outputs(self) -> int:
        """Rows of the head."""
        return len(self.labels)

    def folded(self, turns: Sequence[DialogueTurn]) -> list[TextExample]:
        """`turn_texts`, with `NAMED` for the values that the user's words name."""
        out = []
        for text, said in zip(turn_texts(turns), values_in_text(turns, self.known_labels), strict=True):
            there = {f"{slot}={value}": f"{slot}={NAMED}" for slot, value in said.items()}
            labels = sorted(there.get(label, label) for label in text.label)  # type: ignore[union-attr]
            out.append(TextExample(text.text, text.pair, tuple(labels), text.where))
        return out

    def features(self, examples: Sequence[DialogueTurn], tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One feature for each turn; values that training never saw are left out of its targets."""
        rows = set(self.labels)
        made = [
            TextExample(t.text, t.pair, tuple(n for n in t.label if n in rows), t.where)  # type: ignore[union-attr]
            for t in self.folded(examples)
        ]
        return ClassifyTask(self.labels, "multi").features(made, tokenizer, max_length)

    def results(
        self, scores: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[DialogueTurn]
    ) -> list[DialogueState]:
        """The state after each turn."""
        probabilities = ClassifyTask(self.labels, "multi").probabilities(np.stack(scores).astype(np.float64))
        by_turn = []
        for row, said in zip(probabilities.tolist(), values_in_text(examples, self.known_labels), strict=True):
            found = dict(zip(self.labels, row, strict=True))
            for slot in [label.removesuffix(f"={NAMED}") for label in self.labels if label.endswith(f"={NAMED}")]:
                chance = found.pop(f"{slot}={NAMED}")
                if slot in said:
                    label = f"{slot}={said[slot]}"
                    found[label] = max(chance, found.get(label, 0.0))
            by_turn.append(found)
        return track(examples, by_turn, self.threshold)

    def measure(self, results: Sequence[DialogueState], examples: Sequence[DialogueTurn]) -> dict[str, float]:
        """Joint goal accuracy first."""
        return measure(results, examples)


def turn_texts(turns: Sequence[DialogueTurn]) -> list[TextExample]:
    """What the classifier reads: the system's words, then the user's, with the labels of this turn, sorted."""
    return [
        TextExample(
            turn.system, turn.user, tuple(sorted({f"{slot}={value}" for slot, value in turn.updates})), turn.where
        )
        for turn in turns
    ]


def values_in_text(turns: Sequence[DialogueTurn], known: Sequence[str]) -> list[dict[str, str]]:
    """Slot → value that the user's words name, for each turn; of several values of a slot the last, of values that
    overlap the longer.
    """
    slots: dict[str, list[str]] = {}
    for label in known:
        slot, _, value = label.partition("=")
        if slot != REQUEST and value:
            slots.setdefault(value.casefold(), []).append(label)
    if not slots:
        return [{} for _ in turns]
    longest = sorted(slots, key=lambda value: (-len(value), value))
    pattern = re.compile(f"(?<![a-z0-9])(?:{'|'.join(map(re.escape, longest))})(?![a-z0-9])")
    return [
        dict(label.split("=", 1) for hit in pattern.findall(turn.user.casefold()) for label in slots[hit])
        for turn in turns
    ]


def track(
    turns: Sequence[DialogueTurn], predictions: Sequence[Mapping[str, float]], threshold: float = 0.5
) -> list[DialogueState]:
    """The state after each turn. Turns of a dialogue come in order; another dialogue may come between them.

    Per slot the likeliest value that reaches the threshold replaces the earlier one. A turn whose number does not go up
    begins its dialogue anew.
    """
    if len(turns) != len(predictions):
        raise AlbertkitError(f"there are {len(turns)} turns and {len(predictions)} predictions; give one for each turn")
    goals: dict[str, tuple[int, dict[str, str]]] = {}  # last turn and goal of each dialogue
    out = []
    for turn, probabilities in zip(turns, predictions, strict=True):
        last, goal = goals.get(turn.dialogue, (-1, {}))
        goal = dict(goal) if turn.number > last else {}
        best: dict[str, float] = {}
        requests = set()
        for label, chance in probabilities.items():
            slot, mark, value = label.partition("=")
            if not mark:
                raise AlbertkitError(
                    f"the label {label!r} has no '='; labels of a turn are slot=value and request=slot"
                )
            if chance < threshold:
                continue
            if slot == REQUEST:
                requests.add(value)
            elif chance > best.get(slot, -1.0):
                best[slot], goal[slot] = chance, value
        goals[turn.dialogue] = turn.number, goal
        out.append(DialogueState(goal, frozenset(requests), {slot: goal[slot] for slot in best}))
    return out


def truth(turns: Sequence[DialogueTurn]) -> list[DialogueState]:
    """The states that the data says are right."""
    return [
        DialogueState(
            {slot: value for slot, value in turn.state if slot != REQUEST},
            frozenset(value for slot, value in turn.updates if slot == REQUEST),
            {slot: value for slot, value in turn.updates if slot != REQUEST},
        )
        for turn in turns
    ]


def measure(states: Sequence[DialogueState], turns: Sequence[DialogueTurn]) -> dict[str, float]:
    """Shares of turns: with every slot right ("joint_goal"), with all requests right ("requests"), and for each slot
    those with its value right, or rightly without one ("slot_food").
    """
    right = truth(turns)
    pairs = list(zip(states, right, strict=True))
    count = max(1, len(pairs))
    slots = sorted({slot for state in right for slot in state.goal})
    return {
        "joint_goal": sum(a.goal == b.goal for a, b in pairs) / count,
        "requests": sum(a.requests == b.requests for a, b in pairs) / count,
        **{f"slot_{slot}": sum(a.goal.get(slot) == b.goal.get(slot) for a, b in pairs) / count for slot in slots},
    }
