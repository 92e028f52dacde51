"""What training gives back after compressing, on one task: recovery after pruning, training for 4 bits, a student of two million parameters.

    python bench/compression.py --trained RUNS                    # train what is missing in RUNS, measure, keep bench/results/compression.json
    python bench/compression.py --trained RUNS --only train       # on a machine with a GPU; then --only measure where speed counts
    python bench/compression.py --trained RUNS --quick            # toy size, keeps nothing: does it run

Each variant is a folder under RUNS and is made once; a training that was stopped goes on. The task is SST-2 (shared/data/sst-2). Quality is accuracy on
its dev file, by the torch-free runtime. With --texts, the student first learns hidden states and attention of the pre-trained model. Speed: one short text, and texts a second, in rounds over all variants, so that a busy moment hits all alike.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import tasks

KEEP = {"ffn": 0.5, "heads": 2 / 3}
BITS = 4
STUDENT = "mini"


def examples(shared: Path, quick: bool) -> tuple[list[Any], list[Any]]:
    """SST-2's train and dev."""
    from albertkit.tasks.reading import ReadOptions, read

    found = [
        read("classify", shared / "data" / "sst-2" / f"{name}.tsv", ReadOptions(split=name)).examples
        for name in ("train", "dev")
    ]
    return (found[0][:64], found[1][:64]) if quick else (found[0], found[1])


NAMES = ("whole", "pruned", "recovered", "plain-4bit", "aware-4bit", "alone", "taught")


def there(folder: Path) -> bool:
    return (folder / "albertkit.json").is_file()


def lacks(folder: Path) -> bool:
    """Whether a variant is still to be made; says so."""
    print(f"{folder.name}: {'done before' if there(folder) else 'to be made'}", flush=True)
    return not there(folder)


def finish(model: Path, folder: Path) -> None:
    """A trained model to its place, whole or not at all."""
    from albertkit.artifact import read_artifact, write_artifact

    write_artifact(read_artifact(model), folder)


def student_config(quick: bool) -> Any:
    from albertkit.config import preset

    return preset(STUDENT).replace(num_hidden_layers=1) if quick else preset(STUDENT)


def build(
    runs: Path,
    start: str | None,
    data: tuple[list[Any], list[Any]],
    device: str,
    quick: bool,
    texts_file: Path | None = None,
) -> dict[str, Path]:
    """Every variant; those that exist are left alone."""
    from albertkit.artifact import read_artifact, write_artifact
    from albertkit.compress.prune import Keep, prune
    from albertkit.compress.shrink import Trained, shrink
    from albertkit.tokenizer import Tokenizer
    from albertkit.train.lesson import Lesson, Training
    from albertkit.train.lessons import Teachers, distil, fresh_student
    from albertkit.train.qat import aware
    from albertkit.train.recover import Recovery, data_for
    from albertkit.train.settings import Settings
    from albertkit.train.tune import finetune
    from albertkit.train.tuning import Options

    if tasks.missing():  # checkpoints are then chosen by plain accuracy
        tasks.stand_in()
    train, dev = data
    texts = [e.text for e in train[:500]]
    options = Options(device=device, batch=32, **({"epochs": 1, "max_length": 32} if quick else {}))
    training = Training(device=device, batch=32, **({"epochs": 1, "max_length": 32} if quick else {}))
    made = {name: runs / name for name in NAMES}
    if lacks(made["whole"]):
        if quick:  # a fresh small model is enough to see whether everything runs
            tokenizer = Tokenizer.load(Path(__file__).parent.parent / "src" / "albertkit" / "models" / "small")
            start = str(
                write_artifact(
                    fresh_student(student_config(quick), tokenizer, 0),
                    runs / "start",
                    overwrite=(runs / "start").exists(),
                )
            )
        done = finetune("classify", train, dev, runs / "finetune", start, options, say=print)
        finish(done.model, made["whole"])
    whole = read_artifact(made["whole"])
    task_data = data_for(whole, train, dev)
    if lacks(made["pruned"]):
        prune(made["whole"], made["pruned"], Keep(**KEEP), texts)
    if lacks(made["recovered"]):
        recovery = Recovery(task_data, training, runs / "recovered.run", print)
        prune(made["whole"], made["recovered"], Keep(**KEEP), texts, recovery=recovery)
    if lacks(made["plain-4bit"]):
        shrink(made["whole"], made["plain-4bit"], BITS, texts)
    if lacks(made["aware-4bit"]):
        found = aware(whole, BITS, task_data, training, runs / "aware-4bit.run", print)
        shrink(made["whole"], made["aware-4bit"], BITS, texts, trained=Trained(found.artifact, found.smooth))
    wanted = [name for name in ("alone", "taught") if lacks(made[name])]
    if not wanted:
        return made
    student = fresh_student(student_config(quick), whole.tokenizer, 0)
    if texts_file is not None:
        student = general_student(runs, start, student, texts_file, device, quick)
    if "alone" in wanted:
        done = finetune("classify", train, dev, runs / "alone.run", student, options, say=print)
        finish(done.model, made["alone"])
    if "taught" in wanted:
        epochs = 1 if quick else 6
        settings = Settings(
            steps=max(1, epochs * len(train) // 32), batch=32, learning_rate=5e-4, evaluations=epochs, take_best=True, device=device,
            compile="no", tensorboard=False,
        )  # fmt: skip
        lesson, teachers = Lesson(logits=1.0, hidden=0.5, labels=0.5), Teachers((made["whole"],), (1.0,))
        done = distil(teachers, student, task_data, lesson, settings, runs / "taught.run", resume=True, say=print)
        if done.model is None:
            raise SystemExit("stopped; the same command goes on")
        finish(done.model, made["taught"])
    return made


def general_student(runs: Path, start: str | None, student: Any, file: Path, device: str, quick: bool) -> Any:
    """The student after it has read texts beside the pre-trained model."""
    from albertkit import builtin
    from albertkit.artifact import read_artifact
    from albertkit.train.lesson import Lesson
    from albertkit.train.lessons import Teachers, distil
    from albertkit.train.recover import Data
    from albertkit.train.settings import Settings

    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()][: 64 if quick else 500_000]
    steps = 2 if quick else 20_000
    settings = Settings(
        steps=steps, batch=64, learning_rate=1e-3, evaluations=5, device=device, compile="no", tensorboard=False
    )
    teacher = Teachers((builtin.resolve(start, builtin.START),), (1.0,))
    data = Data(None, [line for i, line in enumerate(lines) if i % 20], lines[::20][:1000])
    lesson = Lesson(hidden=1.0, attention=1.0)
    done = distil(teacher, student, data, lesson, settings, runs / "student.run", resume=True, say=print)
    if done.model is None:
        raise SystemExit("stopped; the same command goes on")
    return read_artifact(done.model)


