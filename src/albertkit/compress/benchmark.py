"""Measurements for the planner: the speed of this machine for the layers of a shape, and the real cost of a model.

In: shapes, a length and threads, or a model folder. Out: `Machine`, which predicts latencies, and the latency and
memory of a folder, measured in a separate process. Each distinct layer is timed with random weights at its real size,
because the speed of a matrix product depends on it. Where layers alternate (groups, windows), a whole period is timed.
After this file: `planner.py`.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.compress.cost import static_config
from albertkit.config import AlbertConfig
from albertkit.cpu_cores import cores
from albertkit.errors import AlbertkitError
from albertkit.quantized import SMOOTHED, QuantizedMatrix, is_quantizable, quantize_rows
from albertkit.runtime import graph as graphs
from albertkit.runtime.activation_moments import Progress
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.embed import embed_windows, split_tokens
from albertkit.runtime.engine import Engine
from albertkit.runtime.graph_builder import as_float
from albertkit.tokenizer import Tokenizer
from albertkit.weights import Shapes, encoder_shapes

SECONDS = 0.2  # minimum time of one measurement of a layer
STRETCH = 0.02  # seconds of calls timed together
MIN_STRETCHES = 7
CANDIDATE_SECONDS = 0.5  # time to measure the latency of a model
ROUNDS = 2  # measurement rounds, some seconds apart; the faster one counts
VOCABULARY = 1000  # size of the word table in measured shapes
# Standard deviation of random weights. Larger ones make attention so sharp that slow denormal numbers occur.
SPREAD = 0.02
CHILD = "from albertkit.compress.benchmark import measure_in_child; measure_in_child()"

TimedShape = tuple[AlbertConfig, int]  # the result of `timed_shape`, and the bits of the weights


# The machine -----------------------------------------------------------------------------------------------------


def typical_seconds(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call: the first quartile of the means over stretches of calls.

    Other processes interrupt a program for milliseconds. This affects few short calls but all long ones, so single
    calls of a layer and of a model are not comparable. Stretches of equal duration are.
    """
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < MIN_STRETCHES or time.perf_counter() < end:
        start, calls = time.perf_counter(), 0
        while not calls or time.perf_counter() - start < STRETCH:
            call()
            calls += 1
        times.append((time.perf_counter() - start) / calls)
    return float(np.percentile(times, 25))


def timed_shape(config: AlbertConfig) -> AlbertConfig:
    """The part of a shape that is timed: one layer, or one period where layers alternate."""
    options = config.options
    if config.num_hidden_groups > 1 or options.outer_intermediate_size:
        return config.replace(vocab_size=VOCABULARY)
    layers = min(max(1, options.global_every), config.num_hidden_layers)
    # layers of the same size take the same time
    options = replace(options, prelude_layers=0, coda_layers=0, ffn_groups=0)
    return config.replace(vocab_size=VOCABULARY, num_hidden_layers=layers, options=options)


@dataclass(frozen=True)
class Machine:
    """Measurements for texts of `length` tokens, one at a time."""

    threads: int
    length: int
    layer_seconds: Mapping[TimedShape, float] = field(repr=False)
    text_seconds: Mapping[TimedShape, float] = field(repr=False)
    """The cost of a text besides its layers: padding, embedding, mean."""
    static_seconds: float
    """The same without an embedding."""

    def latency(self, config: AlbertConfig, bits: int = 32, depth: int | None = None) -> float:
        """Seconds for one text."""
        if config.options.static:
            return self.static_seconds
        key = timed_shape(config), 32 if bits == 32 else 8  # 4-bit weights are unpacked into 8-bit ones
        if key not in self.layer_seconds:
            raise AlbertkitError(
                f"the machine was not measured for this shape (H {config.hidden_size}, F {config.intermediate_size}, "
                f"{config.num_attention_heads} heads) in {key[1]} bits. Pass it to `measure_machine`."
            )
        return self.text_seconds[key] + (depth or config.num_hidden_layers) * self.layer_seconds[key]


def measure_machine(
    configs: Sequence[AlbertConfig],
    length: int,
    threads: int | None = None,
    bits: Sequence[int] = (32, 8),
    progress: Progress = lambda _: None,
    rounds: int = ROUNDS,
) -> Machine:
    """Measure the machine for some shapes and numbers of bits.

    For each layer, the faster of several rounds counts, since other processes can only slow it down.
    """
    threads = cores() if threads is None else threads
    shapes = list(dict.fromkeys((timed_shape(config), kind) for kind in bits for config in configs))
    layers, texts = dict.fromkeys(shapes, math.inf), dict.fromkeys(shapes, math.inf)
    static = math.inf
    for _ in range(rounds):
        for number, (config, kind) in enumerate(shapes, 1):
            progress(f"measuring layer {number} of {len(shapes)}, {'float32' if kind == 32 else 'int8'}")
            layer, text = _layer_seconds(config, kind, length, threads)
            layers[config, kind], texts[config, kind] = min(layer, layers[config, kind]), min(text, texts[config, kind])
        table = typical_seconds(lambda: _mean(_one_text(length), np.zeros((1, length, 128), np.float32)), 0.02)
        static = min(static, table)
    return Machine(threads, length, layers, texts, static)


