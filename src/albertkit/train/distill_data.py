"""Files and folders → what a student is trained on: examples of a task, lines of text, or passages of a corpus.

In: paths as the commands `distill`, `prune --train` and `quantize --train` take them. Out: `DistillData`.
Before this file: `tasks/readers/`, `data/`; after it: `distill.py`, `recover.py`, `recover.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact, ArtifactMetadata
from albertkit.data.passages import PassageShares, draw_passages
from albertkit.data.shards import Shards
from albertkit.errors import AlbertkitError
from albertkit.tasks import TASKS, load_task
from albertkit.tasks.examples import TextExample
from albertkit.tasks.readers.read_examples import ReadOptions
from albertkit.tasks.splits import split_examples
from albertkit.tasks.task import Task
from albertkit.tasks.validate import check_known_labels, read_parts
from albertkit.text_reader import read_texts
from albertkit.tokenizer import Tokenizer
from albertkit.train.distill_settings import DistillSettings

Log = Callable[[str], None]
MAX_TEXTS = 500_000  # texts of a corpus that are used
MIN_TEXTS = 10
MAX_DEV_TEXTS = 1000
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


@dataclass(frozen=True)
class DistillData:
    """Training and held-out data: examples of a task, or texts (strings, or token ids of a corpus) without one."""

    task: Task | None
    train: Sequence[Any]
    dev: Sequence[Any] = ()

    def texts(self) -> list[str]:
        """The first training texts, where examples contain one."""
        found = []
        for example in self.train[:4096]:
            text = example
            if not isinstance(example, str):
                text = getattr(example, "text", None) or getattr(example, "context", None)
            if isinstance(text, str) and text.strip():
                found.append(text)
        return found


def data_for_model(artifact: Artifact, train: Sequence[Any], dev: Sequence[Any]) -> DistillData:
    """Data with the task that the model was fine-tuned for, if it was."""
    if artifact.metadata.details.get("reads") == "vector":
        raise AlbertkitError(
            "this model is a head on frozen vectors, so it has no layers to train. Fine-tune without --freeze first."
        )
    return DistillData(load_task(artifact.metadata) if artifact.metadata.task in TASKS else None, train, dev)


def text_of(example: object, tokenizer: Tokenizer) -> str:
    """The text of an example that has one."""
    if isinstance(example, str):
        return example
    if isinstance(example, np.ndarray):
        return tokenizer.decode(example.tolist())
    text, pair = getattr(example, "text", None), getattr(example, "pair", None)
    if not isinstance(text, str) or pair is not None:
        raise AlbertkitError(
            "these examples are pairs or questions, and vectors are of single texts. Distill logits or hidden."
        )
    return text


def read_training_data(
    artifact: Artifact, train: Path, dev: Path | None, options: ReadOptions, log: Log
) -> DistillData:
    """Examples of the model's task; for a model without one, texts of a file (one per line) or of a corpus folder."""
    task = artifact.metadata.task
    if task not in TASKS:
        check_vocabulary(artifact, train)
        return data_for_model(artifact, *read_plain_texts(train, dev, log))
    parts = read_parts(task, {"train": train, **({"dev": dev} if dev else {})}, options, log)
    if dev is None:
        parts["train"], parts["dev"] = split_examples(parts["train"])
    log_unknown_labels(artifact.metadata, parts["train"], "which cannot be learnt", log)
    log_unknown_labels(artifact.metadata, parts["dev"], "counted as missed", log)
    return data_for_model(artifact, parts["train"], parts["dev"])


def read_check_examples(metadata: ArtifactMetadata, path: Path, options: ReadOptions, log: Log) -> list[Any]:
    """Labelled examples for a fine-tuned model, texts for any other: what `quantize --check` measures on."""
    if metadata.task not in TASKS:
        refuse_table(path)
        return list(read_texts(path))
    examples = read_parts(metadata.task, {"test": path}, options, log)["test"]
    consequence = "counted as missed before and after, so that a loss seems smaller than it is"
    log_unknown_labels(metadata, examples, consequence, log)
    return examples


