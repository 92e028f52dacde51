"""What this machine can do, measured in seconds: large matrix products, and one layer of each shape in question.

In: threads, a length, and the shapes to be known about. Out: `Machine`, which predicts the time of those shapes at any depth.
Next: `fit.py` proposes models by it; `profile.py` compares a model with the peak.

Each distinct layer is opened with random weights by the engine itself and timed at its own sizes, since the pace of a product depends on them; so is what a text costs beside
its layers. A depth costs no new measurement. Where layers take turns, as in groups or with a window, a whole turn is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import TensorProto

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.quantized import QuantizedMatrix, is_quantizable, quantize_rows
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.engine import Engine, cores, levels, open_graph
from albertkit.runtime.graph_builder import Builder
from albertkit.weights import Shapes, encoder_shapes, layer_shapes

SECONDS = 0.2  # that one measurement takes at least, where a call is short
STRETCH = 0.02  # seconds of calls that are timed together
ROUNDS = 2  # times that everything is measured, some seconds apart; the faster counts
WORDS = 1000  # in the tables of measured models
SPREAD = 0.02  # of random weights; much larger ones make attention so sharp that it computes with denormal numbers, which are slow

Key = tuple[AlbertConfig, int]  # a shape, of which `timed_shape` is left, and the bits of its weights


def typical_seconds(call: Callable[[], object], seconds: float = SECONDS, least: int = 7) -> float:
    """Seconds of a call, from means over stretches of calls: a quarter of them were quicker.

    Other work on the machine stops a program for milliseconds. Most short calls escape that and no long one does, so that single calls of a layer and of a
    model would not compare; stretches do.
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
    """Operations a second of a large matrix product, in float32 or int8, by onnxruntime."""
    rng = np.random.default_rng(0)
    b = Builder(levels())
    x = b.input("x", TensorProto.FLOAT, ["n", size])
    weight: np.ndarray | QuantizedMatrix = rng.normal(size=(size, size)).astype(np.float32)
    rows = rng.normal(size=(size, size)).astype(np.float32)
    if bits != 32:  # the whole-number product alone, without what makes its input
        x = b.node("QuantizeLinear", x, b.constant(1.0, np.float32), b.constant(0, np.uint8))
        out = b.whole(x, "w", quantize_rows(np.asarray(weight)), b.constant(0, np.uint8))
    else:
        out = b.product(x, "w", weight)
    session = open_graph(b.graph(out, ["n", size]), threads)
    return 2.0 * size**3 / typical_seconds(lambda: session.run(None, {"x": rows}), 0.2)


def timed_shape(config: AlbertConfig) -> AlbertConfig:
    """What of a shape is timed: one layer, or as many as take turns."""
    turn = config.num_hidden_layers if config.num_hidden_groups > 1 else max(1, config.options.global_every)
    return config.replace(vocab_size=WORDS, num_hidden_layers=min(turn, config.num_hidden_layers))


@dataclass(frozen=True)
class Machine:
    """Measurements for texts of `length` tokens, one at a time."""

    threads: int
    length: int
    layer: Mapping[Key, float] = field(repr=False)
    """Seconds of a layer."""
    beside: Mapping[Key, float] = field(repr=False)
    """Seconds that a text costs beside its layers: packing, embedding, mean."""
    around: float
    """The same without an embedding."""
    peaks: dict[int, float]
    """Operations a second of a large matrix product, by bits."""

    def latency(self, config: AlbertConfig, bits: int = 32, depth: int | None = None) -> float:
        """Seconds for one text."""
        key = timed_shape(config), 32 if bits == 32 else 8  # 4-bit weights are opened into 8-bit ones
        if key not in self.layer:
            raise AlbertkitError(
                f"the machine was not measured for this shape (H {config.hidden_size}, F {config.intermediate_size}, "
                f"{config.num_attention_heads} heads) in {key[1]} bits; give it to `measure_machine`"
            )
        return self.beside[key] + (depth or config.num_hidden_layers) * self.layer[key]

    def faster(self, other: Machine) -> Machine:
        """The better of two measurements of the same things, one by one. Other work makes a measurement only worse."""
        return replace(
            self,
            layer={key: min(seconds, other.layer[key]) for key, seconds in self.layer.items()},
            beside={key: min(seconds, other.beside[key]) for key, seconds in self.beside.items()},
            around=min(self.around, other.around),
        )


