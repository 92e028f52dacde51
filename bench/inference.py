"""Inference compared with other programs, in one run: same weights, texts and threads. Outputs are compared first.

    python bench/inference.py       # about ten minutes on two cores; writes bench/results/inference.json

Peers: transformers (SDPA), sentence-transformers (torch), an ONNX export of the same model run by onnxruntime in
batches of 32 sorted by length, that export with onnxruntime's stock dynamic int8, and with int8 after onnxruntime's
pre-processing. The model has the base shape with random weights, which take the same time as trained ones. `make bench`
installs the peers.
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

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "inference.json"
CORPUS = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared")) / "corpus" / "enwiki-00.txt.xz"
LIBRARIES = (
    "albertkit",
    "onnxruntime",
    "onnx",
    "torch",
    "transformers",
    "sentence-transformers",
    "optimum-onnx",
    "numpy",
)


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
    from albertkit.interop.sentence_transformers import write_folder
    from albertkit.model import AlbertModel
    from albertkit.runtime.activation_moments import random_tokens, token_moments

    torch.manual_seed(0)
    config = preset("base")
    model = AlbertModel(config)
    tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
    artifact = Artifact(config, model.weights(), tokenizer, ArtifactMetadata(task="embed"))
    write_artifact(artifact, folder / "float")
    seen = token_moments(config, dict(artifact.weights), random_tokens(config, 16))
    write_artifact(artifact, folder / "int8", bits=8, moments=seen)
    write_artifact(artifact, folder / "int4", bits=4)
    write_folder(artifact, folder / "st")


def mean_pool(hidden, mask):
    vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Transformers:
    """transformers, SDPA, batches of 32 sorted by length."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self.torch = torch
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "st")
        self.model = transformers.AlbertModel.from_pretrained(folder / "st", attn_implementation="sdpa").eval()

    def forward(self, batch):
        with self.torch.inference_mode():
            return self.model(**batch).last_hidden_state.numpy()

    def embed(self, texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.empty((len(texts), 768), np.float32)
        for start in range(0, len(order), 32):
            places = order[start : start + 32]
            batch = self.tokenizer(
                [texts[i] for i in places], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            out[places] = mean_pool(self.forward(batch), batch["attention_mask"].numpy())
        return out


class OnnxExport(Transformers):
    """An ONNX export of the same model, run by onnxruntime in batches of 32 sorted by length; `kind` is float, stock or
    int8.
    """

    def __init__(self, folder: Path, threads: int, kind: str) -> None:
        import onnxruntime as ort

        super().__init__(folder, threads)
        del self.model
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        path = export(folder, kind)
        self.bytes = path.stat().st_size
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = {i.name for i in self.session.get_inputs()}

    def forward(self, batch):
        return self.session.run(None, {k: v.numpy() for k, v in batch.items() if k in self.names})[0]


def export(folder: Path, kind: str) -> Path:
    """model.onnx through optimum, and its int8 forms."""
    out = folder / "onnx"
    if not (out / "model.onnx").exists():
        from optimum.onnxruntime import ORTModelForFeatureExtraction

        ORTModelForFeatureExtraction.from_pretrained(folder / "st", export=True).save_pretrained(out)
    if kind == "float":
        return out / "model.onnx"
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    target = out / f"{kind}.onnx"
    source = out / "model.onnx"
    if kind == "int8" and not target.exists():
        quant_pre_process(str(source), str(out / "pre.onnx"), skip_symbolic_shape=True)
        source = out / "pre.onnx"
    if not target.exists():
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QInt8, per_channel=kind == "int8")
    return target


class SentenceTransformers:
    """sentence-transformers, torch, its own batching; 32 texts a batch is its default."""

    def __init__(self, folder: Path, threads: int, batch: int = 32) -> None:
        import sentence_transformers
        import torch

        torch.set_num_threads(threads)
        self.model = sentence_transformers.SentenceTransformer(str(folder / "st"), device="cpu")
        self.batch = batch

    def embed(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, batch_size=self.batch)


def ours(folder: Path, name: str, threads: int):
    from albertkit import Albert

    return Albert(folder / name, threads=threads)


# Measuring -------------------------------------------------------------------------------------------------------


def best(work, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def matrix_peak(threads: int) -> dict[str, float]:
    """GFLOP/s of float32 matrix products of the model's own shapes, by the libraries at hand; the best of them is the
    limit.
    """
    import onnxruntime as ort
    import torch
    from onnx import TensorProto, helper, numpy_helper

    torch.set_num_threads(threads)
    out = {}
    rng = np.random.default_rng(0)
    for rows in (512, 1024, 2048):
        x, w = rng.normal(size=(rows, 768)).astype(np.float32), rng.normal(size=(768, 3072)).astype(np.float32)
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value("x", TensorProto.FLOAT, [None, 768])],
            [value("y", TensorProto.FLOAT, [None, 3072])], initializer=[numpy_helper.from_array(w, "w")],
        )  # fmt: skip
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        tx, tw = torch.from_numpy(x), torch.from_numpy(w)
        operations = 2 * rows * 768 * 3072
        for name, work in (
            ("onnxruntime", lambda: session.run(None, {"x": x})),
            ("torch", lambda: tx @ tw),
            ("numpy", lambda: x @ w),
        ):
            out[name] = max(out.get(name, 0.0), operations / best(work, 12) / 1e9)
    return out


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


