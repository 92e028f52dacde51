"""Fine-tuning compared with transformers' Trainer: same checkpoint, examples, epochs and batch size, in one run.

    python bench/finetuning.py MODEL TRAIN DEV --name SST-2 [--examples 1600] [--epochs 1] [--seeds 1]

MODEL is a folder that transformers opens too; TRAIN and DEV are tables of texts and classes. All sides use AdamW with
the same learning rate and warm-up, and are evaluated on DEV at the end. Each side runs in a separate process, one after
the other, since idle threads slow others down.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

RATE, BATCH, LENGTH = 1e-4, 32, 128


def examples(path: Path, count: int | None) -> list[Any]:
    """Texts with classes."""
    from albertkit.tasks.readers import read_examples

    return read_examples("classify", path).examples[:count]


def ours(model: Path, train: Path, dev: Path, count: int, epochs: int, seed: int) -> dict[str, float]:
    """albertkit's loop."""
    from albertkit.interop.convert import open_model
    from albertkit.tasks import make_task
    from albertkit.train.finetune_task import FinetuneTask
    from albertkit.train.loop import train as run
    from albertkit.train.train_settings import TrainSettings

    train_examples, dev_examples = examples(train, count), examples(dev, None)
    steps = epochs * -(-len(train_examples) // BATCH)
    settings = TrainSettings(
        steps=steps,
        batch_size=BATCH,
        learning_rate=RATE,
        warmup_ratio=0.1,
        seed=seed,
        evaluations=0,
        tensorboard=False,
        device="cpu",
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        work = FinetuneTask(
            make_task("classify", train_examples), open_model(model), train_examples, dev_examples, settings, LENGTH
        )
        run(work, settings, folder)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "accuracy": work.evaluate()["accuracy"]}


def theirs(
    model: Path, train: Path, dev: Path, count: int, epochs: int, seed: int, grouped: bool = False
) -> dict[str, float]:
    """transformers' Trainer, with padding to the longest of a batch; `grouped` puts texts of like length together."""
    import torch
    from transformers import AlbertForSequenceClassification as Model
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

    train_examples, dev_examples = examples(train, count), examples(dev, None)
    labels = sorted({e.label for e in train_examples})
    tokenizer = AutoTokenizer.from_pretrained(model)

    class Table(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self, rows: list[Any]) -> None:
            texts = tokenizer([e.text for e in rows], truncation=True, max_length=LENGTH)
            self.rows = [
                {**{k: v[i] for k, v in texts.items()}, "labels": labels.index(e.label)} for i, e in enumerate(rows)
            ]

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, at: int) -> dict[str, Any]:
            return self.rows[at]

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        torch.manual_seed(seed)
        net = Model.from_pretrained(
            model, num_labels=len(labels), attn_implementation="sdpa", ignore_mismatched_sizes=True
        )
        argument_names = {
            field.name for field in dataclasses.fields(TrainingArguments)
        }  # version 5 has another name for it
        sampling = (
            {"group_by_length": True}
            if "group_by_length" in argument_names
            else {"train_sampling_strategy": "group_by_length"}
        )
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, num_train_epochs=epochs, learning_rate=RATE,
            warmup_steps=epochs * -(-len(train_examples) // BATCH) // 10, weight_decay=0.01, seed=seed, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, logging_strategy="no", **(sampling if grouped else {}),
        )  # fmt: skip
        trainer = Trainer(net, arguments, DataCollatorWithPadding(tokenizer), Table(train_examples))
        trainer.train()
        seconds = time.perf_counter() - began
        predicted = trainer.predict(Table(dev_examples)).predictions.argmax(-1)
    right = sum(labels[i] == e.label for i, e in zip(predicted, dev_examples, strict=True))
    return {"seconds": seconds, "accuracy": right / len(dev_examples)}


SIDES = {
    "albertkit": ours,
    "transformers' Trainer": theirs,
    "transformers' Trainer, group_by_length": partial(theirs, grouped=True),
}


def child(name: str, arguments: tuple[Any, ...], queue: Any) -> None:
    queue.put(SIDES[name](*arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("--examples", type=int, default=1600)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--name", required=True, help="what the result is called, such as SST-2")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "finetuning.json")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    runs_by_side: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for seed in range(args.seeds):
        for name in SIDES:
            queue = context.Queue()
            arguments = (args.model, args.train, args.dev, args.examples, args.epochs, seed)
            process = context.Process(target=child, args=(name, arguments, queue))
            process.start()
            while process.is_alive() and queue.empty():
                process.join(0.5)
            if queue.empty():
                sys.exit(f"{name} ended without a result (code {process.exitcode})")
            runs_by_side[name].append(queue.get())
            process.join()
            print(seed, name, runs_by_side[name][-1], flush=True)
    seconds = {name: statistics.fmean(run["seconds"] for run in runs) for name, runs in runs_by_side.items()}
    ratios = {name: value / seconds["albertkit"] for name, value in seconds.items() if name != "albertkit"}
    for name, ratio in ratios.items():
        print(f"albertkit is {ratio:.2f} times as fast as {name}")
    from inference import machine

    result = {
        "machine": machine(2),
        "examples": args.examples,
        "epochs": args.epochs,
        "runs": runs_by_side,
        "ratios": ratios,
    }
    before = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    args.out.write_text(json.dumps({**before, args.name: result}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
