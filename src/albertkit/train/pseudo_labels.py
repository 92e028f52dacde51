"""Texts without labels get those that a fine-tuned model gives them: more to learn from, for all its depths.

In: a model, and texts, with a tab between the two of a pair. Out: examples, as if they had been read from a file. `tune.elastic` adds them to the
labelled ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.tasks import load_task
from albertkit.tasks.classify import OUT_OF_SCOPE, ClassifyTask
from albertkit.tasks.examples import Span, TaggedExample, TextExample
from albertkit.tasks.tag import IntentTask, TagTask
from albertkit.tasks.word_alignment import split_words
from albertkit.train.finetune_task import scored


def labelled(model: Artifact, texts: Sequence[str], device: str = "auto") -> list[Any]:
    """Examples of the model's task, labelled by its full depth; texts that are out of scope are left out."""
    task = load_task(model.meta)
    if isinstance(task, ClassifyTask):
        examples: list[Any] = [TextExample(*line.split("\t", 1)) for line in texts]
    elif isinstance(task, TagTask | IntentTask):
        examples = [TaggedExample(line, split_words(line)) for line in texts]
    else:
        raise AlbertkitError(
            f"texts without labels can teach classes, tags and intents; this model is for {model.meta.task}, whose examples are more than a text"
        )
    task, features, scores = scored(model, examples, device)
    found = [
        with_labels(e, result) for e, result in zip(examples, task.results(scores, features, examples), strict=True)
    ]
    return [e for e in found if getattr(e, "label", "") != OUT_OF_SCOPE or OUT_OF_SCOPE in task.labels]


def same_form(task: Any, examples: Sequence[Any], texts: Sequence[str]) -> None:
    """Refuse single texts among examples of pairs, and pairs among single texts."""
    if not isinstance(task, ClassifyTask) or not examples:
        return
    pairs = examples[0].pair is not None
    for number, line in enumerate(texts, 1):
        if ("\t" in line) != pairs:
            form = ("no tab, and the labelled examples are pairs: put a tab between the two" if pairs
                    else "a tab, as pairs have, and the labelled examples are single texts: take it out")  # fmt: skip
            raise AlbertkitError(f"text {number:,} without a label ({line[:40]!r}) has {form}")


def with_labels(example: Any, result: Any) -> Any:
    """An example with what was found in it."""
    if isinstance(example, TextExample):
        return dataclasses.replace(example, label=result.label)
    spans = tuple(Span(s.start, s.end, s.label) for s in result.spans)
    return dataclasses.replace(example, spans=spans, intent=getattr(result, "intent", None))
