"""Models that fit a machine: shape × bits × depth × pruning, with what they would cost here. The verb `plan` with a limit.

In: a shape or a model folder, and limits for latency and memory. Out: `Proposal`s, the best first. Before this file: `machine.py`
measures and predicts; after it: `trial.py` builds the best ones, and measures them.

What is likely to be lost is ranked by rough rules (`Candidate.loss`) only to choose what is tried; the numbers that are shown were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from albertkit.compress.cost import activation_memory as activations
from albertkit.compress.cost import operations, weight_bytes
from albertkit.compress.machine import Machine
from albertkit.compress.prune import resolve_count
from albertkit.config import PRESETS, AlbertConfig, Options, preset
from albertkit.weights import encoder_shapes, layer_shapes

BITS = (32, 8, 4)
DEPTHS = (1.0, 0.75, 0.5, 1 / 3, 0.25)
PRUNINGS = ((1.0, 1.0), (1.0, 0.5), (2 / 3, 0.5), (0.5, 0.25))  # shares of heads and of feed-forward columns
SESSIONS = 10e6  # bytes that onnxruntime takes for itself


@dataclass(frozen=True)
class Limits:
    """What a model may cost."""

    latency: float | None = None
    """Seconds for one text."""
    memory: float | None = None
    """Bytes that the model adds to a process, tokenizer included."""

    def allow(self, latency: float, memory: float) -> bool:
        """Whether a model of this cost fits."""
        return latency <= (self.latency or math.inf) and memory <= (self.memory or math.inf)


@dataclass(frozen=True)
class Candidate:
    """One way to have a model."""

    shape: str
    config: AlbertConfig
    """As it would be stored."""
    bits: int
    full: AlbertConfig
    """What it is a variant of."""
    loss: float
    """How much is likely to be lost, to rank by; about one for half of the work."""

    @property
    def static(self) -> bool:
        """Whether it is a mere table."""
        return self.config.options.static

    @property
    def name(self) -> str:
        """A short description."""
        if self.static:
            return f"{self.shape}, static, {self.config.hidden_size} numbers"
        parts = [
            self.shape,
            {32: "float32", 8: "int8", 4: "4-bit"}[self.bits],
            f"{self.config.num_hidden_layers} layer{'s' if self.config.num_hidden_layers > 1 else ''}",
        ]
        if self.config.num_attention_heads != self.full.num_attention_heads:
            parts.append(f"{self.config.num_attention_heads} of {self.full.num_attention_heads} heads")
        if self.config.intermediate_size != self.full.intermediate_size:
            parts.append(f"FFN {self.config.intermediate_size}")
        return ", ".join(parts)

    @property
    def file(self) -> int:
        """Bytes of its weights on disk."""
        kinds = {32: "float32", 8: "int8", 4: "4-bit"}
        return weight_bytes(encoder_shapes(self.config))[kinds[self.bits]]

    def memory(self, length: int, tokenizer: float) -> float:
        """Bytes it adds to a process: onnxruntime keeps a copy of each weight, and a packed one of the layers' matrices."""
        kind = "float32" if self.bits == 32 else "int8"
        held = weight_bytes(encoder_shapes(self.config))[kind]
        if self.static:
            return tokenizer + held
        copies = self.config.num_hidden_groups * self.config.inner_group_num
        layer = weight_bytes(layer_shapes(self.config, "layer"))[kind] * copies
        moving = activations(self.config, min(length, self.config.max_position_embeddings), 1)["inference"]
        return tokenizer + 2 * held + layer + moving + SESSIONS


@dataclass(frozen=True)
class Measurement:
    """What was measured of a candidate."""

    latency: float
    memory: float
    """Bytes it added to the process at the most."""
    process: float
    """Bytes of the whole process at the most."""
    quality: float | None = None
    loss: float | None = None
    """How far the quality is below the whole model's."""


@dataclass(frozen=True)
class Proposal:
    """A candidate, what it was predicted to cost, and what it did cost."""

    candidate: Candidate
    latency: float
    memory: float
    fits: bool
    """Within the limits: as predicted, and once it is tried, as measured."""
    trial: Measurement | None = None
    steps: tuple[str, ...] = field(default=())
    """Commands that make it."""


ROUNDING = {32: 0.0, 8: 0.1, 4: 0.8}  # what bits are likely to lose


def _work(config: AlbertConfig) -> float:
    return operations(config, 64)["total"]


def shapes_below(name: str, config: AlbertConfig) -> list[Candidate]:
    """For a shape that is still to be trained: it and the presets below it, at every depth and in all bits."""
    known = {name: config} | {other: preset(other) for other in PRESETS if other != name and not other.endswith("-zh")}
    found = []
    for other, shape in known.items():
        if _work(shape) <= _work(config):
            for depth in DEPTHS:
                cut = _cut(shape, depth, 1.0, 1.0)
                less = math.log2(_work(config) / _work(cut))
                found += [Candidate(other, cut, bits, shape, less + ROUNDING[bits]) for bits in BITS]
    return _distinct(found)