def _layer_seconds(config: AlbertConfig, bits: int, length: int, threads: int) -> tuple[float, float]:
    """Seconds of a layer, and of a text besides its layers."""
    engine = Engine(config, random_weights(encoder_shapes(config, pooler=False), bits), threads)
    states, lengths = engine.run(_one_text(length), 0), np.array([length], np.int32)
    depth = config.num_hidden_layers

    def apply_layers() -> np.ndarray:
        return engine.read_out(engine.apply_layers(states, lengths, 0, depth), lengths, depth)

    layer = typical_seconds(apply_layers, SECONDS) / depth

    def without_layers() -> float:
        batch = _one_text(length)
        return _mean(batch, engine.run(batch, 0))

    return layer, typical_seconds(without_layers, SECONDS / 4)


def _one_text(length: int) -> TokenBatch:
    (batch,) = token_batches([[1] * length], token_budget=length)
    return batch


def _mean(batch: TokenBatch, states: np.ndarray) -> float:
    """As in `Albert.embed`: the mean of the hidden states, and its length."""
    inside = np.arange(states.shape[1])[None, :, None] < batch.lengths[:, None, None]
    return float(np.linalg.norm(np.where(inside, states, 0).sum(axis=1) / batch.lengths[:, None]))


# Untrained models ------------------------------------------------------------------------------------------------


def random_weights(shapes: Shapes, bits: int) -> graphs.Weights:
    """Random weights, which take the same time as trained ones."""
    rng = np.random.default_rng(0)
    noise = SPREAD * rng.standard_normal(1_000_003, np.float32)  # drawn once: all weights would take seconds
    weights: graphs.Weights = {}
    for name, shape in shapes.items():
        weight = np.resize(noise[rng.integers(len(noise) // 2) :], shape)
        if name.endswith("norm.weight"):
            weights[name] = np.ones(shape, np.float32)
        elif bits == 32 or not is_quantizable(f"encoder.{name}", weight):
            weights[name] = weight
        else:
            matrix = quantize_rows(weight)
            is_smoothed = name.removesuffix(".weight").endswith(SMOOTHED)
            smooth = np.ones(shape[1], np.float32) if is_smoothed else None
            weights[name] = QuantizedMatrix(matrix.values, matrix.scale, smooth)
    return weights


def random_model(config: AlbertConfig, tokenizer: Tokenizer) -> Artifact:
    weights = {n: as_float(w) for n, w in random_weights(encoder_shapes(config, pooler=False), 32).items()}
    return Artifact(config, weights, tokenizer, ArtifactMetadata(task="embed"))


# In a separate process -------------------------------------------------------------------------------------------


def tokenizer_memory(tokenizer: Tokenizer) -> float:
    """Bytes that a tokenizer adds to a process."""
    config = static_config(AlbertConfig(), tokenizer.vocab_size, 1)
    with tempfile.TemporaryDirectory() as scratch:
        write_artifact(random_model(config, tokenizer), Path(scratch) / "table")
        return measure_folder(Path(scratch) / "table", 8, 1)["memory"]


def measure_folder(folder: Path | None, length: int, threads: int) -> dict[str, float]:
    """Latency and memory of the model in a folder, in a new process. Without a folder, no model is loaded.

    latency: seconds for one text; memory: peak bytes added by the model; process: peak bytes of the process.
    """
    request = json.dumps({"folder": None if folder is None else str(folder), "length": length, "threads": threads})
    done = subprocess.run([sys.executable, "-c", CHILD], input=request, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise AlbertkitError(f"measuring {folder} in a separate process failed: {reason[:200]}")
    cost: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return cost


def measure_in_child() -> None:
    """The main function of the new process: read a request from stdin, write the measurement to stdout."""
    import onnxruntime  # noqa: F401  every model needs it, so it is loaded before memory is counted

    request = json.load(sys.stdin)
    before = resident_bytes("VmRSS")
    cost = {"latency": 0.0, "memory": 0.0}
    if request["folder"] is not None:
        albert = Albert(request["folder"], threads=request["threads"])
        room = min(request["length"], albert.max_tokens) - sum(map(len, albert.special_tokens))
        ids = np.random.default_rng(0).integers(5, albert.tokenizer.vocab_size, max(1, room)).tolist()
        options = albert.embed_options()

        def embed() -> np.ndarray:
            return embed_windows(albert, split_tokens(albert, [ids], options.long_texts), options)

        cost["latency"] = typical_seconds(embed, CANDIDATE_SECONDS)
    cost["process"] = max(resident_bytes("VmHWM"), resident_bytes("VmRSS"))
    cost["memory"] = cost["process"] - before
    sys.stdout.write(json.dumps(cost) + "\n")


def resident_bytes(name: str) -> float:
    """Bytes of this process in memory: current (VmRSS) or peak (VmHWM)."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next((row for row in status.read_text().splitlines() if row.startswith(f"{name}:")), "0 0")
        return float(line.split()[1]) * 1024
    import resource

    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if sys.platform == "darwin" else most * 1024
