"""Measurements for the planner: how fast this machine computes the layers of a shape, and what candidates really cost.

In: shapes, a length and threads; or `PlanCandidate`s (`cost.py`) and the model they are variants of. Out: `Machine`,
which predicts latencies, and a `Measurement` per candidate. After this file: `planner.py`, `profile.py`. Each
distinct layer is timed with random weights at its own size, because the speed of a product depends on it; where
layers alternate (groups, windows), a whole period is timed. Candidates are measured in a process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from onnx import TensorProto

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.compress.cost import PlanCandidate
from albertkit.compress.prune import PruneSettings, prune_heads_and_ffn, truncate_layers
from albertkit.compress.quantize import vector_cosines
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.quantized import QuantizedMatrix, is_quantizable, quantize_rows
from albertkit.runtime import graph as graphs
from albertkit.runtime.activation_moments import Progress, token_moments
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.embed import embed_windows, split_tokens
from albertkit.runtime.engine import Engine, cores, levels, open_graph
from albertkit.runtime.graph_builder import Builder, as_float
from albertkit.tokenizer import Tokenizer
from albertkit.weights import Shapes, encoder_shapes

SECONDS = 0.2  # for one measurement of a layer, at least
STRETCH = 0.02  # seconds of calls that are timed together
CANDIDATE_SECONDS = 0.5  # for the latency of a candidate
ROUNDS = 2  # how often everything is measured, some seconds apart; the faster round counts
VOCABULARY = 1000  # size of the word table in measured shapes
SPREAD = 0.02  # of random weights; larger ones make attention so sharp that it computes with slow denormal numbers
CHILD = "from albertkit.compress.benchmark import measure_in_child; measure_in_child()"

TimedShape = tuple[AlbertConfig, int]  # what `timed_shape` keeps of a shape, and the bits of its weights


# The machine -----------------------------------------------------------------------------------------------------


def typical_seconds(call: Callable[[], object], seconds: float = SECONDS, least: int = 7) -> float:
    """Seconds of a call: the first quartile of the means over stretches of calls.

    Other processes interrupt a program for milliseconds. Most short calls escape that, and no long one does, so
    single calls of a layer and of a model would not be comparable; stretches are.
    """
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start, calls = time.perf_counter(), 0
        while not calls or time.perf_counter() - start < STRETCH:
            call()
            calls += 1
        times.append((time.perf_counter() - start) / calls)
    return float(np.percentile(times, 25))


def peak_throughput(threads: int, bits: int = 32, size: int = 1024) -> float:
    """Operations per second of a large matrix product by onnxruntime, in float32 or int8."""
    rng = np.random.default_rng(0)
    b = Builder(levels())
    x = b.input("x", TensorProto.FLOAT, ["n", size])
    weight: np.ndarray | QuantizedMatrix = rng.normal(size=(size, size)).astype(np.float32)
    rows = rng.normal(size=(size, size)).astype(np.float32)
    if bits != 32:  # the integer product alone, without the quantization of its input
        x = b.node("QuantizeLinear", x, b.constant(1.0, np.float32), b.constant(0, np.uint8))
        out = b.integer_product(x, "w", quantize_rows(np.asarray(weight)), b.constant(0, np.uint8))
    else:
        out = b.product(x, "w", weight)
    session = open_graph(b.graph(out, ["n", size]), threads)
    return 2.0 * size**3 / typical_seconds(lambda: session.run(None, {"x": rows}), 0.2)


def timed_shape(config: AlbertConfig) -> AlbertConfig:
    """The part of a shape that is timed: one layer, or one period where layers alternate."""
    period = config.num_hidden_layers if config.num_hidden_groups > 1 else max(1, config.options.global_every)
    return config.replace(vocab_size=VOCABULARY, num_hidden_layers=min(period, config.num_hidden_layers))


@dataclass(frozen=True)
class Machine:
    """Measurements for texts of `length` tokens, one at a time."""

    threads: int
    length: int
    layer_seconds: Mapping[TimedShape, float] = field(repr=False)
    text_seconds: Mapping[TimedShape, float] = field(repr=False)
    """What a text costs besides its layers: padding, embedding, mean."""
    static_seconds: float
    """The same without an embedding."""
    peaks: dict[int, float]
    """Operations per second of a large matrix product, by bits."""

    def latency(self, config: AlbertConfig, bits: int = 32, depth: int | None = None) -> float:
        """Seconds for one text."""
        key = timed_shape(config), 32 if bits == 32 else 8  # 4-bit weights are unpacked into 8-bit ones
        if key not in self.layer_seconds:
            raise AlbertkitError(
                f"the machine was not measured for this shape (H {config.hidden_size}, F {config.intermediate_size}, "
                f"{config.num_attention_heads} heads) in {key[1]} bits. Pass it to `measure_machine`."
            )
        return self.text_seconds[key] + (depth or config.num_hidden_layers) * self.layer_seconds[key]

    def faster(self, other: Machine) -> Machine:
        """The faster of two measurements of the same things, one by one: other processes only slow things down."""
        return replace(
            self,
            layer_seconds={key: min(s, other.layer_seconds[key]) for key, s in self.layer_seconds.items()},
            text_seconds={key: min(s, other.text_seconds[key]) for key, s in self.text_seconds.items()},
            static_seconds=min(self.static_seconds, other.static_seconds),
        )


def measure_machine(
    configs: Sequence[AlbertConfig],
    length: int,
    threads: int | None = None,
    bits: Sequence[int] = (32, 8),
    progress: Progress = lambda _: None,
    rounds: int = ROUNDS,
) -> Machine:
    """Measure the machine for some shapes, with weights of so many bits."""
    threads = cores() if threads is None else threads
    shapes = list(dict.fromkeys((timed_shape(config), kind) for kind in bits for config in configs))
    fastest, peaks = None, {kind: peak_throughput(threads, kind) for kind in bits}
    for _ in range(rounds):  # a slow moment of the machine does not hit the same layer twice
        layers, texts = {}, {}
        for number, (config, kind) in enumerate(shapes, 1):
            progress(f"measuring layer {number} of {len(shapes)}, {'float32' if kind == 32 else 'int8'}")
            layers[config, kind], texts[config, kind] = _layer_seconds(config, kind, length, threads)
        static = typical_seconds(lambda: _mean(_one_text(length), np.zeros((1, length, 128), np.float32)), 0.02)
        machine = Machine(threads, length, layers, texts, static, peaks)
        fastest = machine if fastest is None else fastest.faster(machine)
    if fastest is None:
        raise AlbertkitError(f"rounds={rounds} is too small: the machine is measured at least once. Pass 1 or more.")
    return fastest


def _layer_seconds(config: AlbertConfig, bits: int, length: int, threads: int) -> tuple[float, float]:
    """Seconds of a layer, and of what a text costs besides its layers."""
    engine = Engine(config, random_weights(encoder_shapes(config, pooler=False), bits), threads)
    states, lengths = engine.run(_one_text(length), 0), np.array([length], np.int32)
    depth = config.num_hidden_layers
    layer = typical_seconds(lambda: engine.apply_layers(states, lengths, 0, depth)) / depth

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


def random_weights(shapes: Shapes, bits: int) -> graphs.Weights:
    """Random weights, which cost as much time as trained ones."""
    rng = np.random.default_rng(0)
    noise = SPREAD * rng.standard_normal(1_000_003, np.float32)  # drawn once: large models would take seconds
    weights: graphs.Weights = {}
    for name, shape in shapes.items():
        weight = np.resize(noise[rng.integers(len(noise) // 2) :], shape)
        if name.endswith("norm.weight"):
            weights[name] = np.ones(shape, np.float32)
        elif bits == 32 or not is_quantizable(f"encoder.{name}", weight):
            weights[name] = weight
        else:
            matrix = quantize_rows(weight)
            smooth = np.ones(shape[1], np.float32) if ".attention." in name or ".ffn.up." in name else None
            weights[name] = QuantizedMatrix(matrix.values, matrix.scale, smooth)
    return weights


# Candidates ------------------------------------------------------------------------------------------------------


class Metric(Protocol):
    """A function that scores the model in a folder."""

    def __call__(self, folder: Path, depth: int | None = None) -> float:
        """The score on labelled examples, at a depth or the model's own."""