RUNNERS = {
    "transformers (SDPA)": lambda folder, threads: Transformers(folder, threads),
    "sentence-transformers (torch)": lambda folder, threads: SentenceTransformers(folder, threads),
    "onnxruntime, export": lambda folder, threads: OnnxExport(folder, threads, "float"),
    "onnxruntime, stock int8": lambda folder, threads: OnnxExport(folder, threads, "stock"),
    "onnxruntime, pre-processed int8": lambda folder, threads: OnnxExport(folder, threads, "int8"),
    "albertkit, float32": lambda folder, threads: ours(folder, "float", threads),
    "albertkit, int8": lambda folder, threads: ours(folder, "int8", threads),
    "albertkit, 4-bit": lambda folder, threads: ours(folder, "int4", threads),
}


def work_loop(name: str, folder: Path, threads: int, runners: dict = RUNNERS) -> None:
    """A child process: one runner, told by stdin what to embed; answers with the seconds it took."""
    runner = runners[name](folder, threads)
    settings = {"long_texts": "truncate"} if name.startswith("albertkit") else {}
    works = json.loads((folder / "works.json").read_text())
    print(json.dumps({"ready": True, "bytes": getattr(runner, "bytes", None)}), flush=True)
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

    def __init__(
        self, name: str, folder: Path, threads: int, program: tuple[str, str] = (sys.executable, __file__)
    ) -> None:
        command = [*program, "--worker", name, "--folder", str(folder), "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.bytes = self.answer()["bytes"]

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
            "one short text": ["this is a short sentence"],
            "long documents": [" ".join(mixed[i : i + 12]) for i in range(0, min(len(mixed), 144), 12)],
            "128 tokens": [" ".join(["word"] * 126)] * 16,
            "mixed texts": mixed,
        }
        (folder / "works.json").write_text(json.dumps(works))
        children = {name: Child(name, folder, threads) for name in RUNNERS}
        result["bytes"] |= {n: c.bytes for n, c in children.items() if c.bytes}
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
        for work, repeats in (
            ("one short text", 30 if quick else 40),
            ("128 tokens", 5 if quick else 6),
            ("long documents", rounds),
            ("mixed texts", rounds),
        ):
            for _ in range(repeats):  # one after the other in each round, so that a busy moment hits all alike
                for name, child in children.items():
                    times = [child.run(work) for _ in range(5 if work == "one short text" else 1)]
                    seconds[work][name] = min(seconds[work][name], *times, float("inf"))
            result.setdefault("workloads", {})[work] = {
                n: {"texts_per_second": len(works[work]) / s} for n, s in seconds[work].items()
            }
            print(work, {n: round(len(works[work]) / s, 2) for n, s in seconds[work].items()}, flush=True)
        peak = matrix_peak(threads)
        done = operations(preset("base"), 128)["total"] * 128 * 16 / 1e9
        shares = {
            n: done / s / max(peak.values())
            for n, s in seconds["128 tokens"].items()
            if "int8" not in n and "4-bit" not in n
        }
        result["peak"] = {"gflops_by_library": peak, "shares_at_128_tokens": shares}
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
