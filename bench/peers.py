"""The programs that `inference.py` compares: each turns texts into vectors with the same weights and threads.

Each peer runs twice: with its defaults (batches of 32 texts sorted by length), and tuned. Tuned, it has albertkit's
batches, which have a budget of tokens, with the fastest of several budgets on the sample; sentence-transformers, which
makes its own batches, has the fastest of several batch sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.runtime.batching import group_by_length

BATCH = 32  # texts, the default of transformers' pipelines and of sentence-transformers
BUDGETS = (512, 1024, 2048, 4096)  # tokens of a batch
BATCH_SIZES = (1, 8, 16, 32, 64)
TUNED = ", tuned"  # after the name of a peer
MAX_TOKENS = 512
Batch = dict[str, np.ndarray]


def fastest(choices: tuple[int, ...], work: Callable[[int], object], rounds: int = 2) -> int:
    """The choice with which some work takes least time."""
    seconds = {}
    for choice in choices:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            work(choice)
            times.append(time.perf_counter() - start)
        seconds[choice] = min(times)
    return min(seconds, key=lambda choice: seconds[choice])


def mean_pool(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class Peer:
    """Texts in batches of 32 sorted by length, or of `budget` tokens; subclasses compute the hidden states."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "st")
        self.budget: int | None = None

    def forward(self, batch: Batch) -> np.ndarray:
        """Hidden states (texts, length, H)."""
        raise NotImplementedError

    def tune(self, texts: list[str]) -> int:
        """Choose the fastest budget on some texts."""

        def run(budget: int) -> None:
            self.budget = budget
            self.embed(texts)

        self.budget = fastest(BUDGETS, run)
        return self.budget

    def groups(self, texts: list[str]) -> Iterator[list[int]]:
        """Positions of the texts of each batch."""
        if self.budget is not None:
            ids = self.tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
            yield from group_by_length([len(row) for row in ids], self.budget)
            return
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        yield from (order[start : start + BATCH] for start in range(0, len(order), BATCH))

    def embed(self, texts: list[str]) -> np.ndarray:
        out: np.ndarray | None = None
        for places in self.groups(texts):
            batch = self.tokenizer(
                [texts[i] for i in places], padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="np"
            )
            vectors = mean_pool(self.forward(batch), batch["attention_mask"])
            out = np.empty((len(texts), vectors.shape[1]), np.float32) if out is None else out
            out[places] = vectors
        assert out is not None
        return out


class Transformers(Peer):
    """transformers, SDPA."""

    def __init__(self, folder: Path, threads: int) -> None:
        import torch
        import transformers

        super().__init__(folder)
        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AlbertModel.from_pretrained(folder / "st", attn_implementation="sdpa").eval()

    def forward(self, batch: Batch) -> np.ndarray:
        with self.torch.inference_mode():
            inputs = {name: self.torch.from_numpy(array) for name, array in batch.items()}
            return np.asarray(self.model(**inputs).last_hidden_state.numpy())


class OnnxExport(Peer):
    """An ONNX export of the same model, run by onnxruntime; `kind` is float, stock or int8."""

    def __init__(self, folder: Path, threads: int, kind: str) -> None:
        import onnxruntime as ort

        super().__init__(folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        path = export(folder, kind)
        self.bytes = path.stat().st_size
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = {i.name for i in self.session.get_inputs()}

    def forward(self, batch: Batch) -> np.ndarray:
        return np.asarray(self.session.run(None, {k: v for k, v in batch.items() if k in self.names})[0])


class OpenVino(Peer):
    """The same ONNX export in OpenVINO; `kind` is float, in float32, or int8, quantized by NNCF on the sample."""

    def __init__(self, folder: Path, threads: int, kind: str) -> None:
        import openvino

        super().__init__(folder)
        core = openvino.Core()
        path = export(folder, "float") if kind == "float" else quantize_openvino(folder, self.tokenizer)
        self.bytes = path.stat().st_size if kind == "float" else path.with_suffix(".bin").stat().st_size
        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if kind == "float":
            settings["INFERENCE_PRECISION_HINT"] = "f32"  # else bfloat16, where the CPU has it
        self.model = core.compile_model(str(path), "CPU", settings)
        self.names = {name for port in self.model.inputs for name in port.get_names()}

    def forward(self, batch: Batch) -> np.ndarray:
        return np.asarray(self.model({k: v for k, v in batch.items() if k in self.names})[0])


class SentenceTransformers:
    """sentence-transformers, torch, its own batching; 32 texts a batch is its default."""

    def __init__(self, folder: Path, threads: int, batch: int = BATCH) -> None:
        import sentence_transformers
        import torch

        torch.set_num_threads(threads)
        self.model = sentence_transformers.SentenceTransformer(str(folder / "st"), device="cpu")
        self.batch = batch

    def tune(self, texts: list[str]) -> int:
        """Choose the fastest batch size on some texts."""
        self.batch = fastest(BATCH_SIZES, lambda size: self.model.encode(texts, batch_size=size))
        return self.batch

    def embed(self, texts: list[str]) -> np.ndarray:
        return np.asarray(self.model.encode(texts, batch_size=self.batch))


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


def quantize_openvino(folder: Path, tokenizer: Any) -> Path:
    """The export in 8 bits by NNCF, for transformers, with the activations of the sample's texts."""
    import json

    import nncf
    import openvino

    target = folder / "onnx" / "nncf.xml"
    if not target.exists():
        model = openvino.Core().read_model(str(export(folder, "float")))
        names = {name for port in model.inputs for name in port.get_names()}
        texts = json.loads((folder / "works.json").read_text())["sample"]
        rows = (tokenizer([text], truncation=True, max_length=MAX_TOKENS, return_tensors="np") for text in texts)
        calibration = nncf.Dataset([{k: v for k, v in row.items() if k in names} for row in rows])
        quantized = nncf.quantize(model, calibration, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts))
        openvino.save_model(quantized, target, compress_to_fp16=False)
    return target


def ours(folder: Path, name: str, threads: int) -> Any:
    from albertkit import Albert

    return Albert(folder / name, threads=threads)


def tuned(make: Callable[..., Any], folder: Path, threads: int) -> Any:
    """A peer after `tune` on the sample."""
    import json

    peer = make(folder, threads)
    peer.tune(json.loads((folder / "works.json").read_text())["sample"])
    return peer


PEERS: dict[str, Callable[[Path, int], Any]] = {
    "transformers (SDPA)": Transformers,
    "sentence-transformers (torch)": SentenceTransformers,
    "onnxruntime, export": partial(OnnxExport, kind="float"),
    "onnxruntime, stock int8": partial(OnnxExport, kind="stock"),
    "onnxruntime, pre-processed int8": partial(OnnxExport, kind="int8"),
    "OpenVINO, float32": partial(OpenVino, kind="float"),
    "OpenVINO, NNCF int8": partial(OpenVino, kind="int8"),
}
RUNNERS: dict[str, Callable[[Path, int], Any]] = {
    **PEERS,
    **{name + TUNED: partial(tuned, make) for name, make in PEERS.items()},
    "albertkit, float32": lambda folder, threads: ours(folder, "float", threads),
    "albertkit, int8": lambda folder, threads: ours(folder, "int8", threads),
    "albertkit, 4-bit": lambda folder, threads: ours(folder, "int4", threads),
}
