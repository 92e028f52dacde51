"""What this machine can do, measured in seconds: matrix products, and the blocks of a layer at the sizes in question.

In: threads, a length, and the range of sizes to be known about. Out: `Machine`, which predicts the time of any shape in that range.
Next: `fit.py` proposes models by it; `profile.py` compares a model with the peak.

A layer's time is that of its two blocks (attention with its products; feed-forward with its activation), which are measured on a grid of
sizes with the very graphs that the engine runs, and read between grid points on a logarithmic scale; plus what each call costs. An
unknown size of a block, a number of heads or a depth costs no new measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from onnx import TensorProto

from albertkit.compress.quantize import Matrix, quantize_rows
from albertkit.config import AlbertConfig, Options
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import rows
from albertkit.runtime.builder import Builder
from albertkit.runtime.engine import cores, levels, open_graph
from albertkit.weights import embedding_shapes, layer_shapes

SECONDS = 0.1  # that one measurement takes at least, where a call is short
HEAD = 64  # width of a head in measurements


def usual(call: Callable[[], object], seconds: float = SECONDS, least: int = 7) -> float:
    """Seconds of a call: a quarter of many calls were quicker. Other work on the machine rarely makes that number worse."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.percentile(times, 25))


def peak(threads: int, bits: int = 32, size: int = 1024) -> float:
    """Operations a second of a large matrix product, in float32 or int8, by onnxruntime."""
    rng = np.random.default_rng(0)
    b = Builder(levels())
    x = b.input("x", TensorProto.FLOAT, ["n", size])
    weight: np.ndarray | Matrix = rng.normal(size=(size, size)).astype(np.float32)
    rows = rng.normal(size=(size, size)).astype(np.float32)
    if bits != 32:  # the whole-number product alone, without what makes its input
        x = b.node("QuantizeLinear", x, b.constant(1.0, np.float32), b.constant(0, np.uint8))
        out = b.whole(x, "w", quantize_rows(np.asarray(weight)), b.constant(0, np.uint8))
    else:
        out = b.product(x, "w", weight)
    session = open_graph(b.graph(out, ["n", size]), threads)
    return 2.0 * size**3 / usual(lambda: session.run(None, {"x": rows}), 0.2)