def measure_machine(
    configs: Sequence[AlbertConfig],
    length: int,
    threads: int | None = None,
    kinds: Sequence[int] = (32, 8),
    progress: Callable[[str], None] = lambda _: None,
    rounds: int = ROUNDS,
) -> Machine:
    """Measure the machine for some shapes, with weights of so many bits."""
    threads = cores() if threads is None else threads
    keys = list(dict.fromkeys((timed_shape(config), kind) for kind in kinds for config in configs))
    found, peaks = None, {kind: peak_throughput(threads, kind) for kind in kinds}
    for _ in range(rounds):  # a slow moment of the machine does not meet the same layer twice
        layer, beside = {}, {}
        for number, (config, kind) in enumerate(keys, 1):
            progress(f"measuring layer {number} of {len(keys)}, {'float32' if kind == 32 else 'int8'}")
            layer[config, kind], beside[config, kind] = _times(config, kind, length, threads)
        around = typical_seconds(lambda: _mean(_packed(length), np.zeros((1, length, 128), np.float32)), 0.02)
        made = Machine(threads, length, layer, beside, around, peaks)
        found = made if found is None else found.faster(made)
    if found is None:
        raise AlbertkitError(f"rounds is {rounds}; measure at least once")
    return found


def _times(config: AlbertConfig, bits: int, length: int, threads: int) -> tuple[float, float]:
    """Seconds of a layer, and of all that a text costs beside its layers."""
    engine = Engine(config, random_weights(encoder_shapes(config, pooler=False), bits), threads)
    states, lengths = engine.run(_packed(length), 0), np.array([length], np.int32)
    depth = config.num_hidden_layers
    layer = typical_seconds(lambda: engine.layers(states, lengths, 0, depth)) / depth

    def besides() -> float:
        batch = _packed(length)
        return _mean(batch, engine.run(batch, 0))

    return layer, typical_seconds(besides, SECONDS / 4)


def _packed(length: int) -> TokenBatch:
    """One text."""
    (batch,) = token_batches([[1] * length], token_budget=length)
    return batch


def _mean(batch: TokenBatch, states: np.ndarray) -> float:
    """As in `Albert`: the mean of the hidden states, and its length."""
    inside = np.arange(states.shape[1])[None, :, None] < batch.lengths[:, None, None]
    return float(np.linalg.norm(np.where(inside, states, 0).sum(axis=1) / batch.lengths[:, None]))


def random_weights(shapes: Shapes, bits: int) -> graphs.Weights:
    """Random weights, which cost what trained ones cost."""
    rng = np.random.default_rng(0)
    noise = SPREAD * rng.standard_normal(1_000_003, np.float32)  # drawn once, since large models take seconds
    made: graphs.Weights = {}
    for name, shape in shapes.items():
        weight = np.resize(noise[rng.integers(len(noise) // 2) :], shape)
        if name.endswith("norm.weight"):
            made[name] = np.ones(shape, np.float32)
        elif bits == 32 or not is_quantizable(f"encoder.{name}", weight):
            made[name] = weight
        else:
            matrix = quantize_rows(weight)
            smooth = np.ones(shape[1], np.float32) if ".attention." in name or ".ffn.up." in name else None
            made[name] = QuantizedMatrix(matrix.values, matrix.scale, smooth)
    return made


def layer_weights(config: AlbertConfig, bits: int) -> graphs.Weights:
    """One layer with random weights."""
    return random_weights(layer_shapes(config, "layer"), bits)
