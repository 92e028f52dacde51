"""Where the time of a model goes, part by part, compared with the fastest matrix product of the machine.

In: a model folder and texts (or a length and a number of texts). Out: `ModelProfile`. onnxruntime's profiler times
the operators of the graphs that the engine runs; each is assigned to a part of the model. `benchmark.py` measures the
machine.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.compress.benchmark import peak_throughput
from albertkit.compress.cost import attended_keys
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_stored
from albertkit.runtime import graph as graphs
from albertkit.runtime.batching import TokenBatch, token_batches
from albertkit.runtime.embed import pool
from albertkit.runtime.engine import cores, levels, open_graph
from albertkit.runtime.graph_builder import Graph

PRODUCTS = {
    "qkv": "query, key, value product",
    "output": "attention output product",
    "up": "feed-forward up product",
    "down": "feed-forward down product",
    "projection": "embedding projection",
}
PARTS = {
    **dict.fromkeys(("MultiHeadAttention", "If"), "attention over the text"),
    "GRU": "GRU",
    "LayerNormalization": "norms",
    "Split": "splitting Q, K, V",
    "Add": "sums and biases",
    **dict.fromkeys(("FastGelu", "BiasGelu", "QuickGelu", "Relu", "Tanh"), "activation"),
    **dict.fromkeys(("Abs", "ReduceMax", "Max", "Div", "Mul", "QuantizeLinear"), "int8: scaling of tokens"),
    **dict.fromkeys(("Gather", "Cast", "Shape", "Slice"), "embedding tables"),
}
NESTED = ("", "")  # nodes whose time is counted in another one
REPEATS = 5


@dataclass(frozen=True)
class ProfilePart:
    """One part of the model."""

    name: str
    operators: list[str]
    seconds: float
    share: float
    """Of the whole time."""
    operations: float
    """Multiplications and additions; 0 where they are not counted."""
    of_peak: float | None
    """Share of the machine's fastest matrix product, for parts that are one."""


@dataclass(frozen=True)
class ModelProfile:
    """Where the time went, for all texts once."""

    parts: list[ProfilePart]
    seconds: float
    """Wall-clock time of the whole model."""
    tokens: int
    texts: int
    threads: int
    depth: int
    bits: int
    peaks: dict[str, float]
    """Operations per second of the fastest matrix product of the machine, by format."""
    of_peak: float
    """All counted operations over the whole time, as a share of the peak."""


def profile_model(
    source: Path | str | None,
    texts: Sequence[str] | None = None,
    size: tuple[int, int] = (128, 8),
    threads: int | None = None,
) -> ModelProfile:
    """Run a model and show where its time goes; without texts, on `size` = (tokens, texts) of random tokens."""
    threads = threads or cores()
    albert = Albert(source, threads=threads)
    if albert.config.options.static:
        raise AlbertkitError(
            "a static model has no operators to time: it reads rows of a table. Profile the model it was made from."
        )
    ids = _ids(albert, texts, size)
    batches = list(token_batches(ids, token_budget=albert.token_budget))
    depth, config = albert.depth, albert.config
    for batch in batches:  # warm, and by the clock, without the profiler
        albert.engine.run(batch, depth)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for batch in batches:
            pool(albert, albert.engine.run(batch, depth), batch.lengths, "mean")
        times.append(time.perf_counter() - start)
    seconds = float(np.percentile(times, 25))
    bits = 8 if albert.metadata.quantization else 32
    found = _operator_seconds(source, batches, depth, threads)
    peaks = {"float32": peak_throughput(threads, 32), **({"int8": peak_throughput(threads, 8)} if bits == 8 else {})}
    kind = "int8" if bits == 8 else "float32"
    tokens = int(sum(batch.ids.size for batch in batches))
    counts = _part_operations(config, batches, depth)
    seen = [
        p.operations / p.seconds for p in _parts(found, seconds, counts, 1.0) if p.of_peak is not None and p.seconds
    ]
    best = peaks[kind] = max([peaks[kind], *seen])  # other work may have slowed down what was timed as the peak
    parts = _parts(found, seconds, counts, best)
    counted = sum(part.operations for part in parts)
    return ModelProfile(parts, seconds, tokens, len(ids), threads, depth, bits, peaks, counted / seconds / best)


def _ids(albert: Albert, texts: Sequence[str] | None, size: tuple[int, int]) -> list[list[int]]:
    if texts is not None:
        if not texts:
            raise AlbertkitError("there are no texts to run. Pass a file with one text per line.")
        return [e.ids for e in albert.tokenizer.encode_batch(list(texts), max_length=albert.max_tokens)]
    length, count = size
    if not 1 <= length <= albert.max_tokens:
        raise AlbertkitError(
            f"length={length} is not available: this model reads 1 to {albert.max_tokens} tokens. Pass one of these."
        )
    drawn: list[list[int]] = np.random.default_rng(0).integers(5, albert.tokenizer.vocab_size, (count, length)).tolist()
    return drawn


