"""Evaluation of the built-in model: sentence vectors at every depth and width compared with its teachers, MLM
predictions, texts per second.

    python studies/builtin.py [MODEL] --float FOLDER --sts sts-b/dev.tsv --squad squad/dev.json --clinc
    clinc150/data_small.json
                            --text lines.txt --peer MiniLM-L6=FOLDER --peer gte-small=FOLDER [--speed] [--limit N]

MODEL is an int8 artifact (default: the built-in one) and --float its float model. Each data file adds a task; no task
trains the encoder. --text is a text file (also .xz) or a corpus folder, whose held-out part is used. A --peer is a
folder with onnx/model.onnx and tokenizer.json. Results are written to studies/results/builtin.json. Earlier results of
the same model are kept, and `make docs` writes the model card from the file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "studies", "bench")]

from encoders import Maker, Onnx, Ours, measure_speeds, onnx_files  # noqa: E402
from inference import machine, mixed_texts, versions  # noqa: E402

RESULT = Path(__file__).parent / "results" / "builtin.json"
DEPTHS, WIDTHS = (12, 9, 6, 3), (384, 256, 128, 64)
SPEED_DEPTHS = (12, 6, 3)
LONGEST = 1000  # characters of a text whose speed is measured, so that no encoder cuts it
Embed = Callable[[list[str]], np.ndarray]


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def sample(rows: list[Any], limit: int | None) -> list[Any]:
    """All rows, or this many from everywhere among them."""
    return rows if limit is None else rows[:: max(1, len(rows) // limit)][:limit]


# Tasks -----------------------------------------------------------------------------------------------------------
# A file and a limit → the number of examples, and a function from an encoder to named scores.


def similarity_task(file: Path, limit: int | None) -> tuple[int, Callable[[Embed], dict[str, float]]]:
    """STS-B: Spearman's correlation of cosines with people's marks, by width of the vectors."""
    from scipy.stats import spearmanr

    from albertkit.tasks.readers import read_examples

    pairs = sample(read_examples("match", file).examples, limit)
    marks = [pair.label for pair in pairs]

    def score(embed: Embed) -> dict[str, float]:
        first, second = embed([p.text for p in pairs]), embed([p.pair for p in pairs])
        widths = [w for w in WIDTHS if w <= first.shape[1]]
        cosines = {w: (unit_rows(first[:, :w]) * unit_rows(second[:, :w])).sum(1) for w in widths}
        return {str(w): float(spearmanr(c, marks).statistic) for w, c in cosines.items()}

    return len(pairs), score


def retrieval_task(file: Path, limit: int | None) -> tuple[int, Callable[[Embed], dict[str, float]]]:
    """SQuAD: each question finds its own paragraph among all paragraphs of the file."""
    from albertkit.tasks.readers import read_examples

    questions = sample(read_examples("answer", file).examples, limit)
    contexts = list(dict.fromkeys(q.context for q in questions))
    place = {context: i for i, context in enumerate(contexts)}
    correct = np.array([place[q.context] for q in questions])

    def score(embed: Embed) -> dict[str, float]:
        scores = embed([q.question for q in questions]) @ embed(contexts).T
        correct_scores = scores[np.arange(len(correct)), correct]
        rank = 1 + (scores > correct_scores[:, None]).sum(1)  # (questions,) 1 is best
        within = rank <= 10
        return {
            "nDCG@10": float(np.where(within, 1 / np.log2(rank + 1), 0).mean()),
            "MRR@10": float(np.where(within, 1 / rank, 0).mean()),
            "recall@1": float((rank == 1).mean()),
        }

    return len(questions), score


def intent_task(file: Path, limit: int | None) -> tuple[int, Callable[[Embed], dict[str, float]]]:
    """CLINC150: intents of held-out texts by the nearest training text and by logistic regression; clusters without
    labels.
    """
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import v_measure_score

    from albertkit.tasks.readers import ReadOptions, read_examples

    parts = {}
    for split in ("train", "dev"):
        examples = [e for e in read_examples("intent", file, ReadOptions(split=split)).examples if e.label != "oos"]
        parts[split] = sample(examples, limit)
    train_labels, dev_labels = (np.array([e.label for e in parts[s]]) for s in ("train", "dev"))

    def score(embed: Embed) -> dict[str, float]:
        train, dev = (embed([e.text for e in parts[s]]) for s in ("train", "dev"))
        learnt = LogisticRegression(C=10, max_iter=200).fit(train, train_labels)
        groups = KMeans(len(set(dev_labels)), n_init=3, random_state=0).fit_predict(dev)
        return {
            "nearest": float((train_labels[(dev @ train.T).argmax(1)] == dev_labels).mean()),
            "logistic": float((learnt.predict(dev) == dev_labels).mean()),
            "clusters": float(v_measure_score(dev_labels, groups)),
        }

    return len(dev_labels), score


# Words behind masks ----------------------------------------------------------------------------------------------


def sentences(source: Path) -> Iterator[str]:
    """Sentences of a text file, or of the held-out part of a corpus folder."""
    from albertkit.data.sentences import split_sentences
    from albertkit.data.shards import Shards, token_ids

    if source.is_dir():
        shards = Shards.open(source)
        tokenizer = shards.tokenizer()
        for shard in shards.split("held-out"):
            ends = [0, *shard.sentences.tolist()]
            yield from (tokenizer.decode(token_ids(shard.tokens[a:b]).tolist()) for a, b in pairwise(ends))
        return
    opened = lzma.open if source.suffix == ".xz" else open
    with opened(source, "rt", encoding="utf-8") as file:
        for line in file:
            yield from split_sentences(line.strip())


def masked_rows(source: Path, tokenizer: Any, count: int) -> list[tuple[str, str]]:
    """(sentence with one word hidden, the word): sentences of 8 to 40 words, words that are one piece."""
    rng = np.random.default_rng(0)
    out = []
    for sentence in sentences(source):
        if not 8 <= len(sentence.split()) <= 40:
            continue
        matches = re.finditer(r"(?<!\S)[A-Za-z]+\b", sentence)
        words = [m for m in matches if tokenizer.id_of(f"▁{m.group().lower()}") is not None]
        if words:
            word = words[int(rng.integers(len(words)))]
            out.append((f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}", word.group().lower()))
        if len(out) == count:
            break
    return out


def mlm_scores(albert: Any, rows: list[tuple[str, str]], depth: int) -> dict[str, float]:
    """How often the hidden word is the first guess, and among the first five."""
    guesses = [[g.word for g in albert.fill_mask(text, k=5, depth=depth)[0]] for text, _ in rows]
    return {
        "first": float(np.mean([word == g[0] for g, (_, word) in zip(guesses, rows, strict=True)])),
        "first five": float(np.mean([word in g for g, (_, word) in zip(guesses, rows, strict=True)])),
    }


# Everything ------------------------------------------------------------------------------------------------------


def encoders(args: argparse.Namespace, depths: tuple[int, ...]) -> dict[str, Maker]:
    """Ours by kind and depth, then the peers."""
    kinds = {"int8": args.model, **({"float32": args.float} if args.float else {})}
    ours = {f"{kind}, depth {d}": (Ours, (folder, d, args.threads)) for kind, folder in kinds.items() for d in depths}
    peers = {name: (Onnx, (folder, onnx_files(folder)["float32"], args.threads)) for name, folder in args.peer.items()}
    return {**ours, **peers}


TASKS = {  # option → name of the data, task
    "sts": ("STS-B dev", similarity_task),
    "squad": ("SQuAD dev", retrieval_task),
    "clinc": ("CLINC150 small", intent_task),
}


def measure(args: argparse.Namespace, result: dict[str, Any], save: Callable[[], None]) -> None:
    """Add what the arguments ask for to the result."""
    tasks = result.setdefault("tasks", {})
    for option, (title, task) in TASKS.items():
        if (file := getattr(args, option)) is None:
            continue
        count, score = task(file, args.limit)
        record = tasks[title] = {"file": "/".join(file.parts[-2:]), "option": option, "examples": count, "scores": {}}
        for name, (kind, arguments) in encoders(args, DEPTHS).items():
            record["scores"][name] = score(kind(*arguments).embed)
            print(title, name, record["scores"][name], flush=True)
            save()
    if args.text:
        from albertkit import Albert

        albert = Albert(args.model, threads=args.threads)
        rows = masked_rows(args.text, albert.tokenizer, args.limit or 2000)
        record = tasks["masked words"] = {"option": "text", "examples": len(rows), "scores": {}}
        for depth in DEPTHS:
            record["scores"][f"int8, depth {depth}"] = mlm_scores(albert, rows, depth)
            print("masked words", depth, record["scores"][f"int8, depth {depth}"], flush=True)
        save()
    if args.speed:
        result["speed"] = speed(args)
        save()


def speed(args: argparse.Namespace) -> dict[str, Any]:
    """Texts a second of our int8 at some depths, and of the first peer in float32 and int8."""
    texts = [text[:LONGEST] for text in mixed_texts(args.limit or 1000)]
    name, folder = next(iter(args.peer.items()))
    with tempfile.TemporaryDirectory() as scratch:
        files = onnx_files(folder, Path(scratch))
        makers: dict[str, Maker] = {
            **{f"int8, depth {d}": (Ours, (args.model, d, args.threads)) for d in SPEED_DEPTHS},
            **{f"{name}, {kind}": (Onnx, (folder, file, args.threads)) for kind, file in files.items()},
        }
        speeds = measure_speeds(makers, texts, args.rounds, f"{name}, float32", lambda line: print(line, flush=True))
    return {
        "machine": machine(args.threads),
        "texts": len(texts),
        "rounds": args.rounds,
        "base": f"{name}, float32",
        "encoders": speeds,
    }


def weight_bytes(folder: Path) -> int:
    """Bytes of the float32 weights of a peer: its safetensors file, or the ONNX one."""
    weights = folder / "model.safetensors"
    return (weights if weights.is_file() else onnx_files(folder)["float32"]).stat().st_size


def parse_peer(text: str) -> tuple[str, Path]:
    """NAME=FOLDER."""
    name, equals, folder = text.partition("=")
    if not equals or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER with a folder that exists")
    return name, Path(folder)


def main() -> None:
    from albertkit.builtin import fingerprint, resolve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--float", type=Path)
    parser.add_argument("--peer", type=parse_peer, action="append", default=[])
    for option in (*TASKS, "text"):
        parser.add_argument(f"--{option}", type=Path)
    parser.add_argument("--speed", action="store_true", help="also texts a second; nothing else should run meanwhile")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, help="this many examples of each task, for a quick look")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    args.peer, args.model = dict(args.peer), resolve(args.model)
    if args.speed and not args.peer:
        parser.error("--speed compares with the first --peer; name one")
    mark = fingerprint(args.model)
    before = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    result = before if before.get("model", {}).get("hash") == mark else {}
    result |= {"model": {"hash": mark}, "machine": machine(args.threads), "libraries": versions(), "limit": args.limit}
    sizes = {name: weight_bytes(folder) for name, folder in args.peer.items()}
    result["peer_bytes"] = result.get("peer_bytes", {}) | sizes

    def save() -> None:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    measure(args, result, save)
    save()


if __name__ == "__main__":
    main()