@dataclass(frozen=True)
class Surface:
    """Seconds on a grid of two sizes, read between its points."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    seconds: np.ndarray  # (first, second)

    def at(self, a: int, b: int) -> float:
        """Seconds at two sizes; beyond the grid, in proportion to the size."""
        low, high = min(max(a, self.first[0]), self.first[-1]), min(max(b, self.second[0]), self.second[-1])
        rows = [_between(self.second, high, line) for line in np.log(self.seconds)]
        return math.exp(_between(self.first, low, np.array(rows))) * (a / low) * (b / high)


def _between(sizes: Sequence[int], size: int, values: np.ndarray) -> float:
    return float(np.interp(math.log(size), np.log(sizes), values))


@dataclass(frozen=True)
class Machine:
    """Measurements for texts of `length` tokens, one at a time."""

    threads: int
    length: int
    attention: dict[int, Surface] = field(repr=False)
    """By bits, over H and A."""
    ffn: dict[int, Surface] = field(repr=False)
    """By bits, over H and F."""
    embedding: Surface = field(repr=False)
    """Over E and H."""
    head: dict[int, float]
    """Seconds that one head more costs at equal width, by bits."""
    call: float
    """Seconds that any call of onnxruntime costs."""
    around: float
    """Seconds that a text costs beside its layers and embedding."""
    peaks: dict[int, float]
    """Operations a second of a large matrix product, by bits."""

    def latency(self, config: AlbertConfig, bits: int = 32, depth: int | None = None) -> float:
        """Seconds for one text."""
        kind = 32 if bits == 32 else 8  # 4-bit weights are opened into 8-bit ones
        h, uses = config.hidden_size, (depth or config.num_hidden_layers) * config.inner_group_num
        layer = self.attention[kind].at(h, config.attention_size) + self.ffn[kind].at(h, config.intermediate_size)
        layer += self.head[kind] * (config.num_attention_heads - config.attention_size / HEAD)
        return self.around + self.embedding.at(config.embedding_size, h) + uses * (layer + self.call)


def measure(
    configs: Sequence[AlbertConfig],
    length: int,
    threads: int | None = None,
    kinds: Sequence[int] = (32, 8),
    progress: Callable[[str], None] = lambda _: None,
) -> Machine:
    """Measure the machine at the sizes that some shapes span."""
    threads = cores() if threads is None else threads
    hidden = _grid([c.hidden_size for c in configs])
    heads = _grid([max(HEAD, c.attention_size) for c in configs], HEAD)
    wide = _grid([c.intermediate_size for c in configs])
    narrow = _grid([c.embedding_size for c in configs])
    call = _empty_call()
    options = next((c.options for c in configs if c.options.active()), Options())  # variants of one model have the same
    attention, ffn, head = {}, {}, {}
    for kind in kinds:
        progress(f"measuring {'float32' if kind == 32 else 'int8'}")
        block = partial(_attention_time, length, threads, kind, options)
        attention[kind] = _surface(hidden, heads, block, call)
        ffn[kind] = _surface(hidden, wide, partial(_ffn_time, length, threads, kind), call)
        many, few = (block(256, 256, width) for width in (16, HEAD))
        head[kind] = max(0.0, many - few) / 12
    progress("measuring the embedding")
    places = _surface(narrow, hidden, partial(_embedding_time, length, options))
    peaks = {kind: peak(threads, kind) for kind in kinds}
    return Machine(threads, length, attention, ffn, places, head, call, _around(length, hidden[0]), peaks)


def _grid(sizes: Sequence[int], least: int = 32) -> tuple[int, ...]:
    """Powers of two that hold the sizes between them."""
    low = max(least, 2 ** int(math.log2(max(1, min(sizes)))))
    high = max(2 * low, 2 ** math.ceil(math.log2(max(sizes))))
    return tuple(2**n for n in range(int(math.log2(low)), int(math.log2(high)) + 1))


def _surface(
    first: tuple[int, ...], second: tuple[int, ...], time_of: Callable[[int, int], float], less: float = 0.0
) -> Surface:
    return Surface(first, second, np.array([[max(time_of(a, b) - less, 1e-7) for b in second] for a in first]))


def _random(rng: np.random.Generator, rows: int, columns: int, bits: int) -> np.ndarray | Matrix:
    weight = rng.standard_normal((rows, columns), np.float32)
    if bits == 32:
        return weight
    made = quantize_rows(weight)
    return Matrix(made.values, made.scale, np.ones(columns, np.float32))


def layer_weights(config: AlbertConfig, bits: int, seed: int = 0) -> graphs.Weights:
    """One layer with random weights, which cost what trained ones cost."""
    rng = np.random.default_rng(seed)
    made: graphs.Weights = {}
    for name, shape in layer_shapes(config, "layer").items():
        if len(shape) == 2 and ".low." not in name and ".theta" not in name:
            made[name] = _random(rng, *shape, bits)
        else:
            made[name] = rng.normal(size=shape).astype(np.float32)
    return made


def _attention_time(
    length: int, threads: int, bits: int, options: Options, hidden: int, inner: int, width: int = HEAD
) -> float:
    """Seconds of a layer's first half, with heads of `width`; with a window, of a mean layer."""
    heads = max(1, inner // width)
    options = replace(options, head_size=width, low_rank=min(options.low_rank, width - 1))
    config = AlbertConfig(hidden_size=hidden, num_attention_heads=heads, intermediate_size=1, options=options)
    if options.local(0) and length > 3 * options.window:
        near = _block_time(length, threads, bits, config, True)
        if not options.global_every:
            return near
        return near + (_block_time(length, threads, bits, config, False) - near) / options.global_every
    return _block_time(length, threads, bits, config, False)


def _block_time(length: int, threads: int, bits: int, config: AlbertConfig, local: bool) -> float:
    """Seconds of a layer's first half."""
    hidden = config.hidden_size
    b = Builder(levels())
    x = b.input("hidden", TensorProto.FLOAT, ["texts", "length", hidden])
    mask = b.input("lengths", TensorProto.INT32, ["texts"])
    _, out = graphs.attention_block(b, config, layer_weights(config, bits), "layer", x, mask, local)
    session = open_graph(b.graph(out, ["texts", "length", hidden]), threads)
    feed = {"hidden": _states(length, hidden), "lengths": np.array([length], np.int32)}
    return usual(lambda: session.run(None, feed))


def _ffn_time(length: int, threads: int, bits: int, hidden: int, inner: int) -> float:
    """Seconds of a layer's second half."""
    config = AlbertConfig(
        hidden_size=hidden, num_attention_heads=1, intermediate_size=inner, options=Options(head_size=1)
    )
    b = Builder(levels())
    x = b.input("hidden", TensorProto.FLOAT, ["texts", "length", hidden])
    _, out = graphs.ffn_block(b, config, layer_weights(config, bits), "layer", x)
    session = open_graph(b.graph(out, ["texts", "length", hidden]), threads)
    feed = {"hidden": _states(length, hidden)}
    return usual(lambda: session.run(None, feed))


def _states(length: int, hidden: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1, length, hidden)).astype(np.float32)


def _embedding_time(length: int, options: Options, narrow: int, hidden: int) -> float:
    """Seconds of the embedding, with its GRU if there is one."""
    config = AlbertConfig(
        vocab_size=1000,
        embedding_size=narrow,
        hidden_size=hidden,
        num_attention_heads=1,
        max_position_embeddings=length,
        options=Options(gru=options.gru),
    )
    rng = np.random.default_rng(0)
    weights: graphs.Weights = {n: rng.normal(size=s).astype(np.float32) for n, s in embedding_shapes(config).items()}
    session = open_graph(graphs.embedding_graph(config, weights, levels()), 1)
    ids = rng.integers(0, 1000, (1, length))
    return usual(lambda: session.run(None, {"ids": ids, "segments": np.zeros_like(ids)}))


def _empty_call() -> float:
    """Seconds of a call that computes nothing."""
    b = Builder()
    session = open_graph(b.graph(b.node("Identity", b.input("x", TensorProto.FLOAT, [1])), [1]), 1)
    return usual(lambda: session.run(None, {"x": np.zeros(1, np.float32)}))


def _around(length: int, hidden: int) -> float:
    """Seconds of what is done outside onnxruntime: packing a batch, and the mean of the hidden states."""
    ids, states = [[1] * length], np.zeros((1, length, hidden), np.float32)

    def work() -> float:
        (batch,) = rows(ids)
        inside = np.arange(length)[None, :, None] < batch.lengths[:, None, None]
        mean = np.where(inside, states, 0).sum(axis=1) / batch.lengths[:, None]
        return float(np.linalg.norm(mean))

    return usual(work, 0.02)
