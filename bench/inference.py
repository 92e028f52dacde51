"""Inference compared with other programs, in one run: same weights, texts and threads. Outputs are compared first.

    python bench/inference.py       # about half an hour on two cores; writes bench/results/inference.json

Peers (`peers.py`): transformers (SDPA), sentence-transformers (torch), an ONNX export of the same model run by
onnxruntime, that export with onnxruntime's stock dynamic int8, and with int8 after onnxruntime's pre-processing, the
export in OpenVINO, and in OpenVINO with int8 by NNCF. Each runs with its defaults and tuned, in a process of its own,
one after the other in each round. A round begins when other programs are quiet, or when two minutes
were spent waiting in all. The model has the
base shape with random weights, which take the same time as trained ones. `make bench` installs the peers.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path

import numpy as np
from peers import RUNNERS, TUNED

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "inference.json"
CORPUS = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared")) / "corpus" / "enwiki-00.txt.xz"
LIBRARIES = (
    "albertkit", "onnxruntime", "onnx", "torch", "transformers", "sentence-transformers", "optimum-onnx", "openvino", "nncf", "numpy",
)  # fmt: skip
BUSY = 0.1  # share of the CPUs that other programs may use when a round begins
PATIENCE = 120.0  # seconds that a run waits for that in all


# What is measured with -------------------------------------------------------------------------------------------


def mixed_texts(count: int) -> list[str]:
    """Sentences and paragraphs of English Wikipedia, two of the first for each of the second; else words drawn at
    random.
    """
    if not CORPUS.exists():
        rng = np.random.default_rng(0)
        words = [
            "the",
            "of",
            "and",
            "to",
            "in",
            "a",
            "is",
            "was",
            "for",
            "on",
            "as",
            "with",
            "by",
            "that",
            "it",
            "from",
            "at",
            "his",
            "an",
            "were",
            "are",
            "which",
            "this",
            "be",
        ]
        return [" ".join(rng.choice(words, max(3, int(rng.lognormal(3.4, 0.9))))) for _ in range(count)]
    with lzma.open(CORPUS, "rt", encoding="utf-8") as file:
        paragraphs = [line.strip() for line in islice(file, 20_000) if 100 < len(line) < 1500]
    out = []
    for i, paragraph in enumerate(paragraphs[:count]):
        out.append(paragraph if i % 3 == 0 else paragraph.split(". ")[0])
    return out


def build_model(folder: Path) -> None:
    """Base shape, random weights, the English vocabulary: as an artifact and in 8 and 4 bits."""
    import torch

    from albertkit import Tokenizer, preset, write_artifact
    from albertkit.artifact import Artifact, ArtifactMetadata
    from albertkit.interop.layouts import export_layout
    from albertkit.model import AlbertModel
    from albertkit.runtime.activation_moments import random_tokens, token_moments

    torch.manual_seed(0)
    config = preset("base")
    model = AlbertModel(config)
    tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
    artifact = Artifact(config, model.weights(), tokenizer, ArtifactMetadata(task="embed"))
    write_artifact(artifact, folder / "float")
    moments = token_moments(config, dict(artifact.weights), random_tokens(config, 16))
    write_artifact(artifact, folder / "int8", bits=8, moments=moments)
    write_artifact(artifact, folder / "int4", bits=4)
    export_layout(folder / "float", folder / "st", "sentence-transformers")


# Measuring -------------------------------------------------------------------------------------------------------


def best(work, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def matrix_peak(threads: int) -> dict[str, dict[str, float]]:
    """GFLOP/s of matrix products of the model's own shapes, in float32 by the libraries at hand and in int8 by
    onnxruntime's MatMulInteger. The best of each precision is its limit.
    """
    import torch

    torch.set_num_threads(threads)
    results: dict[str, dict[str, float]] = {"float32": {}, "int8": {}}
    rng = np.random.default_rng(0)
    for rows in (512, 1024, 2048):
        x, w = rng.normal(size=(rows, 768)).astype(np.float32), rng.normal(size=(768, 3072)).astype(np.float32)
        bytes_, weights = rng.integers(0, 256, x.shape, np.uint8), rng.integers(-127, 128, w.shape, np.int8)
        floats, integers = product_session(w, threads), product_session(weights, threads)
        tx, tw = torch.from_numpy(x), torch.from_numpy(w)
        for precision, name, work in (
            ("float32", "onnxruntime", lambda: floats.run(None, {"x": x})),
            ("float32", "torch", lambda: tx @ tw),
            ("float32", "numpy", lambda: x @ w),
            ("int8", "onnxruntime", lambda: integers.run(None, {"x": bytes_})),
        ):
            speed = 2 * rows * 768 * 3072 / best(work, 12) / 1e9
            results[precision][name] = max(results[precision].get(name, 0.0), speed)
    return results


def product_session(weights: np.ndarray, threads: int):
    """onnxruntime's product with a matrix: MatMul for float32, MatMulInteger for int8 (activations are uint8)."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    is_float = weights.dtype == np.float32
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT) if is_float else (TensorProto.UINT8, TensorProto.INT32)
    (rows, columns), value = weights.shape, helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul" if is_float else "MatMulInteger", ["x", "w"], ["y"])], "g", [value("x", kinds[0], [None, rows])],
        [value("y", kinds[1], [None, columns])], initializer=[numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def peak_shares(peak: dict[str, dict[str, float]], operations: float, seconds: dict[str, float]) -> dict[str, float]:
    """The speed of each runner over the best matrix product of its precision."""
    limits = {precision: max(speeds.values()) * 1e9 for precision, speeds in peak.items()}
    return {
        name: operations / spent / limits["int8" if "int8" in name else "float32"]
        for name, spent in seconds.items()
        if "4-bit" not in name
    }


def busy_share(seconds: float = 0.3) -> float:
    """The share of the CPUs that is in use now, while the runners wait; 0 where the system does not tell."""

    def read() -> tuple[int, int]:
        ticks = [int(tick) for tick in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]

    if not Path("/proc/stat").exists():
        return 0.0
    before = read()
    time.sleep(seconds)
    total, idle = (now - then for now, then in zip(read(), before, strict=True))
    return 1 - idle / max(1, total)


class QuietRounds:
    """Begins rounds when other programs leave the CPUs alone, as long as patience lasts, and counts them."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience, self.all, self.quiet = patience, 0, 0

    def begin(self) -> None:
        """Wait, then count one round."""
        start, is_busy = time.perf_counter(), busy_share() > BUSY
        while is_busy and time.perf_counter() - start < self.patience:
            is_busy = busy_share() > BUSY
        self.patience -= max(0.0, time.perf_counter() - start - 1)
        self.all += 1
        self.quiet += not is_busy


PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
COLD = {
    "albertkit, int8": "from albertkit import Albert; Albert({int8!r}).embed('hello world')",
    "albertkit, float32": "from albertkit import Albert; Albert({float!r}).embed('hello world')",
    "sentence-transformers": "import sentence_transformers as s; s.SentenceTransformer({st!r}, device='cpu').encode('hello world')",
    "transformers": "import torch, transformers as t; k = t.AutoTokenizer.from_pretrained({st!r}); m = t.AlbertModel.from_pretrained({st!r}); m(**k('hello world', return_tensors='pt'))",
}


def cold_starts(folder: Path, rounds: int = 5) -> dict[str, dict[str, float]]:
    """A fresh process to its first vector: the best of some runs, and its peak memory."""
    places = {name: str(folder / name) for name in ("int8", "float", "st")}
    out = {}
    for name, code in COLD.items():
        program = code.format(**places) + "\n" + PEAK  # of this process alone, not of the one that started it
        seconds, memory = [], 0.0
        for _ in range(rounds):
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            seconds.append(time.perf_counter() - start)
            memory = float(done.stdout.split()[-1]) / 1024
        out[name] = {"seconds": min(seconds), "peak_rss_mb": memory}
    return out


def work_loop(name: str, folder: Path, threads: int, runners: dict = RUNNERS) -> None:
    """A child process: one runner, told by stdin what to embed; answers with the seconds it took."""
    runner = runners[name](folder, threads)
    settings = {"long_texts": "truncate"} if name.startswith("albertkit") else {}
    works = json.loads((folder / "works.json").read_text())
    chosen = {name: getattr(runner, name, None) for name in ("bytes", "budget", "batch")}
    print(json.dumps({"ready": True, **chosen}), flush=True)
    for line in sys.stdin:
        work = line.strip()
        start = time.perf_counter()
        vectors = runner.embed(works[work], **settings)
        spent = time.perf_counter() - start
        if work == "sample":
            np.save(folder / f"{list(runners).index(name)}.npy", vectors)
        print(json.dumps({"seconds": spent}), flush=True)


class Child:
    """A runner in a process of its own, so that no library's idle threads disturb another's."""

    def __init__(self, name: str, folder: Path, threads: int, program: str = __file__) -> None:
        command = [sys.executable, program, "--worker", name, "--folder", str(folder), "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        facts = self.answer()
        self.bytes, self.setting = facts["bytes"], facts.get("budget") or facts.get("batch")

    def answer(self) -> dict:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"a runner ended with code {self.process.wait()}")

    def run(self, work: str) -> float:
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        return self.answer()["seconds"]


def measure(texts: int, rounds: int, threads: int) -> dict:
    from albertkit import Tokenizer
    from albertkit.compress.cost import operations
    from albertkit.config import preset

    result: dict = {"machine": machine(threads), "libraries": versions(), "texts": texts}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build_model(folder)
        quick = rounds < 2
        result["cold"] = cold_starts(folder, 2 if quick else 5)
        print("cold", result["cold"], flush=True)
        result["bytes"] = {
            "albertkit, float32": (folder / "float" / "model.safetensors").stat().st_size,
            "albertkit, int8": (folder / "int8" / "quantized.safetensors").stat().st_size,
            "albertkit, 4-bit": (folder / "int4" / "quantized.safetensors").stat().st_size,
        }
        mixed = mixed_texts(texts)
        works = {
            "sample": mixed[:24],
            "one short text": [" ".join(["word"] * 14)],
            "one text of 128 tokens": [" ".join(["word"] * 126)],
            "128 tokens": [" ".join(["word"] * 126)] * 8,
            "long documents": [" ".join(mixed[i : i + 12]) for i in range(0, min(len(mixed), 144), 12)],
            "mixed texts": mixed,
        }
        (folder / "works.json").write_text(json.dumps(works))
        children = {}
        for name in RUNNERS:
            children[name] = Child(name, folder, threads)
            print("ready", name, children[name].setting or "", flush=True)
        result["bytes"] |= {n: c.bytes for n, c in children.items() if c.bytes and not n.endswith(TUNED)}
        result["tuned"] = {n.removesuffix(TUNED): c.setting for n, c in children.items() if n.endswith(TUNED)}
        for child in children.values():
            child.run("sample")
        vectors = [np.load(folder / f"{i}.npy") for i in range(len(RUNNERS))]
        result["agreement"] = {n: float((v * vectors[0]).sum(1).min()) for n, v in zip(RUNNERS, vectors, strict=True)}
        tokens = [len(e) for e in Tokenizer.load(folder / "float").encode_batch(mixed)]
        result["tokens"] = {
            "mean": float(np.mean(tokens)),
            "median": float(np.median(tokens)),
            "most": int(max(tokens)),
        }
        seconds = {w: dict.fromkeys(RUNNERS, float("inf")) for w in works if w != "sample"}
        quiet = QuietRounds()
        quiet.begin()
        peak = matrix_peak(threads)
        for work, repeats in (
            ("one short text", 30 if quick else 40),
            ("one text of 128 tokens", 10 if quick else 20),
            ("128 tokens", 5 if quick else 10),
            ("long documents", rounds),
            ("mixed texts", rounds),
        ):
            for _ in range(repeats):  # one after the other in each round, so that a busy moment hits all alike
                quiet.begin()
                for name, child in children.items():
                    times = [child.run(work) for _ in range(5 if work == "one short text" else 1)]
                    seconds[work][name] = min(seconds[work][name], *times, float("inf"))
            result.setdefault("workloads", {})[work] = {
                n: {"texts_per_second": len(works[work]) / s} for n, s in seconds[work].items()
            }
            print(work, {n: round(len(works[work]) / s, 2) for n, s in seconds[work].items()}, flush=True)
        quiet.begin()
        result["rounds"] = {"all": quiet.all, "quiet": quiet.quiet}
        done = operations(preset("base"), 128)["total"] * 128
        for precision, speeds in matrix_peak(threads).items():  # again, since a busy moment makes it too low
            peak[precision] = {name: max(speed, peak[precision][name]) for name, speed in speeds.items()}
        shares = {
            "shares_at_128_tokens": peak_shares(peak, done * 8, seconds["128 tokens"]),
            "shares_of_one_text": peak_shares(peak, done, seconds["one text of 128 tokens"]),
        }
        result["peak"] = {"gflops_by_library": peak["float32"], "int8_gflops_by_library": peak["int8"], **shares}
        print("share of peak", result["peak"], flush=True)
        for child in children.values():
            child.process.kill()
    return result


def machine(threads: int) -> dict:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next(
        (line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    flags = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if f in info]
    return {
        "processor": model,
        "instructions": flags,
        "threads": threads,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def versions() -> dict[str, str]:
    out = {}
    for name in LIBRARIES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--worker", choices=RUNNERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work_loop(arguments.worker, arguments.folder, arguments.threads)
        return
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(measure(arguments.texts, arguments.rounds, arguments.threads), indent=2) + "\n")
    print(f"{RESULT.relative_to(ROOT)} written; now run  make docs")


if __name__ == "__main__":
    main()