def variants(
    name: str, config: AlbertConfig, shallow: Mapping[int, float] | None = None, dim: int | None = 256
) -> list[Candidate]:
    """For a model that exists: its depths, prunings and bits, and the static table made from it.

    `shallow`: how well vectors at a depth agree with those of all layers; a model that was not trained for it is poor there. `dim`: numbers of a
    table's vectors; None where a table would not do, because the model has a task.
    """
    found = []
    for depth in DEPTHS:
        less = _cut(config, depth, 1.0, 1.0)
        layers = less.num_hidden_layers
        away = math.log2(config.num_hidden_layers / layers) if shallow is None else 8 * (1 - shallow[layers])
        for heads, ffn in PRUNINGS:
            if config.options.shared_heads or config.options.attention_bias:
                heads = 1.0  # such heads belong together (`prune.py`)
            cut = _cut(config, depth, heads, ffn)
            pruned = 0.5 * math.log2(_work(less) / _work(cut))
            found += [Candidate(name, cut, bits, config, away + pruned + ROUNDING[bits]) for bits in BITS]
    if dim is None:
        return _distinct(found)
    size = min(dim, config.hidden_size)
    table = AlbertConfig(
        vocab_size=config.vocab_size, embedding_size=size, hidden_size=size, num_hidden_layers=1,
        num_attention_heads=1, intermediate_size=1, options=Options(static=True),
    )  # fmt: skip
    return _distinct([*found, Candidate(name, table, 32, config, 9.0)])


def _cut(config: AlbertConfig, depth: float, heads: float, ffn: float) -> AlbertConfig:
    """A shape with a share of its layers, heads and feed-forward columns."""
    layers = max(1, round(config.num_hidden_layers * depth))
    if config.num_hidden_groups > 1:
        layers = config.num_hidden_layers  # groups pin the depth down
    fewer = resolve_count(heads, config.num_attention_heads, "heads")
    options = config.options
    if fewer != config.num_attention_heads:
        options = replace(options, head_size=config.head_size)
    return config.replace(
        num_hidden_layers=layers,
        num_attention_heads=fewer,
        intermediate_size=resolve_count(ffn, config.intermediate_size, "ffn"),
        options=options,
    )


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    return list({(c.name, c.bits): c for c in candidates}.values())


def propose(
    candidates: Sequence[Candidate], machine: Machine, limits: Limits, tokenizer: float, count: int = 6
) -> list[Proposal]:
    """The `count` candidates that are likely best within the limits; without one that fits, the nearest ones."""
    found = []
    for candidate in candidates:
        latency = machine.around if candidate.static else machine.latency(candidate.config, candidate.bits)
        memory = candidate.memory(machine.length, tokenizer)
        found.append(Proposal(candidate, latency, memory, limits.allow(latency, memory)))
    fitting = sorted((p for p in found if p.fits), key=lambda p: (p.candidate.loss, p.latency))
    if not fitting:
        return sorted(found, key=lambda p: _over(p, limits))[:3]
    chosen: list[Proposal] = []
    for proposal in fitting:  # what costs more than a better one in every way need not be tried
        if not any(_covers(better, proposal) for better in chosen):
            chosen.append(proposal)
    tables = [proposal for proposal in chosen[count:] if proposal.candidate.static]
    return [*chosen[: count - len(tables)], *tables]  # a table is so different that it is always shown


def _covers(better: Proposal, other: Proposal) -> bool:
    """Whether `better`, which is likely to lose less, also costs no more in any way."""
    mine, theirs = ((p.latency, p.memory, p.candidate.file) for p in (better, other))
    return all(a <= b for a, b in zip(mine, theirs, strict=True))


def _over(proposal: Proposal, limits: Limits) -> float:
    """By how many times the limits are passed, in the worse of the two."""
    return max(proposal.latency / (limits.latency or math.inf), proposal.memory / (limits.memory or math.inf))


def pareto(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Those that no other one beats in measured latency, memory and quality at once."""
    tried = [p for p in proposals if p.trial is not None]

    def beaten(p: Proposal) -> bool:
        return any(_beats(q, p) for q in tried if q is not p)

    return [p for p in tried if not beaten(p)]


def _beats(one: Proposal, other: Proposal) -> bool:
    a, b = one.trial, other.trial
    if a is None or b is None:
        return False
    quality = [(-(t.quality if t.quality is not None else -p.candidate.loss)) for t, p in ((a, one), (b, other))]
    mine, theirs = (a.latency, a.memory, quality[0]), (b.latency, b.memory, quality[1])
    return all(x <= y for x, y in zip(mine, theirs, strict=True)) and mine != theirs
