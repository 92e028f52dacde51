"""All optimizations together, on texts of mixed length at the base shape: speedup over sentence-transformers, and loss
of quality.

    python studies/together.py --peer-python .venv-bench/bin/python     # writes studies/results/together.json
    python studies/together.py --quick                                  # few texts, records nothing: a test run

The model has the base shape (H 768, 12 layers, feed-forward 3072, 12 heads) and the function of the built-in `small`:
there is no trained English model of that shape here, so `widen.py` duplicates every hidden unit, head and column of
`small`. Its vectors are checked to equal those of `small`. Speed depends on the shape only, not on the weights. The loss
is that of `small`, since each copy is rounded as in `small`. Pruning is omitted, since it would only undo the widening.
--model uses another folder of the base shape.

sentence-transformers (torch, float32) runs with its default batch size of 32, and with the batch size that is fastest
on these texts. Both sides truncate texts to the model's positions. Quality is Spearman's correlation on STS-B dev; the
loss is relative to sentence-transformers. Each side has a separate process, and they run in interleaved rounds; the
best round counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]
from compression import ROOT, sts, wiki  # noqa: E402
from inference import Child, machine, mixed_texts, versions, work_loop  # noqa: E402
from peers import SentenceTransformers, ours  # noqa: E402

RESULT = ROOT / "studies" / "results" / "together.json"
SHAPE = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "num_attention_heads": 12}
SAME = 0.9999  # least cosine of a widened model's vectors with those it was made from
DEFAULT, SIZES = 32, (4, 8, 16, 32, 64, 128)  # texts in a batch of sentence-transformers
OURS: dict[str, tuple[str, dict[str, Any]]] = {  # name → folder, settings of `embed`
    "albertkit, float32": ("float", {}),
    "albertkit, int8": ("int8", {}),
    "albertkit, int8, depth 6": ("int8", {"depth": 6}),
    "albertkit, int8, exit cosine:0.95": ("int8", {"early_exit": "cosine:0.95"}),
    "albertkit, int8, depth 3": ("int8", {"depth": 3}),
    "albertkit, 4-bit, depth 3": ("int4", {"depth": 3}),
}


def peer(size: int) -> str:
    """What sentence-transformers in batches of a size is called."""
    return f"sentence-transformers, batches of {size}"


def runner(kind: str, settings: dict[str, Any]) -> Callable[[Path, int], Any]:
    """Opens one of ours."""
    return lambda folder, threads: SimpleNamespace(embed=partial(ours(folder, kind, threads).embed, **settings))


RUNNERS: dict[str, Callable[[Path, int], Any]] = {
    **{peer(size): partial(SentenceTransformers, batch=size) for size in SIZES},
    **{name: runner(*how) for name, how in OURS.items()},
}


# What is measured --------------------------------------------------------------------------------------------------


def build(model: str | None, place: Path, texts: list[str]) -> float:
    """The base-shaped model in folders float, int8, int4 and st; the least cosine of its vectors with those of the
    model it was made from.
    """
    from widen import cosines, widen, widen_moments

    from albertkit.artifact import write_artifact
    from albertkit.interop.convert import open_model
    from albertkit.interop.layouts import export_layout
    from albertkit.runtime.activation_moments import activation_moments

    narrow = open_model(model)
    times = max(1, SHAPE["hidden_size"] // narrow.config.hidden_size)
    wide = widen(narrow, times)
    shape = {name: getattr(wide.config, name) for name in SHAPE}
    if shape != SHAPE:
        raise SystemExit(f"{model or 'the built-in model'} has, widened {times} times, the shape {shape}; the base shape is {SHAPE}")  # fmt: skip
    encodings = narrow.tokenizer.encode_batch(texts[:24], max_length=narrow.config.max_position_embeddings)
    lowest_cosine = float(cosines(narrow, wide, [e.ids for e in encodings]).min())
    if lowest_cosine < SAME:
        raise SystemExit(f"the widened model's vectors have a cosine of {lowest_cosine:.6f} with the original's; it must be {SAME} or more")  # fmt: skip
    write_artifact(wide, place / "float")
    export_layout(place / "float", place / "st", "sentence-transformers")
    moments = widen_moments(activation_moments(narrow, texts), times)
    write_artifact(wide, place / "int8", bits=8, moments=moments)
    write_artifact(wide, place / "int4", bits=4, moments=moments)
    return lowest_cosine


class Field:
    """Who runs: processes of both sides on one folder, which holds the models and `works.json`."""

    def __init__(self, folder: Path, threads: int, python: str) -> None:
        self.folder, self.threads, self.python = folder, threads, python

    def start(self, name: str, stack: ExitStack) -> Child:
        """One runner in a process that ends with the stack; sentence-transformers in the other Python."""
        python = sys.executable if name in OURS else self.python
        child = Child(name, self.folder, self.threads, (python, __file__))
        stack.callback(child.process.kill)
        return child

    def by_size(self, sizes: Sequence[int]) -> dict[int, float]:
        """Seconds that sentence-transformers takes for the mixed texts in batches of each size, once, after a warm-up."""
        seconds = {}
        for size in sizes:
            with ExitStack() as stack:
                child = self.start(peer(size), stack)
                child.run("warm-up")
                seconds[size] = child.run("mixed texts")
            print(f"{peer(size)}: {seconds[size]:.1f} s", flush=True)
        return seconds

    def vectors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """What each said of STS-B's sentences."""
        return {name: np.load(self.folder / f"{list(RUNNERS).index(name)}.npy") for name in names}

    def race(self, names: Sequence[str], rounds: int) -> dict[str, float]:
        """Each runner's best seconds for the mixed texts, after the sentences of STS-B."""
        best = dict.fromkeys(names, float("inf"))
        with ExitStack() as stack:
            children = {name: self.start(name, stack) for name in names}
            for child in children.values():
                child.run("sample")
            for number in range(rounds):
                for name, child in children.items():
                    best[name] = min(best[name], child.run("mixed texts"))
                print(f"round {number + 1}: { {name: round(s, 2) for name, s in best.items()} }", flush=True)
        return best


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    peer_libraries = peer_versions(args.peer_python)
    mixed, (first, second, scores) = mixed_texts(args.texts), sts()
    pairs = 10 if args.quick else len(scores)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        least = build(args.model, place, wiki(20 if args.quick else 500))
        works = {"warm-up": mixed[:4], "sample": [*first[:pairs], *second[:pairs]], "mixed texts": mixed}
        (place / "works.json").write_text(json.dumps(works), encoding="utf-8")
        field = Field(place, args.threads, args.peer_python)
        sizes = field.by_size(SIZES[:2] if args.quick else SIZES)
        best = min(sizes, key=sizes.__getitem__)
        names = [*dict.fromkeys([peer(DEFAULT), peer(best)]), *OURS]
        seconds = field.race(names, args.rounds)
        rows = {
            name: {"texts_per_second": len(mixed) / seconds[name], "sts_b_dev": agreement(vectors, scores[:pairs]), "bytes": stored(place, name)}
            for name, vectors in field.vectors(names).items()
        }  # fmt: skip
        compare(rows, best)
        facts = {"model": Path(args.model).name if args.model else "small", "least_cosine": least, **lengths(place / "float", mixed)}  # fmt: skip
        depths = mean_depths(place, mixed, args.threads)
    return {
        "machine": machine(args.threads), "libraries": {**versions(), **peer_libraries}, **facts, "rounds": args.rounds, "best_batch": best,
        "batch_seconds": {str(size): taken for size, taken in sizes.items()}, "mean_depth": depths, "rows": rows,
    }  # fmt: skip