def _operator_seconds(
    source: Path | str | None, batches: list[TokenBatch], depth: int, threads: int
) -> dict[tuple[str, str], float]:
    """Seconds by (part, operator), for all batches once."""
    stored = open_stored(source)
    config, weights = stored.config, stored.weights
    found: dict[tuple[str, str], float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as scratch:
        made = {"embedding": graphs.embedding_graph(config, weights, levels())}
        for g in range(config.num_hidden_groups):
            for i in range(config.inner_group_num):
                made[f"{g}.{i}"] = graphs.layer_graph(config, weights, f"encoder.groups.{g}.{i}", levels())
        sessions = {
            name: open_graph(graph, 1 if name == "embedding" else threads, Path(scratch) / name)
            for name, graph in made.items()
        }
        for _ in range(REPEATS + 1):
            for batch in batches:
                (hidden,) = sessions["embedding"].run(None, {"ids": batch.ids, "segments": batch.segments})
                for layer in range(depth):
                    for i in range(config.inner_group_num):
                        session = sessions[f"{config.group_of(layer)}.{i}"]
                        (hidden,) = session.run(None, graphs.layer_feed(config, layer, hidden, batch.lengths))
        for name, session in sessions.items():
            _read_trace(Path(session.end_profiling()), made[name], found)
    return found


def _read_trace(path: Path, graph: Graph, found: dict[tuple[str, str], float]) -> None:
    """Add the times in a trace of onnxruntime; the first round, a warm-up, is omitted."""
    events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    names = _node_parts(graph)
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            times[name.removesuffix("_kernel_time")].append(float(event["dur"]) / 1e6)
    for node, seconds in times.items():
        if names.get(node) == NESTED:
            continue
        first = len(seconds) // (REPEATS + 1)
        found[names.get(node, ("other", node.split("_")[0]))] += sum(seconds[first:]) / REPEATS


def _node_parts(graph: Graph) -> dict[str, tuple[str, str]]:
    """The part of the model and the operator, for each node of a graph."""
    import onnx

    out = {}
    for node in onnx.load_model_from_string(graph.model).graph.node:
        weight = next((name for name in node.input if name in PRODUCTS), None)
        part = PARTS.get(node.op_type, "other")
        if node.op_type in ("MatMul", "MatMulIntegerToFloat") and weight is not None:
            part = PRODUCTS[weight]
        out[node.name] = (part, node.op_type)
        for branch in node.attribute:  # of an If, whose own time holds theirs
            out |= {inner.name: NESTED for inner in branch.g.node}
    return out


def _part_operations(config: AlbertConfig, batches: list[TokenBatch], depth: int) -> dict[str, float]:
    """Operations of each product and of attention, padding included, since it is computed too."""
    h, f, e = config.hidden_size, config.intermediate_size, config.embedding_size
    a, keys = config.score_size * config.num_attention_heads, config.score_size * config.key_heads
    uses = depth * config.inner_group_num
    tokens = sum(batch.ids.size for batch in batches)
    squares = sum(
        batch.ids.size * config.inner_group_num * attended_keys(config, layer, batch.ids.shape[1])
        for batch in batches
        for layer in range(depth)
    )
    sizes = {
        "qkv": (a + 2 * keys) * h * uses,
        "output": a * h * uses,
        "up": f * h * uses,
        "down": f * h * uses,
        "projection": e * h,
    }
    return {PRODUCTS[n]: 2.0 * tokens * s for n, s in sizes.items()} | {PARTS["MultiHeadAttention"]: 4.0 * squares * a}


def _parts(
    found: dict[tuple[str, str], float], seconds: float, counted: dict[str, float], best: float
) -> list[ProfilePart]:
    """Parts by time, largest first, and what remains outside the operators."""
    times: dict[str, float] = defaultdict(float)
    operators: dict[str, set[str]] = defaultdict(set)
    for (part, operator), spent in found.items():
        times[part] += spent
        operators[part].add(operator)
    seconds = max(seconds, sum(times.values()))
    parts = []
    for name, spent in sorted(times.items(), key=lambda item: -item[1]):
        work = counted.get(name, 0.0)
        of_peak = work / spent / best if work and spent else None
        parts.append(ProfilePart(name, sorted(operators[name]), spent, spent / seconds, work, of_peak))
    rest = max(0.0, seconds - sum(times.values()))
    parts.append(ProfilePart("calls, Python and pooling", [], rest, rest / seconds, 0.0, None))
    return parts
