"""Bulk vectors on a GPU, file to file: correct, how fast, and what limits, beside sentence-transformers.

    python studies/gpu_bulk.py --minutes 9 --out studies/results/gpu-bulk.json    # one H200
    python studies/gpu_bulk.py --device torch --texts 2000                        # a trial on a CPU

Every step is checked or timed by its own clock, and written to --out when it is done; the record is printed at the end.
After --minutes the run stops, with what it has.

- check: cosine of the device's vectors with those of the runtime on the CPU, in every precision.
- bulk: `albertkit.bulk` from files to files; the rate with and without the start of the processes.
- peer: the same weights in sentence-transformers in float16, from a list of texts to an array.
- stages: one worker alone, microseconds per text for reading, tokenizing, computing, transfers and writing.
- layers: operations per second of full rows, as a share of the largest matrix product measured here.

Texts are sentences of runs/tiny.txt.xz, drawn at random and numbered. It needs torch, and sentence-transformers for the
last step. Files are Parquet where pyarrow is installed, else .jsonl and .npz.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import lzma
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from albertkit import Albert  # noqa: E402
from albertkit.bulk.bulk_run import bulk  # noqa: E402
from albertkit.bulk.object_store import find_inputs  # noqa: E402
from albertkit.bulk.part_files import PartContent, open_part  # noqa: E402
from albertkit.bulk.parts import get_part, plan_parts, read_part  # noqa: E402
from albertkit.bulk.worker import GROUP_ROWS, BulkOptions  # noqa: E402
from albertkit.compress.cost import operations  # noqa: E402
from albertkit.runtime.embed import combine_windows, split_texts  # noqa: E402
from albertkit.runtime.packed_texts import OutputRequest, PackedTexts  # noqa: E402
from albertkit.runtime.torch_engine import PRECISIONS, TorchEngine  # noqa: E402

PACKAGES = ("torch", "triton", "numpy", "sentence-transformers", "transformers", "pyarrow")
HAS_PARQUET = importlib.util.find_spec("pyarrow") is not None
FILES = 16
LENGTHS = (16, 32, 64, 128, 256)


class TimeIsUp(Exception):
    """The time of --minutes is over."""


def sentences() -> list[str]:
    with lzma.open(ROOT / "runs" / "tiny.txt.xz", "rt", encoding="utf-8") as file:
        found = [part.strip() for line in file for part in re.split(r"(?<=[.!?]) ", line)]
    return [text for text in found if len(text.split()) > 4]


def write_texts(folder: Path, count: int) -> list[str]:
    """Files of texts; each has a number, so that no two are equal."""
    known, rng = sentences(), np.random.default_rng(0)
    paths = []
    for number, rows in enumerate(np.array_split(np.arange(count), FILES)):
        texts = [f"{known[at]} {row}" for row, at in zip(rows, rng.integers(0, len(known), len(rows)), strict=True)]
        path = folder / f"texts-{number:02d}.{'parquet' if HAS_PARQUET else 'jsonl'}"
        if HAS_PARQUET:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
        else:
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        paths.append(str(path))
    return paths


def timed(run: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of some runs, after one that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def synchronize(engine: TorchEngine) -> None:
    if engine.is_gpu:
        engine.torch.cuda.synchronize()


# Steps ---------------------------------------------------------------------------------------------------------------


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Cosines with the runtime, whose activations are 8 bits for a model of 8 bits; and with float32 on the device."""
    texts, found = sentences()[: args.check_texts], {}
    for name in dict.fromkeys((args.model, "small-zh")):
        expected, exact = Albert(name, depth=args.depth).embed(texts), None
        for precision in PRECISIONS:
            albert = Albert(name, device=args.device, precision=precision, depth=args.depth)
            if albert.engine.is_gpu:  # type: ignore[union-attr]
                albert.engine.compile()  # type: ignore[union-attr]
            vectors = albert.embed(texts)
            exact = vectors if exact is None else exact
            cosines = {"runtime": (vectors * expected).sum(1), "float32": (vectors * exact).sum(1)}
            found[f"{name} {precision}"] = {
                other: {"min": float(c.min()), "mean": float(c.mean())} for other, c in cosines.items()
            }
    return found


def matmul_peak(engine: TorchEngine) -> float:
    """Operations per second of a large matrix product in the engine's precision."""
    torch, size = engine.torch, 8192 if engine.is_gpu else 256
    a, b = (torch.randn(size, size, device=engine.device).to(engine.dtype) for _ in range(2))

    def run() -> None:
        for _ in range(10):
            torch.mm(a, b)
        synchronize(engine)

    return 10 * 2 * size**3 / timed(run)


