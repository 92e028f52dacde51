"""The labelled data sets of `studies/tasks.py`: their files in a folder, their tasks and options.

Options are set only if the presets of `train/train_settings.py` do not fit the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Set:
    """One data set."""

    task: str
    train: str
    dev: str | None
    """File or folder of held-out examples; None holds out one context in five of `train`."""
    metrics: tuple[str, ...]
    """What is usually reported of it."""
    options: dict[str, Any] = field(default_factory=dict)
    """For `tuning.Options`."""
    settings: dict[str, Any] = field(default_factory=dict)
    """For the task."""
    test: str | None = None
    """A file whose split `test` is reported instead of dev, which only chooses the best epoch."""
    chinese: bool = False
    skip_bad: bool = False
    note: str = ""
    """What differs from the whole, published data."""


CLINC = ("in_scope_accuracy", "out_of_scope_recall", "out_of_scope_f1", "accuracy")
FRAMES = ("accuracy", "f1", "exact")

# The longest come first, so that several at once end at about the same time.
SETS: dict[str, Set] = {
    "race-middle": Set("choose", "race-middle/train.jsonl", "race-middle/dev.jsonl", ("accuracy",),
                       {"max_length": 384, "epochs": 5, "learning_rate": 5e-5}, note="a quarter of the training questions of RACE-M; dev"),
    "squad": Set("answer", "squad/train-v1.1-44-articles.json", "squad/dev-v1.1-part1.json", ("exact", "f1"),
                 {"max_length": 384}, {"stride": 128}, note="44 of 442 training articles; half of dev"),
    "sst-2": Set("classify", "sst-2/train.tsv", "sst-2/dev.tsv", ("accuracy",), {"batch_size": 64}, note="dev"),
    "afqmc": Set("classify", "afqmc/train.txt", "afqmc/dev.txt", ("accuracy",), {"batch_size": 64}, chinese=True, note="dev"),
    "clinc150-full": Set("intent", "clinc150/data_oos_plus.json", "clinc150/data_oos_plus.json", CLINC, {"epochs": 10},
                         test="clinc150/data_oos_plus.json", note="the OOS+ variant, 250 out-of-scope texts to learn from; test"),
    "clinc150-small": Set("intent", "clinc150/data_small.json", "clinc150/data_small.json", CLINC, {"epochs": 15},
                          test="clinc150/data_small.json", note="the small variant, 50 texts an intent; test"),
    "conll2003": Set("tag", "conll2003/eng.train", "conll2003/eng.testa", ("f1", "precision", "recall"), {"max_length": 192},
                     note="dev (testa)"),
    "snips": Set("intent", "snips/train", "snips/dev", FRAMES, {"epochs": 10}, note="dev"),
    "chnsenticorp": Set("classify", "chnsenticorp/train.tsv", "chnsenticorp/dev.tsv", ("accuracy",), {"max_length": 256},
                        chinese=True, note="dev"),
    "cluener": Set("tag", "cluener/train.json", "cluener/dev.json", ("f1", "precision", "recall"), {"epochs": 10}, chinese=True,
                   skip_bad=True, note="dev"),
    "atis": Set("intent", "atis/train", "atis/dev", FRAMES, {"epochs": 20}, note="dev"),
    "woz2": Set("dialogue", "woz2/woz_train_en.json", "woz2/woz_validate_en.json", ("joint_goal", "requests"), {"epochs": 20},
                note="dev"),
    "cola": Set("classify", "cola/train.tsv", "cola/dev.tsv", ("mcc",), {"metric": "mcc"}, note="dev"),
    "rte": Set("classify", "rte/train.tsv", "rte/dev.tsv", ("accuracy",), {"max_length": 256}, note="dev"),
    "cmrc2018": Set("answer", "cmrc2018/cmrc2018_trial.json", None, ("exact", "f1"), {"max_length": 384}, {"stride": 128},
                    chinese=True, skip_bad=True, note="the trial file alone: four contexts in five to learn from, the fifth held out"),
    "sts-b": Set("classify", "sts-b/train.tsv", "sts-b/dev.tsv", ("spearman", "pearson"), note="dev"),
    "mrpc": Set("classify", "mrpc/train.tsv", "mrpc/dev.tsv", ("f1", "accuracy"), note="dev"),
}  # fmt: skip


def load(data_set: Set, data: Path, most: int | None = None) -> dict[str, list[Any]]:
    """The examples: train, dev, and test where there is one; at most `most` of each, from all over the file."""
    from albertkit.tasks.readers import ReadOptions, read_examples

    parts_of_set = {}
    for part in ("train", "dev", "test"):
        path = getattr(data_set, part)
        if path is not None:
            parts_of_set[part] = read_examples(
                data_set.task, data / path, ReadOptions(split=part, skip_bad=data_set.skip_bad)
            ).examples
    if data_set.dev is None:
        parts_of_set["train"], parts_of_set["dev"] = split_examples(parts_of_set["train"])
    if most is not None:
        parts_of_set = {part: rows[:: -(-len(rows) // most)] for part, rows in parts_of_set.items()}
    return parts_of_set


def split_examples(examples: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(train, dev) of questions: each fifth context is held out."""
    places = {context: i for i, context in enumerate(dict.fromkeys(e.context for e in examples))}
    train = [e for e in examples if places[e.context] % 5]
    return train, [e for e in examples if places[e.context] % 5 == 0]