def agreement(vectors: np.ndarray, scores: np.ndarray) -> float:
    """Spearman's correlation of the pairs' cosines with their scores, times 100; the second half of the vectors are the
    partners.
    """
    from scipy.stats import spearmanr

    first, second = vectors[: len(scores)], vectors[len(scores) :]
    return 100 * float(spearmanr((first * second).sum(1), scores)[0])


def stored(place: Path, name: str) -> int:
    """Bytes of a runner's weights on disk."""
    return max(path.stat().st_size for path in (place / OURS.get(name, ("st",))[0]).glob("*.safetensors"))


def compare(rows: dict[str, dict[str, Any]], best: int) -> None:
    """Add to each row its ratios to sentence-transformers, and its loss in percent."""
    default, fastest = rows[peer(DEFAULT)], rows[peer(best)]
    for row in rows.values():
        row["times_default"] = row["texts_per_second"] / default["texts_per_second"]
        row["times_best"] = row["texts_per_second"] / fastest["texts_per_second"]
        row["loss_percent"] = 100 * (1 - row["sts_b_dev"] / default["sts_b_dev"])


def lengths(folder: Path, texts: list[str]) -> dict[str, Any]:
    """How long the texts are, in tokens, after cutting."""
    from albertkit.artifact import read_artifact

    artifact = read_artifact(folder)
    limit = artifact.config.max_position_embeddings
    tokens = [len(e.ids) for e in artifact.tokenizer.encode_batch(texts, max_length=limit)]
    summary = {"mean": float(np.mean(tokens)), "median": float(np.median(tokens)), "most": int(max(tokens))}
    return {"texts": len(texts), "positions": limit, "tokens": summary}


def mean_depths(place: Path, texts: list[str], threads: int) -> dict[str, float]:
    """Layers that a text goes through on average, for those of ours with an exit."""
    out = {}
    for name, (kind, settings) in OURS.items():
        if "early_exit" in settings:
            out[name] = float(
                ours(place, kind, threads).embed_early_exit(texts, long_texts="truncate", **settings)[1].mean()
            )
    return out


def peer_versions(python: str) -> dict[str, str]:
    """Libraries of the Python that runs sentence-transformers, which must have it."""
    program = f"import json, sys; sys.path.insert(0, {str(ROOT / 'bench')!r}); from inference import versions; print(json.dumps(versions()))"
    libraries: dict[str, str] = {}
    if shutil.which(python):
        done = subprocess.run([python, "-c", program], capture_output=True, text=True)
        libraries = json.loads(done.stdout) if done.returncode == 0 else {}
    if "sentence-transformers" not in libraries:
        raise SystemExit(f"{python} has no sentence-transformers; `make bench` installs it, so give --peer-python .venv-bench/bin/python (or the variable PEER)")  # fmt: skip
    return {name: libraries[name] for name in ("sentence-transformers", "transformers", "torch")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", help="a float model's folder, to be widened  [default: the built-in small, as floats]"
    )
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peer-python", default=os.environ.get("PEER", sys.executable), help="a Python with sentence-transformers  [default: the variable PEER, else this one]")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few texts, one round, and keep nothing")
    parser.add_argument("--worker", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work_loop(args.worker, args.folder, args.threads, RUNNERS)
        return
    if args.quick:
        args.texts, args.rounds = 6, 1
        print(json.dumps(measure(args), indent=2))
    else:
        RESULT.write_text(json.dumps(measure(args), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