def layers(args: argparse.Namespace) -> dict[str, Any]:
    """Rows of equal length, without padding: layers only, and the whole way with pooling and transfers."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys((args.model, "small-zh")):
        engine = open_engine(name, args)
        engine.token_budget = engine.token_budget if engine.is_gpu else max(LENGTHS)
        found.setdefault("peak_tflops", matmul_peak(engine) / 1e12)
        config = engine.config.replace(num_hidden_layers=args.depth)
        for length in LENGTHS:
            rows = engine.token_budget // length
            texts = PackedTexts(np.full(rows * length, 9, np.int32), np.full(rows, length, np.int32))
            with engine.torch.no_grad(), engine._on_device():
                (group,) = engine_groups(engine, texts, length)
                hidden = engine.model.encoder.embeddings(group.batch)

                def run(engine: TorchEngine = engine, hidden: Any = hidden, batch: Any = group.batch) -> None:
                    for _ in range(args.repeats):
                        engine._apply(hidden, batch, 0, args.depth)
                    synchronize(engine)

                seconds = timed(run) / args.repeats
            cost = operations(config, length)
            work = sum(cost[part] for part in cost if "attention" in part or part == "feed-forward") * rows * length
            found[f"{name} {length}"] = {
                "texts_per_second": rows / seconds,
                "tflops": work / seconds / 1e12,
                "share_of_peak": work / seconds / 1e12 / found["peak_tflops"],
            }
    return found


def engine_groups(engine: TorchEngine, texts: PackedTexts, length: int) -> Iterator[Any]:
    """The padded groups of texts, which are all of one length."""
    from albertkit.runtime.packed_texts import padded_groups

    moved = engine._move(texts)
    for group in padded_groups(moved.host_lengths, engine.token_budget, length):
        yield engine._pad(moved, group)


def open_engine(name: str, args: argparse.Namespace) -> TorchEngine:
    engine = Albert(name, device=args.device, precision=args.precision).engine
    assert isinstance(engine, TorchEngine)
    if engine.is_gpu:
        engine.compile()
    return engine


def stages(paths: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds per text of each stage, alone in one process: best of several, for a group of rows of a worker."""
    albert = Albert(args.model, threads=1)
    engine, options = open_engine(args.model, args), albert.embed_options(depth=args.depth)
    files, table = plan_parts(find_inputs(paths[:1], None), GROUP_ROWS)
    part = get_part(table, files, 0)
    texts = [str(text) for _, text in read_part(part)]
    windows = split_texts(albert, texts, options)
    packed, request = PackedTexts.of(windows.ids), [OutputRequest(options.pooling)]
    (vectors,) = engine.outputs(packed, args.depth, request)
    content = PartContent("embed", part.file.name, 0, len(texts), albert.dim, dtype=None)

    def write() -> None:
        with open_part(BytesIO(), "parquet" if HAS_PARQUET else "npz", content) as writer:
            writer.write(list(vectors))

    def transfer() -> None:
        with engine.torch.no_grad():
            moved = [engine._to_device(array) for array in (packed.ids, packed.lengths, packed.starts)]
            back = engine._to_host(engine.torch.empty(vectors.shape, device=engine.device))
            synchronize(engine)
        del moved, back

    runs: dict[str, Callable[[], object]] = {
        "read": lambda: list(read_part(part)),
        "tokenize": lambda: split_texts(albert, texts, options),
        "pack": lambda: PackedTexts.of(windows.ids),
        "device": lambda: engine.outputs(packed, args.depth, request),
        "device_transfers": transfer,
        "combine": lambda: combine_windows(vectors, windows, options),
        "write": write,
    }
    found = {name: 1e6 * timed(run) / len(texts) for name, run in runs.items()}
    plan = 1e6 * timed(lambda: plan_parts(files, GROUP_ROWS)) / int(table["rows"].sum())  # by one process, at the start
    worker = sum(found[name] for name in ("read", "tokenize", "pack", "combine", "write"))
    return {
        "texts": len(texts),
        "mean_tokens": float(packed.lengths.mean()),
        "microseconds": {**found, "plan": plan},
        "texts_per_second": {f"{args.workers} workers": args.workers * 1e6 / worker, "device": 1e6 / found["device"]},
    }