@dataclass(frozen=True)
class CalibrationData:
    """What candidates are fitted to and compared on."""

    ids: list[list[int]]
    """Texts to calibrate with, as token ids."""
    held: list[list[int]]
    """Texts to compare vectors on."""
    metric: Metric | None = None
    """The score of a folder on labelled examples."""


@dataclass(frozen=True)
class Measurement:
    """What a candidate was measured to cost."""

    latency: float
    memory: float
    """Most bytes that it added to the process."""
    process: float
    """Most bytes of the whole process."""
    quality: float | None = None
    loss: float | None = None
    """How far the quality is below that of the full model."""


def measure_candidates(
    candidates: Sequence[PlanCandidate],
    model: Artifact | None,
    tokenizer: Tokenizer,
    data: CalibrationData | None,
    machine: Machine,
    progress: Progress = lambda _: None,
) -> list[Measurement]:
    """Build and measure each candidate; without a model, with random weights. Length and threads are the machine's."""
    found, full_score = [], None
    with tempfile.TemporaryDirectory() as scratch:
        if data is not None and data.metric is not None and model is not None:
            write_artifact(model, Path(scratch) / "full")
            full_score = data.metric(Path(scratch) / "full")
        for number, candidate in enumerate(candidates, 1):
            progress(f"measuring candidate {number} of {len(candidates)}: {candidate.name}")
            folder = Path(scratch) / str(number)
            build_candidate(candidate, model, tokenizer, data, folder)
            cost = measure_folder(folder, machine.length, machine.threads)
            measurement = Measurement(cost["latency"], cost["memory"], cost["process"])
            if data is not None and model is not None and not candidate.is_static:  # vectors of a table are others
                measurement = _with_quality(measurement, model, folder, data, full_score)
            found.append(measurement)
    return found