def measure(made: dict[str, Path], dev: list[Any], threads: int | None, rounds: int) -> dict[str, dict[str, Any]]:
    """Accuracy, parameters, bytes and time of each variant."""
    from albertkit.compress.judge import Judge
    from albertkit.runtime.albert import Albert
    from albertkit.weights import encoder_shapes, size

    judge = Judge(made["whole"], dev)
    alberts = {name: Albert(folder, threads=threads) for name, folder in made.items()}
    texts = [e.text for e in dev]
    times = {name: [np.inf, np.inf] for name in made}
    for _ in range(rounds):
        for name, albert in alberts.items():
            began = time.perf_counter()
            albert.classify(texts)
            many = (time.perf_counter() - began) / len(texts)
            single = []
            for text in texts[:20]:
                began = time.perf_counter()
                albert.classify(text)
                single.append(time.perf_counter() - began)
            times[name] = [min(times[name][0], many), min(times[name][1], float(np.median(single)))]
    out = {}
    for name, folder in made.items():
        score = judge(folder)
        out[name] = {
            "metric": score.metric,
            "score": score.value,
            "parameters": size(encoder_shapes(alberts[name].config)),
            "bytes": max(p.stat().st_size for p in folder.glob("*.safetensors")),
            "texts_per_second": 1 / times[name][0],
            "one_text_ms": 1e3 * times[name][1],
        }
        print(name, out[name], flush=True)
    return out


ROWS = {
    "whole": "fine-tuned, whole, float32",
    "pruned": "FFN 1/2, heads 2/3, not trained",
    "recovered": "FFN 1/2, heads 2/3, recovered",
    "plain-4bit": "whole, 4-bit, not trained",
    "aware-4bit": "whole, trained for 4 bits",
    "alone": f"{STUDENT}, from labels alone",
    "taught": f"{STUDENT}, distilled (logits, hidden)",
}


def table(result: dict[str, dict[str, Any]]) -> list[str]:
    """The rows for docs/compression.md."""
    whole = result["whole"]
    lines = [
        f"| SST-2 dev | {whole['metric']} | parameters | MB | texts/s | one text, ms | time of the whole |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result.items():
        lines.append(
            f"| {ROWS[name]} | {row['score']:.4f} | {row['parameters'] / 1e6:.2f} M | {row['bytes'] / 1e6:.1f} | {row['texts_per_second']:,.0f} "
            f"| {row['one_text_ms']:.3f} | {row['one_text_ms'] / whole['one_text_ms']:.0%} |"
        )
    return lines


def run(given: argparse.Namespace, shared: Path) -> dict[str, Any] | None:
    """Train and measure; None where nothing is to be kept."""
    runs = Path(given.trained)
    runs.mkdir(parents=True, exist_ok=True)
    data = examples(shared, given.quick)
    if given.only == "measure":
        made = {name: runs / name for name in NAMES}
        lacking = [name for name, folder in made.items() if not there(folder)]
        if lacking:
            raise SystemExit(f"{', '.join(lacking)} not made yet; run --only train first")
    else:
        made = build(runs, given.start, data, given.device, given.quick, given.texts)
    if given.only == "train":
        return None
    result = measure(made, data[1], given.threads, 1 if given.quick else 5)
    if given.quick:
        print("\n".join(table(result)))
        return None
    return {"date": time.strftime("%Y-%m-%d"), "threads": given.threads, "variants": result}