def whole_run(paths: list[str], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """`bulk` from files to files. The rate without start is that from the first finished part to the last."""
    finished: list[tuple[float, int]] = []
    start = time.perf_counter()

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "parts" and done:
            finished.append((time.perf_counter() - start, done))

    options = BulkOptions(
        model=args.model,
        task_options={"depth": args.depth},
        part_rows=args.part_rows,
        device=args.device,
        precision=args.precision,
    )
    out = folder / "vectors"
    try:
        summary = bulk("embed", paths, str(out), options, workers=args.workers, progress=progress)
    except TimeIsUp:
        return {"stopped_after_rows": finished[-1][1] if finished else 0, **rates(finished)}
    size = sum(path.stat().st_size for path in out.glob("part-*"))
    record = dataclasses.asdict(summary)
    shutil.rmtree(out)
    return {**record, **rates(finished), "output_bytes": size}


def rates(finished: list[tuple[float, int]]) -> dict[str, float]:
    if len(finished) < 2:
        return {}
    (first, before), (last, after) = finished[0], finished[-1]
    return {"seconds_to_first_part": first, "rows_per_second_after_it": (after - before) / (last - first)}


def peer(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """sentence-transformers with the same weights, at its best batch size."""
    import torch
    from sentence_transformers import SentenceTransformer

    from albertkit.artifact import Artifact, write_artifact
    from albertkit.interop.convert import open_stored
    from albertkit.interop.layouts import export_layout
    from albertkit.runtime.graph_builder import as_float

    stored = open_stored(args.model)
    config = stored.config.replace(num_hidden_layers=args.depth)
    weights = {name: as_float(w) for name, w in stored.weights.items() if name.startswith("encoder.")}
    meta = dataclasses.replace(stored.metadata, depth=None, quantization=None)
    write_artifact(Artifact(config, weights, stored.tokenizer, meta), folder / "float")
    export_layout(folder / "float", folder / "peer", "sentence-transformers")
    is_gpu = args.device.startswith("cuda")
    device = args.device if is_gpu else "cpu"
    model = SentenceTransformer(str(folder / "peer"), device=device, local_files_only=True)
    model = model.half() if is_gpu else model
    known = sentences()
    texts = [f"{known[at % len(known)]} {at}" for at in range(args.peer_texts)]
    ours = Albert(args.model, device=args.device, depth=args.depth).embed(texts[: args.check_texts])
    theirs = model.encode(texts[: args.check_texts], normalize_embeddings=True)
    found: dict[str, Any] = {"cosine_min": float((ours * theirs).sum(1).min()), "texts": len(texts), "by_batch": {}}
    for size in (32, 256, 1024) if is_gpu else (32,):
        start = time.perf_counter()
        model.encode(texts, batch_size=size)
        if is_gpu:
            torch.cuda.synchronize()
        found["by_batch"][str(size)] = len(texts) / (time.perf_counter() - start)
    return {**found, "texts_per_second": max(found["by_batch"].values())}


# The run -------------------------------------------------------------------------------------------------------------


@contextmanager
def time_limit(minutes: float) -> Iterator[None]:
    """Raise `TimeIsUp` in this block after some minutes."""

    def stop(*_: object) -> None:
        raise TimeIsUp

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def machine(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if args.device.startswith("cuda") else None
    return {"gpu": gpu, "cores": len(os.sched_getaffinity(0)), "packages": versions}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or torch for a trial on the CPU")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: bf16 on cuda, else float32")
    parser.add_argument("--model", default="small")
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--texts", type=int, default=6_000_000)
    parser.add_argument("--part-rows", type=int, default=50_000)
    parser.add_argument("--peer-texts", type=int, help="default: a thirtieth of --texts")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    is_gpu = args.device.startswith("cuda")
    args.check_texts, args.repeats = (512, 20) if is_gpu else (32, 1)
    args.precision = args.precision or ("bf16" if is_gpu else "float32")
    args.peer_texts = args.peer_texts or max(args.check_texts, args.texts // 30)
    return args


def main() -> int:
    args = parse()
    shown = {name: value for name, value in vars(args).items() if name != "out"}
    record: dict[str, Any] = {"arguments": shown, "machine": machine(args), "seconds": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        paths: list[str] = []
        steps: dict[str, Callable[[], Any]] = {
            "check": lambda: check(args),
            "write_texts": lambda: paths.extend(write_texts(folder, args.texts)),
            "bulk": lambda: whole_run(paths, folder, args),
            "peer": lambda: peer(args, folder),
            "stages": lambda: stages(paths, args),
            "layers": lambda: layers(args),
        }
        try:
            with time_limit(args.minutes):
                for name, step in steps.items():
                    start = time.perf_counter()
                    try:
                        record[name] = step()
                    except ImportError as error:
                        record[name] = {"missing": str(error)}
                    record["seconds"][name] = time.perf_counter() - start
                    save(record, args.out)
        except TimeIsUp:
            record["stopped_in"] = name
    save(record, args.out)
    print(json.dumps(record, indent=1))
    lowest = min((values["float32"]["mean"] for values in record.get("check", {}).values()), default=0.0)
    return 0 if lowest >= 0.999 and "stopped_in" not in record else 1


def save(record: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