def _with_quality(
    measurement: Measurement, model: Artifact, folder: Path, data: CalibrationData, full_score: float | None
) -> Measurement:
    if data.metric is not None and full_score is not None:
        quality = data.metric(folder)
        return replace(measurement, quality=quality, loss=full_score - quality)
    quality = float(vector_cosines(model, read_artifact(folder), data.held).mean())
    return replace(measurement, quality=quality, loss=1 - quality)


def build_candidate(
    candidate: PlanCandidate, model: Artifact | None, tokenizer: Tokenizer, data: CalibrationData | None, folder: Path
) -> Artifact:
    """Write a candidate as an artifact."""
    config, bits = candidate.config, None if candidate.bits == 32 else candidate.bits
    if model is None or candidate.is_static:
        artifact = random_model(config.replace(vocab_size=max(config.vocab_size, tokenizer.vocab_size)), tokenizer)
        write_artifact(artifact, folder, bits=bits)
        return artifact
    if data is None:
        raise AlbertkitError("no texts were given: the variants of a model are fitted to texts. Pass some.")
    settings = PruneSettings(heads=config.num_attention_heads, ffn=config.intermediate_size)
    artifact = prune_heads_and_ffn(truncate_layers(model, config.num_hidden_layers), settings, data.ids)
    moments = None if bits is None else token_moments(artifact.config, dict(artifact.weights), data.ids)
    write_artifact(artifact, folder, bits=bits, moments=moments)
    return artifact


def random_model(config: AlbertConfig, tokenizer: Tokenizer) -> Artifact:
    """An untrained model."""
    weights = {n: as_float(w) for n, w in random_weights(encoder_shapes(config, pooler=False), 32).items()}
    return Artifact(config, weights, tokenizer, ArtifactMetadata(task="embed"))


def tokenizer_memory(tokenizer: Tokenizer) -> float:
    """Bytes that a tokenizer adds to a process."""
    from albertkit.compress.static_model import static_config

    config = static_config(AlbertConfig(), tokenizer.vocab_size, 1)
    with tempfile.TemporaryDirectory() as scratch:
        write_artifact(random_model(config, tokenizer), Path(scratch) / "table")
        return measure_folder(Path(scratch) / "table", 8, 1)["memory"]


# In a process of its own -----------------------------------------------------------------------------------------


def measure_folder(folder: Path | None, length: int, threads: int) -> dict[str, float]:
    """Latency and memory of the model in a folder, in a new process; without a folder, of a process without a model."""
    request = json.dumps({"folder": None if folder is None else str(folder), "length": length, "threads": threads})
    done = subprocess.run([sys.executable, "-c", CHILD], input=request, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise AlbertkitError(f"measuring {folder} in a process of its own failed: {reason[:200]}")
    cost: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return cost


def measure_in_child() -> None:
    """The work of the new process: read a request from stdin, write the measurement to stdout."""
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
    """Bytes of this process in memory now (VmRSS) or at most (VmHWM)."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next((row for row in status.read_text().splitlines() if row.startswith(f"{name}:")), "0 0")
        return float(line.split()[1]) * 1024
    import resource

    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if sys.platform == "darwin" else most * 1024