def read_teacher_data(
    teacher: Path, metadata: ArtifactMetadata, paths: tuple[Path, Path | None], settings: DistillSettings,
    options: ReadOptions, log: Log,
) -> tuple[DistillSettings, DistillData]:  # fmt: skip
    """Training data for a teacher's outputs; texts without labels set the weight of labels to 0."""
    data, dev = paths
    if not settings.logits:
        return settings, DistillData(None, *read_plain_texts(data, dev, log))
    if metadata.task not in TASKS:
        raise AlbertkitError(
            f"{teacher} was made for {metadata.task!r} and has no logits of a task. "
            "Pass a fine-tuned model, or distil vectors or hidden."
        )
    task: Any = load_task(metadata)
    held_out = [] if dev is None else read_parts(metadata.task, {"dev": dev}, options, log)["dev"]
    log_unknown_labels(metadata, held_out, "counted as missed", log)
    if data.suffix == ".txt" and metadata.task == "classify":
        if metadata.details.get("pairs"):
            raise AlbertkitError(
                f"{teacher} was fine-tuned for pairs of texts, and {data} contains single lines. "
                "Pass a table with both texts, as for finetune."
            )
        label: Any = {"single": (task.labels or ("",))[0], "multi": ()}.get(task.kind, 0.0)
        examples = [TextExample(text, label=label) for text in read_texts(data)]
        return dataclasses.replace(settings, labels=0.0), DistillData(task, examples, held_out)
    labelled = read_parts(metadata.task, {"train": data}, options, log)["train"]
    log_unknown_labels(metadata, labelled, "not trained on", log)
    if dev is None:
        labelled, held_out = split_examples(labelled)
    return settings, DistillData(task, labelled, held_out)


def log_unknown_labels(metadata: ArtifactMetadata, examples: list[Any], consequence: str, log: Log) -> None:
    """A line about labels that a model does not have, and what becomes of them; an error if it has none of them."""
    for text in check_known_labels(load_task(metadata), examples, consequence):
        log(f"note: {text}")


def is_corpus(path: Path) -> bool:
    """Whether a folder is what `albertkit corpus` wrote."""
    return (path / "manifest.json").is_file()


def check_vocabulary(artifact: Artifact, path: Path) -> None:
    """Refuse a corpus that was tokenized with another vocabulary than the model's."""
    if not is_corpus(path):
        return
    tokenizer = artifact.tokenizer
    if tokenizer is None or Shards.open(path).tokenizer().vocabulary.ids != tokenizer.vocabulary.ids:
        raise AlbertkitError(
            f"{path} was tokenized with another vocabulary than the model's. Make the corpus with its tokenizer."
        )


def read_plain_texts(train: Path, dev: Path | None, log: Log) -> tuple[list[Any], list[Any]]:
    """Texts to train on and held-out ones; without a file for those, one in ten of the first."""
    if is_corpus(train):
        texts = corpus_passages(train)
    elif train.is_dir():
        raise AlbertkitError(
            f"{train} is not a corpus folder. Make one with  albertkit corpus, or pass a file with one text per line."
        )
    else:
        refuse_table(train)
        texts = list(read_texts(train))
    if len(texts) > MAX_TEXTS:
        step = -(-len(texts) // MAX_TEXTS)
        log(f"note: {train} contains {len(texts):,} texts; every {step}th is used")
        texts = texts[::step]
    if len(texts) < MIN_TEXTS:
        raise AlbertkitError(f"{train} contains {len(texts)} texts. Pass at least {MIN_TEXTS}, better many thousands.")
    if dev is not None:
        refuse_table(dev)
        return texts, list(read_texts(dev))
    held_out = texts[::10][:MAX_DEV_TEXTS]
    return [text for i, text in enumerate(texts) if i % 10 or i >= 10 * len(held_out)], held_out


def refuse_table(file: Path) -> None:
    """Refuse a table where lines are read as texts: its labels and commas would be trained on as words."""
    if file.suffix.lower() in TABLES:
        raise AlbertkitError(
            f"{file} is a table, and a file with one text per line is needed here. Write its texts to a .txt file."
        )


def corpus_passages(folder: Path) -> list[Any]:
    """Sentences and passages of a corpus, as token ids, shuffled."""
    corpus = Shards.open(folder)
    passages = draw_passages(corpus.split("train"), corpus.tokenizer().id_of("?"), PassageShares(), 0)
    order = np.random.default_rng(0).permutation(len(passages))[:MAX_TEXTS]
    return [np.array(passages[int(i)]) for i in order]
