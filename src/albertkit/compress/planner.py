"""What fits a machine: the public `plan`, from limits to measured proposals.

In: the name of a preset, a config file or a model folder, and a `PlanRequest`. Out: `PlanResult`, with the commands
that make each proposal. Before this file: `cost.py` lists and estimates candidates, `benchmark.py`
measures machine and candidates.

Rough estimates of quality (`PlanCandidate.loss`) only choose what is measured; the numbers that are shown were
measured.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.artifact import Artifact, model_folder
from albertkit.compress.benchmark import (
    CalibrationData,
    Machine,
    Measurement,
    Metric,
    measure_candidates,
    measure_folder,
    measure_machine,
    tokenizer_memory,
)
from albertkit.compress.cost import PlanCandidate, depths_below, model_candidates, shape_candidates
from albertkit.config import PRESETS, AlbertConfig, preset
from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.interop.convert import open_model
from albertkit.runtime.activation_moments import Progress, calibration_tokens, synthetic_tokens
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import Engine, cores
from albertkit.runtime.predict import predict
from albertkit.tasks import TASKS, gives_vectors
from albertkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class PlanRequest:
    """What is planned for: limits, and the data to measure with."""

    latency: float | None = None
    """Most seconds for one text."""
    memory: float | None = None
    """Most bytes that the model adds to a process, tokenizer included."""
    length: int | None = None
    """Tokens of a text. Default: the median of `texts`; without texts 128, or as many as the shape reads."""
    texts: Sequence[str] | None = None
    """Texts like those the model will read."""
    examples: Sequence[Any] | None = None
    """Labelled examples of the task of a fine-tuned model (`tasks.readers`)."""
    count: int = 6
    """How many proposals to measure."""
    threads: int | None = None

    def allows(self, latency: float, memory: float) -> bool:
        """Whether a model of this cost is within the limits."""
        return latency <= (self.latency or math.inf) and memory <= (self.memory or math.inf)


@dataclass(frozen=True)
class Proposal:
    """A candidate, its predicted cost, and its measured cost."""

    candidate: PlanCandidate
    latency: float
    memory: float
    fits: bool
    """Whether it is within the limits: as predicted, and once it is measured, as measured."""
    measured: Measurement | None = None
    commands: tuple[str, ...] = ()
    """Commands that make it."""


@dataclass(frozen=True)
class PlanResult:
    """What was proposed and measured."""

    proposals: list[Proposal]
    best: list[Proposal]
    """Those that no other one beats in latency, memory and quality at once."""
    machine: Machine
    request: PlanRequest
    process: float
    """Bytes of a process before it opens a model."""
    metric: str
    """What quality means: `score` or `cosine`; empty where none was measured."""

    def as_dict(self) -> dict[str, Any]:
        """The result for JSON."""
        proposals = [
            {
                "name": p.candidate.name,
                "config": p.candidate.config.to_dict(),
                "bits": p.candidate.bits,
                "fits": p.fits,
                "best": p in self.best,
                "predicted": {"latency": p.latency, "memory": p.memory, "file": p.candidate.file_bytes},
                "measured": None if p.measured is None else dict(vars(p.measured)),
                "commands": list(p.commands),
            }
            for p in self.proposals
        ]
        machine = {name: getattr(self.machine, name) for name in ("threads", "length", "static_seconds", "peaks")}
        return {"machine": machine, "process": self.process, "metric": self.metric, "proposals": proposals}


def plan(shape: str | Path, request: PlanRequest, progress: Progress = lambda _: None) -> PlanResult:
    """Measure this machine, propose models within the limits, build and measure them.

        plan("my-model", PlanRequest(latency=0.02, memory=64e6)).best

    shape: a model folder, a built-in model, a preset or a config in a .json file.
    """
    shape, threads = str(shape), request.threads or cores()
    model = open_model(shape) if is_model(shape) else None
    if model is None and request.examples is not None:
        raise AlbertkitError(
            f"{shape} is a shape without weights, so examples cannot be scored. Name the folder of a fine-tuned model, "
            "or omit the examples."
        )
    if model is not None and model.config.options.static:
        raise AlbertkitError(
            f"{shape} is a static model: no smaller variant exists. Plan for the model it was made from."
        )
    tokenizer = _tokenizer(model)
    if request.texts is not None and len(request.texts) < 10:
        raise AlbertkitError(
            f"{len(request.texts)} texts are too few to measure with. Pass at least 10, better hundreds."
        )
    config = config_of(shape) if model is None else model.config
    length = _text_length(config, request, tokenizer)
    data = None if model is None else _calibration_data(model, request, progress)
    if model is None or data is None:
        candidates = shape_candidates(_short_name(shape), config)
    else:
        quality = depth_cosines(model, data.held) if data.metric is None else depth_scores(shape, model, data.metric)
        has_vectors = gives_vectors(model.metadata)
        candidates = model_candidates(_short_name(shape), config, quality, has_vectors)
    machine = measure_machine([c.config for c in candidates if not c.is_static], length, threads, progress=progress)
    progress("measuring memory")
    words, process = tokenizer_memory(tokenizer), measure_folder(None, length, threads)["process"]
    chosen = propose(candidates, machine, request, words)
    measurements = measure_candidates([p.candidate for p in chosen], model, tokenizer, data, machine, progress)
    proposals = [
        replace(
            p, measured=m, fits=request.allows(m.latency, m.memory), commands=build_commands(p.candidate, shape, model)
        )
        for p, m in zip(chosen, measurements, strict=True)
    ]
    progress("")
    metric = "" if data is None else "score" if data.metric is not None else "cosine"
    return PlanResult(proposals, pareto_front(proposals), machine, request, process, metric)


# What is planned for ---------------------------------------------------------------------------------------------


def config_of(shape: str) -> AlbertConfig:
    """The shape of a folder, of a built-in model, of a .json file or of a preset."""
    if is_model(shape):
        folder = model_folder(shape)
        if (folder / "config.json").is_file():
            return AlbertConfig.from_dict(read_json(folder / "config.json"))
        return open_model(folder).config
    if Path(shape).suffix == ".json":
        if not Path(shape).is_file():
            raise AlbertkitError(f"{shape} does not exist. Name a config file, a model folder or a preset.")
        return AlbertConfig.from_dict(read_json(Path(shape)))
    return preset(shape)


def is_model(shape: str) -> bool:
    """Whether there are weights: a folder, or a built-in model whose name is not that of a preset."""
    return Path(shape).is_dir() or (shape in builtin.BUILTINS and shape not in PRESETS)


def _short_name(shape: str) -> str:
    """The name of a folder (for the `model` inside a training folder, that of the training) or of a file."""
    folder = Path(shape).resolve()
    if folder.suffix == ".json":
        return folder.stem
    return folder.parent.name if folder.name == "model" else folder.name


def _tokenizer(model: Artifact | None) -> Tokenizer:
    if model is None:  # a shape is measured with the vocabulary of the built-in model
        return Tokenizer.load(model_folder(None))
    if model.tokenizer is None:
        raise AlbertkitError("this model has no tokenizer, so it cannot be measured on texts. Convert it with one.")
    return model.tokenizer


def _text_length(config: AlbertConfig, request: PlanRequest, tokenizer: Tokenizer) -> int:
    """Tokens of a typical text."""
    most = config.max_position_embeddings
    if request.texts is not None:
        lengths = [len(ids) + 2 for ids in tokenizer.ids_batch(list(request.texts)[:2000])]
        return min(int(np.median(lengths)), most)
    length = min(128, most) if request.length is None else request.length
    if not 1 <= length <= most:
        raise AlbertkitError(
            f"length={length} is not available: this shape reads 1 to {most} tokens. Pass one of these."
        )
    return length


def _calibration_data(model: Artifact, request: PlanRequest, progress: Progress) -> CalibrationData:
    """What the variants of a model are fitted to and compared on."""
    texts = request.texts
    if texts is None:
        ids, held = synthetic_tokens(model, progress), synthetic_tokens(model, progress, texts=16, seed=1)
    else:
        ids = calibration_tokens(model, [text for i, text in enumerate(texts) if i % 10])
        held = calibration_tokens(model, texts[::10])
    return CalibrationData(ids, held, None if request.examples is None else _metric(model, request.examples))


def _metric(model: Artifact, examples: Sequence[Any]) -> Metric:
    """A function that scores a folder, at a depth, by the first metric of its task."""
    task = model.metadata.task
    if task not in TASKS:
        raise AlbertkitError(
            f"this model was made for {task!r}, which has no score. Fine-tune it, or omit the examples."
        )

    def score(folder: Path, depth: int | None = None) -> float:
        albert = Albert(folder)
        return float(next(iter(albert.task.measure(predict(albert, examples, task, depth), examples).values())))

    return score


def depth_cosines(model: Artifact, ids: list[list[int]]) -> dict[int, float]:
    """By depth, the mean cosine of the vectors with those of all layers."""
    engine, depths = Engine(model.config, dict(model.weights)), depths_below(model.config.num_hidden_layers)
    sums, count = np.zeros(len(depths)), 0
    for batch in token_batches(ids[:32]):
        inside = (np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None])[..., None]
        sums_by_depth = [np.where(inside, engine.run(batch, depth), 0).sum(axis=1) for depth in depths]
        unit = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in sums_by_depth]
        sums += [float((v * unit[-1]).sum()) for v in unit]
        count += len(batch.lengths)
    return dict(zip(depths, (sums / max(1, count)).tolist(), strict=True))


def depth_scores(shape: str, model: Artifact, metric: Metric) -> dict[int, float]:
    """By depth, 1 minus the loss of the task's score, which an elastic model keeps where its vectors differ."""
    full = model.config.num_hidden_layers
    scores = {depth: metric(model_folder(shape), depth) for depth in depths_below(full)}
    return {depth: 1 - max(0.0, scores[full] - score) for depth, score in scores.items()}


