"""Evaluation of generation: BLEU and ROUGE-L of a fine-tuned encoder, compared with a copy of the source.
The table is in docs/results/ideas.md.

    python studies/generation.py DATA --start MODEL --out studies/results/generation.json [--models RUNS] [--step
    train|measure|both] [--most N] [--epochs E]

DATA is a folder with train.* and test.* (or dev.*) of pairs that `albertkit finetune generate` reads; or with SQuAD
files (train*.json, dev*.json), which become answer-and-sentence → question (`runs/questions.py`). One training
example in ten, by source, selects the checkpoint; the test part is used once, at the end. `train` needs torch and
writes RUNS/NAME; `measure` needs rouge-score and sacrebleu instead. Every decoding method is evaluated on the same
examples: greedy, beams, and greedy with int8 weights. Earlier results of other data sets are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies", "runs")]

from inference import machine, versions  # noqa: E402
from questions import question_generation_examples  # noqa: E402

from albertkit.albert import Albert  # noqa: E402
from albertkit.artifact import read_metadata  # noqa: E402
from albertkit.builtin import DEFAULT, PRETRAINED, resolve  # noqa: E402
from albertkit.tasks.dataset import split_examples  # noqa: E402
from albertkit.tasks.examples import RewriteExample  # noqa: E402
from albertkit.tasks.readers import read_examples  # noqa: E402

RESULT = Path(__file__).parent / "results" / "generation.json"
WAYS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "greedy": (None, {}),
    "4 beams": (None, {"beams": 4}),
    "greedy, int8": (8, {}),
}
SHOWN = 8  # examples that are kept to look at


def load(folder: Path, part: str, most: int | None) -> list[RewriteExample]:
    """The pairs of one part, spread over the file where there are more than `most`."""
    names = ("test", "dev") if part == "test" else (part,)
    paths = [path for name in names for path in sorted(folder.glob(f"{name}*"))]
    if not paths:
        raise SystemExit(f"{folder} has no {' or '.join(names)} file")
    path = paths[0]
    squad = path.suffix == ".json" and '"paragraphs"' in path.read_text(encoding="utf-8")[:100_000]
    found = (
        list(question_generation_examples(read_examples("answer", path).examples))
        if squad
        else read_examples("generate", path).examples
    )
    return found[:: max(1, -(-len(found) // most))] if most else found


def train(args: argparse.Namespace, out: Path) -> None:
    """Fine-tune on the training part."""
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    learn, hold = split_examples(load(args.data, "train", args.most))
    options = FinetuneSettings(
        epochs=args.epochs, batch_size=args.batch, max_length=args.max_length, target_length=args.target_length,
        label_smoothing=args.smoothing, learning_rate=args.learning_rate, device=args.device, seed=args.seed,
    )  # fmt: skip
    finetune_examples("generate", learn, hold, out, resolve(args.start, PRETRAINED[DEFAULT]), options, log=print)


def measure(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Every way of writing, on the test part."""
    examples = load(args.data, "test", args.test)
    sources = [example.source for example in examples]
    scores_by_method: dict[str, dict[str, float]] = {}
    shown: list[dict[str, str]] = []
    for name, (bits, style) in WAYS.items():
        albert = Albert(model, bits=bits, threads=args.threads)
        began = time.perf_counter()
        written = albert.generate(sources, **style)
        seconds = time.perf_counter() - began
        metrics = albert.task.measure(written, examples)
        copied = {k.removeprefix("copy_"): metrics.pop(k) for k in list(metrics) if k.startswith("copy_")}
        ended = sum(w.finished for w in written) / len(written)
        scores_by_method[name] = {**metrics, "finished": ended, "texts_per_second": len(written) / seconds}
        scores_by_method.setdefault("copy of the first words", copied)
        print(name, json.dumps(scores_by_method[name]), flush=True)
        if not shown:
            shown = [
                {"source": e.source, "target": e.target or "", "written": w.text}
                for e, w in list(zip(examples, written, strict=True))[:: max(1, len(examples) // SHOWN)][:SHOWN]
            ]
    meta, _ = read_metadata(model)
    last_step = meta.history[-1]
    return {
        "examples": {"train": last_step.get("examples"), "test": len(examples)},
        "minutes": last_step.get("minutes"),
        "held_out": meta.metrics.get("dev", {}),
        "details": meta.details,
        "ways": scores_by_method,
        "shown": shown,
    }


def main() -> None:
    """Train, measure, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--start", help="model to begin with; default the built-in one")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--models", type=Path, default=Path("generation-runs"))
    parser.add_argument("--name", help="of the data set in the results; default the folder's")
    parser.add_argument("--step", choices=("train", "measure", "both"), default="both")
    parser.add_argument("--most", type=int, help="at most so many training pairs")
    parser.add_argument("--test", type=int, default=2000, help="at most so many test pairs")
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--target-length", type=int, default=32)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    name = args.name or args.data.name
    if args.step != "measure":
        train(args, args.models / name)
    if args.step == "train":
        return
    before = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"sets": {}}
    start = args.start or PRETRAINED[DEFAULT]
    before["sets"][name] = {"start": Path(start).name, **measure(args, args.models / name / "model")}
    before |= {"machine": machine(args.threads), "libraries": versions()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    beside = args.out.with_suffix(".part")
    beside.write_text(json.dumps(before, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    beside.replace(args.out)


if __name__ == "__main__":
    main()
