"""Sentence encoders to compare in `builtin.py`: albertkit models and common ONNX models. All give unit vectors.

In: model folders. Out: `embed(texts)`, and seconds, measured in interleaved rounds with each encoder in a separate
process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32


class Ours:
    """albertkit at one depth."""

    def __init__(self, folder: Path, depth: int, threads: int | None = None) -> None:
        from albertkit import Albert

        self.albert = Albert(folder, depth=depth, threads=threads)

    def embed(self, texts: list[str]) -> np.ndarray:
        return self.albert.embed(texts, long_texts="truncate", normalize=True)


class Onnx:
    """onnxruntime and tokenizers: batches of 32 sorted by length, padded, mean of the tokens."""

    def __init__(self, folder: Path, file: Path, threads: int | None = None) -> None:
        import onnxruntime as ort
        from tokenizers import Tokenizer

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
        self.session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.names = {i.name for i in self.session.get_inputs()}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(max_length(folder))
        self.tokenizer.enable_padding()

    def embed(self, texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        parts = []
        for start in range(0, len(order), BATCH):
            batch = self.tokenizer.encode_batch([texts[i] for i in order[start : start + BATCH]])
            mask = np.array([e.attention_mask for e in batch])
            ids = np.array([e.ids for e in batch])
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = self.session.run(None, {k: v for k, v in inputs.items() if k in self.names})[0]
            vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]
            parts.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
        found = np.concatenate(parts).astype(np.float32)
        out = np.empty_like(found)
        out[order] = found
        return out


def max_length(folder: Path) -> int:
    """Tokens a sentence encoder reads: what its sentence-transformers config says, else its tokenizer's."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        if (folder / name).is_file():
            return min(512, int(json.loads((folder / name).read_text()).get(key) or 512))
    return 512


def onnx_files(folder: Path, scratch: Path | None = None) -> dict[str, Path]:
    """float32 and int8 of an ONNX folder; an int8 that does not come with it is made with onnxruntime's own tool, if
    there is a `scratch` folder.
    """
    home = folder / "onnx" if (folder / "onnx").is_dir() else folder
    files = {"float32": home / "model.onnx"}
    quantized = [p for n in ("model_quantized.onnx", "model_int8.onnx") if (p := home / n).is_file()]
    if quantized:
        files["int8"] = quantized[0]
    elif scratch is not None:
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.shape_inference import quant_pre_process

        ready, files["int8"] = scratch / f"{folder.name}.onnx", scratch / f"{folder.name}-int8.onnx"
        quant_pre_process(str(files["float32"]), str(ready), skip_symbolic_shape=True)
        quantize_dynamic(str(ready), str(files["int8"]), weight_type=QuantType.QInt8, per_channel=True)
    return files


# Time ------------------------------------------------------------------------------------------------------------

Maker = tuple[
    type, tuple[Any, ...]
]  # a class above and what it is made with, so that it can be made in another process


def run_encoder(maker: Maker, texts: list[str], pipe: Any) -> None:
    """A process with one encoder: embeds when told to, and answers with the seconds it took."""
    kind, arguments = maker
    encoder = kind(*arguments)
    encoder.embed(texts[:BATCH])
    pipe.send(0.0)
    while pipe.recv():
        start = time.perf_counter()
        encoder.embed(texts)
        pipe.send(time.perf_counter() - start)


def measure_speeds(
    makers: dict[str, Maker], texts: list[str], rounds: int, base: str, report: Callable[[str], None]
) -> dict:
    """Texts a second of each encoder (the median round), and the median of its rounds' ratios to `base`.

    In each round every encoder has its turn, so that a busy moment hits all alike; each waits asleep in a process of
    its own.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name, maker in makers.items():
        pipes[name], child_pipe = context.Pipe()
        processes.append(context.Process(target=run_encoder, args=(maker, texts, child_pipe), daemon=True))
        processes[-1].start()
        pipes[name].recv()
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for number in range(rounds):
        for name, pipe in pipes.items():
            pipe.send(True)
            seconds[name].append(pipe.recv())
        report(f"round {number + 1}: " + ", ".join(f"{n} {len(texts) / s[-1]:.1f}" for n, s in seconds.items()))
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    return {
        name: {
            "texts_per_second": len(texts) / statistics.median(runs),
            "ratio": statistics.median(b / s for b, s in zip(seconds[base], runs, strict=True)),
        }
        for name, runs in seconds.items()
    }