# Proposals -------------------------------------------------------------------------------------------------------


def propose(
    candidates: Sequence[PlanCandidate], machine: Machine, request: PlanRequest, tokenizer: float
) -> list[Proposal]:
    """The candidates that are likely best within the limits; if none fits, the nearest ones.

    tokenizer: bytes that the tokenizer adds to a process.
    """
    found = []
    for candidate in candidates:
        seconds = machine.static_seconds if candidate.is_static else machine.latency(candidate.config, candidate.bits)
        memory = candidate.memory(machine.length, tokenizer)
        found.append(Proposal(candidate, seconds, memory, request.allows(seconds, memory)))
    fitting = sorted((p for p in found if p.fits), key=lambda p: (p.candidate.loss, p.latency))
    if not fitting:
        return sorted(found, key=lambda p: _excess(p, request))[:3]
    chosen: list[Proposal] = []
    for proposal in fitting:  # what costs more than a better one in every way is not measured
        if not any(_costs_no_more(better, proposal) for better in chosen):
            chosen.append(proposal)
    tables = [proposal for proposal in chosen[request.count :] if proposal.candidate.is_static]
    return [*chosen[: request.count - len(tables)], *tables]  # a table is so different that it is always shown


def _costs_no_more(one: Proposal, other: Proposal) -> bool:
    costs = ((p.latency, p.memory, p.candidate.file_bytes) for p in (one, other))
    return all(a <= b for a, b in zip(*costs, strict=True))


