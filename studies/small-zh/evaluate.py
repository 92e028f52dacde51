"""Sentence vectors in Chinese, measured on data that nothing here is trained on.

    python studies/small-zh/evaluate.py DATA --model small-zh=FOLDER --teacher m3e=FOLDER [--depths 3,6,9,12] [--limit N]

DATA contains zh-pairs, afqmc, cmrc2018 and chnsenticorp. A model is an albertkit artifact, measured at each depth; a
teacher is a folder of `teachers.py`. Scores in percent: Spearman correlation of cosines with the labels of STS-B
(dev, and train as STS-B-train if named), AFQMC (dev) and PAWS-X (dev); area under the ROC curve for AFQMC and OPPO; nDCG@10 of questions that look for
the first 256 characters of their paragraph in CMRC (trial); accuracy of logistic regression on frozen vectors for ChnSentiCorp (1,000 training
texts, all of dev). Results go to --out as JSON, and a table to the terminal. With --record they also go to
studies/results/small-zh.json, from which `make docs` writes the tables and the model card.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / name) for name in ("src", "bench")] + [str(Path(__file__).parent)]

Embed = Callable[[list[str]], np.ndarray]  # texts → vectors of length 1
Score = Callable[[Embed], dict[str, float]]
TRAINING_TEXTS = 1_000  # of ChnSentiCorp
LONGEST = 256  # characters of a paragraph or review
RECORD = Path(__file__).parents[1] / "results" / "small-zh.json"
RECORDED = {  # the task's name in the results
    "STS-B": "STS-B dev", "AFQMC": "AFQMC dev", "OPPO": "OPPO dev", "PAWS-X": "PAWS-X dev", "CMRC": "CMRC trial", "ChnSentiCorp": "ChnSentiCorp dev",
}  # fmt: skip


def read_rows(file: Path, columns: int, skip: int = 0) -> list[list[str]]:
    """The rows of a table without quotes that have as many columns."""
    lines = file.read_text(encoding="utf-8").splitlines()[skip:]
    return [row for row in (line.split("\t") for line in lines) if len(row) == columns]


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value from 1; equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def spearman(scores: np.ndarray, labels: np.ndarray) -> float:
    """Correlation of the ranks."""
    return float(np.corrcoef(ranks(scores), ranks(labels))[0, 1])


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The probability that a pair of class 1 has a higher score than one of class 0."""
    positive = labels == 1
    count, others = int(positive.sum()), int((~positive).sum())
    return float((ranks(scores)[positive].sum() - count * (count + 1) / 2) / (count * others))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {"Spearman": spearman, "AUC": roc_auc}


def pairs(file: Path, limit: int | None, metrics: tuple[str, ...]) -> Score:
    """Pairs with a score or a class: the last three columns of a table."""
    has_header = file.suffix == ".tsv"
    rows = [row[-3:] for row in read_rows(file, 4 if has_header else 3, int(has_header))][:limit]
    labels = np.array([float(row[2]) for row in rows])

    def score(embed: Embed) -> dict[str, float]:
        texts = list(dict.fromkeys(text for row in rows for text in row[:2]))
        vectors = dict(zip(texts, embed(texts), strict=True))
        cosines = np.array([vectors[first] @ vectors[second] for first, second, _ in rows])
        return {metric: 100 * METRICS[metric](cosines, labels) for metric in metrics}

    return score


def retrieval(file: Path, limit: int | None) -> Score:
    """Each question finds its own paragraph among all paragraphs."""
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    contexts = [paragraph["context"][:LONGEST] for paragraph in paragraphs]
    asked = [(qa["question"], place) for place, paragraph in enumerate(paragraphs) for qa in paragraph["qas"]][:limit]

    def score(embed: Embed) -> dict[str, float]:
        scores = embed([question for question, _ in asked]) @ embed(contexts).T
        own = scores[np.arange(len(asked)), [place for _, place in asked]]
        rank = 1 + (scores > own[:, None]).sum(1)
        return {"nDCG@10": 100 * float(np.where(rank <= 10, 1 / np.log2(rank + 1), 0).mean())}

    return score


def sentiment(folder: Path, limit: int | None) -> Score:
    """Reviews of hotels, books and computers: logistic regression on frozen vectors."""
    from sklearn.linear_model import LogisticRegression

    parts = [[(t[:LONGEST], label) for t, label in read_rows(folder / f"{s}.tsv", 2)][:n]
             for s, n in (("train", min(TRAINING_TEXTS, limit or TRAINING_TEXTS)), ("dev", limit))]  # fmt: skip

    def score(embed: Embed) -> dict[str, float]:
        train, dev = (embed([text for text, _ in part]) for part in parts)
        known, wanted = ([label for _, label in part] for part in parts)
        model = LogisticRegression(C=10, max_iter=1000).fit(train, known)
        return {"accuracy": 100 * float(model.score(dev, wanted))}

    return score