def _excess(proposal: Proposal, request: PlanRequest) -> float:
    """By how many times the limits are exceeded, in the worse of the two."""
    return max(proposal.latency / (request.latency or math.inf), proposal.memory / (request.memory or math.inf))


def pareto_front(proposals: Sequence[Proposal]) -> list[Proposal]:
    """Those that no other one beats in measured latency, memory and quality at once."""
    return [p for p in proposals if p.measured and not any(_beats(q, p) for q in proposals if q is not p)]


def _beats(one: Proposal, other: Proposal) -> bool:
    a, b = one.measured, other.measured
    if a is None or b is None:
        return False
    quality = [(-(m.quality if m.quality is not None else -p.candidate.loss)) for m, p in ((a, one), (b, other))]
    costs, other_costs = (a.latency, a.memory, quality[0]), (b.latency, b.memory, quality[1])
    return all(x <= y for x, y in zip(costs, other_costs, strict=True)) and costs != other_costs


def build_commands(candidate: PlanCandidate, source: str, model: Artifact | None) -> tuple[str, ...]:
    """The commands that make a candidate from a model."""
    if model is None:
        return ()
    source = shlex.quote(source)
    if candidate.is_static:
        return (f"albertkit static {source} OUT -f TEXTS",)
    config, full = candidate.config, candidate.full
    options = []
    if config.num_attention_heads != full.num_attention_heads:
        options.append(f"--heads {config.num_attention_heads}")
    if config.intermediate_size != full.intermediate_size:
        options.append(f"--ffn {config.intermediate_size}")
    if config.num_hidden_layers != full.num_hidden_layers:
        options.append(f"--layers {config.num_hidden_layers}")
    commands = []
    if model.metadata.quantization is not None:
        is_last = not options and candidate.bits == 32
        commands, source = [f"albertkit convert {source} {'OUT' if is_last else 'FLOAT'}"], "FLOAT"
    commands += [f"albertkit prune {source} PRUNED {' '.join(options)} -f TEXTS"] if options else []
    if candidate.bits != 32:
        commands.append(f"albertkit quantize {'PRUNED' if options else source} OUT --bits {candidate.bits} -f TEXTS")
    return tuple(commands)