def tasks(data: Path, limit: int | None, wanted: Sequence[str] = ()) -> dict[str, Score]:
    """Tasks by name; without names all, except for the training part of STS-B."""
    found: dict[str, Callable[[], Score]] = {
        "STS-B": lambda: pairs(data / "zh-pairs/stsb-zh/dev.txt", limit, ("Spearman",)),
        "STS-B-train": lambda: pairs(data / "zh-pairs/stsb-zh/train.txt", limit, ("Spearman",)),
        "AFQMC": lambda: pairs(data / "afqmc/dev.txt", limit, ("Spearman", "AUC")),
        "OPPO": lambda: pairs(data / "zh-pairs/oppo-xiaobu/dev.txt", limit, ("AUC",)),
        "PAWS-X": lambda: pairs(data / "zh-pairs/paws-x-zh/dev_2k.tsv", limit, ("Spearman",)),
        "CMRC": lambda: retrieval(data / "cmrc2018/cmrc2018_trial.json", limit),
        "ChnSentiCorp": lambda: sentiment(data / "chnsenticorp", limit),
    }
    return {name: found[name]() for name in wanted or [name for name in found if name != "STS-B-train"]}


def write_keys(data: Path, file: Path) -> None:
    """The keys of all sentences and questions that are measured on, so that no text of our own equals one."""
    from texts import text_key

    tables = ("zh-pairs/stsb-zh/dev.txt", "zh-pairs/stsb-zh/train.txt", "zh-pairs/oppo-xiaobu/dev.txt", "afqmc/dev.txt",
              "afqmc/train.txt", "zh-pairs/paws-x-zh/dev_2k.tsv", "chnsenticorp/dev.tsv", "chnsenticorp/train.tsv")  # fmt: skip
    texts = {cell for table in tables for line in (data / table).read_text(encoding="utf-8").splitlines()
             for cell in line.split("\t")}  # fmt: skip
    articles = json.loads((data / "cmrc2018/cmrc2018_trial.json").read_text(encoding="utf-8"))["data"]
    texts |= {qa["question"] for article in articles for part in article["paragraphs"] for qa in part["qas"]}
    file.write_text("\n".join(sorted(set(map(text_key, texts)))) + "\n", encoding="ascii")


def record(result: dict[str, dict[str, float]], model: Path) -> None:
    """Write the scores, in parts of 1, with the model and the machine they belong to."""
    from inference import machine

    from albertkit.builtin import fingerprint

    tasks: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for encoder, scores in result.items():
        kind = encoder.replace("small-zh,", "int8,")
        for name, value in scores.items():
            task, _, metric = name.rpartition(" ")
            tasks.setdefault(RECORDED[task], {"scores": {}})["scores"].setdefault(kind, {})[metric] = value / 100
    about = {
        "model": {"hash": fingerprint(model)},
        "machine": machine(2),
        "command": " ".join(sys.argv),
        "tasks": tasks,
    }
    RECORD.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def print_table(result: dict[str, dict[str, float]]) -> None:
    """A Markdown table: one row per encoder."""
    names = list(dict.fromkeys(name for scores in result.values() for name in scores))
    print("| encoder |", " | ".join(names), "|")
    print("|---" * (len(names) + 1) + "|")
    for encoder, scores in result.items():
        print(f"| {encoder} |", " | ".join(f"{scores[name]:.1f}" if name in scores else "" for name in names), "|")


def named(text: str) -> tuple[str, Path]:
    """NAME=FOLDER."""
    name, equals, folder = text.partition("=")
    if not equals or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER with a folder that exists")
    return name, Path(folder)


def model_encoder(folder: Path, depth: int, width: int | None) -> Embed:
    """An albertkit artifact at one depth, its vectors cut to a width."""
    from albertkit import Albert

    albert = Albert(folder, depth=depth)

    def embed(texts: list[str]) -> np.ndarray:
        vectors = albert.embed(texts, long_texts="truncate", normalize=True)[:, :width]
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    return embed


def teacher_encoder(folder: Path) -> Embed:
    """A teacher of `teachers.py`."""
    from teachers import open_teacher

    return open_teacher(folder).embed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=named, action="append", default=[])
    parser.add_argument("--teacher", type=named, action="append", default=[])
    parser.add_argument("--depths", default="3,6,9,12")
    parser.add_argument("--tasks", default="", help="names of tasks, separated by commas [default: all]")
    parser.add_argument("--width", type=int, help="cut the vectors of models to this width")
    parser.add_argument("--limit", type=int, help="this many examples of each task, for a quick look")
    parser.add_argument("--out", type=Path, help="JSON file for the results; existing ones of other encoders are kept")
    parser.add_argument("--record", type=Path, metavar="MODEL", help="record the results as those of this model")
    parser.add_argument("--keys", type=Path, help="only write the keys of all texts here, for distill.py --exclude")
    args = parser.parse_args()
    if args.keys:
        write_keys(args.data, args.keys)
        return
    depths = [int(depth) for depth in args.depths.split(",")]
    encoders: dict[str, Callable[[], Embed]] = {}
    for name, folder in args.model:
        for depth in depths:
            encoders[f"{name}, depth {depth}"] = lambda f=folder, d=depth: model_encoder(f, d, args.width)  # type: ignore[misc]
    for name, folder in args.teacher:
        encoders[name] = lambda f=folder: teacher_encoder(f)  # type: ignore[misc]
    result = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.is_file() else {}
    scores = tasks(args.data, args.limit, args.tasks.split(",") if args.tasks else ())
    for name, make in encoders.items():
        embed, result[name] = make(), result.get(name, {})
        for task, score in scores.items():
            result[name] |= {f"{task} {metric}": value for metric, value in score(embed).items()}
            print(name, task, result[name], file=sys.stderr, flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print_table(result)
    if args.record:
        record(result, args.record)


if __name__ == "__main__":
    main()
