"""The planner: the public `plan`, from limits on latency and memory to measured proposals.

In: the name of a preset, a config file or a model folder, and a `PlanRequest`. Out: `PlanResult`, with the commands
that build each proposal. Before this file: `cost.py` lists and estimates candidates, `benchmark.py` measures. Rough
estimates of quality (`PlanCandidate.loss`) only select the candidates to build; all reported numbers are measured.
"""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.artifact import Artifact, model_folder, read_artifact, require_tokenizer, write_artifact
from albertkit.compress.benchmark import Machine, measure_folder, measure_machine, random_model, tokenizer_memory
from albertkit.compress.cost import PlanCandidate, depths_below, model_candidates, shape_candidates, stored_heads
from albertkit.compress.prune import PruneSettings, prune_heads_and_ffn, truncate_layers
from albertkit.compress.quantize import QualityCheck, mean_vectors, split_texts, vector_cosines
from albertkit.config import PRESETS, AlbertConfig, preset
from albertkit.cpu_cores import cores
from albertkit.errors import AlbertkitError, check_fields
from albertkit.file_io import read_json
from albertkit.interop.convert import open_model
from albertkit.runtime.activation_moments import Progress, calibration_tokens, synthetic_tokens, token_moments
from albertkit.tasks import TASKS, computes_vectors
from albertkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class PlanRequest:
    """The input of `plan`: limits, and the data to measure with.

    >>> from albertkit import PlanRequest
    >>> PlanRequest(latency=0.02, memory=64e6).latency
    0.02
    """

    latency: float | None = None
    """Maximum seconds for one text."""
    memory: float | None = None
    """Maximum bytes that the model adds to a process, including the tokenizer."""
    length: int | None = None
    """Tokens per text. Default: the median of `texts`; without texts, 128 or the maximum of the shape."""
    texts: Sequence[str] | None = None
    """Texts similar to those in use."""
    examples: Sequence[Any] | None = None
    """Labelled examples of the task of a fine-tuned model (`tasks.readers`)."""
    count: int = 6
    """The number of proposals to measure."""
    threads: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def allows(self, latency: float, memory: float) -> bool:
        """Whether a model of this cost is within the limits."""
        return latency <= (self.latency or math.inf) and memory <= (self.memory or math.inf)


@dataclass(frozen=True)
class Measurement:
    """The measured cost of a candidate."""

    latency: float
    memory: float
    """Peak bytes that it added to the process."""
    process: float
    """Peak bytes of the whole process."""
    quality: float | None = None
    loss: float | None = None
    """The loss of quality compared with the full model."""


@dataclass(frozen=True)
class Proposal:
    """A candidate, its predicted cost, and its measured cost."""

    candidate: PlanCandidate
    latency: float
    memory: float
    fits: bool
    """Whether it is within the limits: as measured, or as predicted if it was not measured."""
    measured: Measurement | None = None
    commands: tuple[str, ...] = ()
    """Commands that build it."""


@dataclass(frozen=True)
class PlanResult:
    """The result of `plan`: the proposed models, with their measurements.

    >>> from albertkit import PlanRequest, plan
    >>> result = plan("small", PlanRequest(latency=0.02))  # doctest: +SKIP
    >>> result.best[0].commands  # doctest: +SKIP
    """

    proposals: list[Proposal]
    best: list[Proposal]
    """The Pareto front of latency, memory and quality."""
    machine: Machine
    request: PlanRequest
    process: float
    """Bytes of a process before it opens a model."""
    metric: str
    """The measure of quality: `score` or `cosine`; empty if none was measured."""

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
        machine = {name: getattr(self.machine, name) for name in ("threads", "length", "static_seconds")}
        return {"machine": machine, "process": self.process, "metric": self.metric, "proposals": proposals}


@dataclass(frozen=True)
class PlannedModel:
    """A model with weights, and the texts to fit and compare its variants on."""

    artifact: Artifact
    ids: list[list[int]]
    """Texts to calibrate with, as token ids."""
    held_out: list[list[int]]
    """Texts to compare vectors on."""
    check: QualityCheck | None
    """Scores folders on labelled examples, if there are any."""


def plan(shape: str | Path, request: PlanRequest, progress: Progress = lambda _: None) -> PlanResult:
    """Measure this machine, propose models within the limits, build and measure them.

    shape: a model folder, a built-in model, a preset or a config in a .json file.

    >>> from albertkit import PlanRequest, plan
    >>> plan("my-model", PlanRequest(latency=0.02, memory=64e6)).best  # doctest: +SKIP
    """
    shape, threads = str(shape), request.threads or cores()
    artifact = _at_default_depth(open_model(shape)) if is_model(shape) else None
    _check_request(shape, artifact, request)
    config = config_of(shape) if artifact is None else artifact.config
    tokenizer = Tokenizer.load(model_folder(None)) if artifact is None else require_tokenizer(artifact)
    length = _text_length(config, request, tokenizer)
    model = None if artifact is None else _planned_model(shape, artifact, request, progress)
    name = Path(shape).stem if shape.endswith(".json") else _folder_name(shape)
    if model is None:
        candidates = shape_candidates(name, config)
    else:
        quality = depth_quality(model, model_folder(shape))
        heads = stored_heads(model.artifact.weights)
        candidates = model_candidates(name, config, quality, computes_vectors(model.artifact.metadata), heads)
    machine = measure_machine([c.config for c in candidates if not c.is_static], length, threads, progress=progress)
    progress("measuring memory")
    tokenizer_bytes, process = tokenizer_memory(tokenizer), measure_folder(None, length, threads)["process"]
    proposed = propose(candidates, machine, request, tokenizer_bytes)
    measurements = measure_candidates([p.candidate for p in proposed], model, tokenizer, machine, progress)
    proposals = [
        replace(
            p,
            measured=m,
            fits=request.allows(m.latency, m.memory),
            commands=build_commands(p.candidate, shape, artifact),
        )
        for p, m in zip(proposed, measurements, strict=True)
    ]
    progress("")
    metric = "" if model is None else "cosine" if model.check is None else "score"
    return PlanResult(proposals, pareto_front(proposals), machine, request, process, metric)


# What is planned for ---------------------------------------------------------------------------------------------


def config_of(shape: str) -> AlbertConfig:
    """The shape in a .json file, or of a preset."""
    if Path(shape).suffix == ".json":
        if not Path(shape).is_file():
            raise AlbertkitError(f"{shape} does not exist. Pass a config file, a model folder or a preset.")
        return AlbertConfig.from_dict(read_json(Path(shape)))
    try:
        return preset(shape)
    except AlbertkitError as error:
        raise AlbertkitError(f"{error}, or pass a model folder or a .json file") from None


def is_model(shape: str) -> bool:
    """Whether there are weights: a folder, or a built-in model whose name is not that of a preset."""
    return Path(shape).is_dir() or (shape in builtin.BUILTINS and shape not in PRESETS)


def _folder_name(shape: str) -> str:
    """The name of a folder; for the `model` inside a training folder, that of the training."""
    folder = Path(shape).resolve()
    return folder.parent.name if folder.name == "model" else folder.name


def _check_request(shape: str, artifact: Artifact | None, request: PlanRequest) -> None:
    if request.examples is not None and (artifact is None or artifact.metadata.task not in TASKS):
        raise AlbertkitError(
            f"{shape} is not a fine-tuned model, so examples cannot be scored. Pass a fine-tuned model, or omit them."
        )
    if artifact is not None and artifact.config.options.static:
        raise AlbertkitError(f"{shape} is a static model: no smaller variant exists. Plan for its source model.")
    split_texts(request.texts)  # raises if they are too few


def _text_length(config: AlbertConfig, request: PlanRequest, tokenizer: Tokenizer) -> int:
    limit = config.max_position_embeddings
    if request.texts is not None:
        lengths = [len(ids) + 2 for ids in tokenizer.ids_batch(list(request.texts)[:2000])]
        return min(int(np.median(lengths)), limit)
    length = min(128, limit) if request.length is None else request.length
    if not 1 <= length <= limit:
        raise AlbertkitError(
            f"length={length} is not available: this shape supports 1 to {limit} tokens. Pass a length in this range."
        )
    return length


def _at_default_depth(artifact: Artifact) -> Artifact:
    """A model that has only the layers it applies by default, so that what is measured is what runs."""
    depth = artifact.metadata.depth
    is_deeper = depth is not None and depth < artifact.config.num_hidden_layers
    return truncate_layers(artifact, depth) if is_deeper else artifact


def _planned_model(shape: str, artifact: Artifact, request: PlanRequest, progress: Progress) -> PlannedModel:
    fitted, held_out = split_texts(request.texts)
    ids = calibration_tokens(artifact, fitted, progress)
    if held_out is None:
        held_out_ids = synthetic_tokens(artifact, progress, texts=16, seed=1)
    else:
        held_out_ids = calibration_tokens(artifact, held_out)
    check = None if request.examples is None else QualityCheck(shape, request.examples)
    return PlannedModel(artifact, ids, held_out_ids, check)


def depth_quality(model: PlannedModel, folder: Path) -> dict[int, float]:
    """By depth, the agreement of the output with that of all layers.

    With labelled examples, 1 minus the loss of the task's score: an elastic model may keep its score although its
    vectors differ. Without examples, the mean cosine of the vectors.
    """
    config, full = model.artifact.config, model.artifact.config.num_hidden_layers
    depths = depths_below(config)
    if model.check is not None:
        scores = {depth: model.check.score(folder, depth).value for depth in depths}
        return {depth: 1 - max(0.0, scores[full] - score) for depth, score in scores.items()}
    vectors = {
        depth: mean_vectors(config, dict(model.artifact.weights), model.held_out[:32], depth) for depth in depths
    }
    return {depth: float((rows * vectors[full]).sum(axis=1).mean()) for depth, rows in vectors.items()}


# Proposals -------------------------------------------------------------------------------------------------------


def propose(
    candidates: Sequence[PlanCandidate], machine: Machine, request: PlanRequest, tokenizer_bytes: float
) -> list[Proposal]:
    """The likely best candidates within the limits; if none fits, the nearest ones.

    tokenizer_bytes: bytes that the tokenizer adds to a process.
    """
    proposals = []
    for candidate in candidates:
        seconds, memory = (
            machine.latency(candidate.config, candidate.bits),
            candidate.memory(machine.length, tokenizer_bytes),
        )
        proposals.append(Proposal(candidate, seconds, memory, request.allows(seconds, memory)))

    def excess(proposal: Proposal) -> float:  # the larger ratio of cost to limit
        return max(proposal.latency / (request.latency or math.inf), proposal.memory / (request.memory or math.inf))

    def costs(proposal: Proposal) -> tuple[float, ...]:
        return proposal.latency, proposal.memory, proposal.candidate.file_bytes

    fitting = sorted((p for p in proposals if p.fits), key=lambda p: (p.candidate.loss, p.latency))
    if not fitting:
        return sorted(proposals, key=excess)[:3]
    front: list[Proposal] = []
    for proposal in fitting:  # dominated candidates are not measured
        if not any(_is_no_worse(costs(better), costs(proposal)) for better in front):
            front.append(proposal)
    tables = [proposal for proposal in front[request.count :] if proposal.candidate.is_static]
    return [*front[: request.count - len(tables)], *tables]  # a static model is always shown, since it differs most


def measure_candidates(
    candidates: Sequence[PlanCandidate],
    model: PlannedModel | None,
    tokenizer: Tokenizer,
    machine: Machine,
    progress: Progress = lambda _: None,
) -> list[Measurement]:
    """Build and measure each candidate, with random weights if there is no model. `machine` has length and threads."""
    measurements = []
    with tempfile.TemporaryDirectory() as scratch:
        full_score = 1.0
        if model is not None and model.check is not None:
            full_score = model.check.score(write_artifact(model.artifact, Path(scratch) / "full")).value
        for number, candidate in enumerate(candidates, 1):
            progress(f"measuring candidate {number} of {len(candidates)}: {candidate.name}")
            folder = Path(scratch) / str(number)
            build_candidate(candidate, model, tokenizer, folder)
            measurement = Measurement(**measure_folder(folder, machine.length, machine.threads))
            if model is not None and not candidate.is_static:  # vectors of a static model are not comparable
                if model.check is not None:
                    quality = model.check.score(folder).value
                else:
                    quality = float(vector_cosines(model.artifact, read_artifact(folder), model.held_out).mean())
                measurement = replace(measurement, quality=quality, loss=full_score - quality)
            measurements.append(measurement)
    return measurements


def build_candidate(candidate: PlanCandidate, model: PlannedModel | None, tokenizer: Tokenizer, folder: Path) -> None:
    config, bits = candidate.config, None if candidate.bits == 32 else candidate.bits
    if model is None or candidate.is_static:
        config = config.replace(vocab_size=max(config.vocab_size, tokenizer.vocab_size))
        write_artifact(random_model(config, tokenizer), folder, bits=bits)
        return
    settings = PruneSettings(heads=config.num_attention_heads, ffn=config.intermediate_size)
    artifact = prune_heads_and_ffn(truncate_layers(model.artifact, config.num_hidden_layers), settings, model.ids)
    moments = None if bits is None else token_moments(artifact.config, dict(artifact.weights), model.ids)
    write_artifact(artifact, folder, bits=bits, moments=moments)


def pareto_front(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The proposals that no other one beats in measured latency, memory and quality at once."""

    def costs(proposal: Proposal) -> tuple[float, ...]:
        measured = proposal.measured
        assert measured is not None
        return (
            measured.latency,
            measured.memory,
            (proposal.candidate.loss if measured.quality is None else -measured.quality),
        )

    all_costs = [costs(proposal) for proposal in proposals]
    return [
        proposal
        for proposal, cost in zip(proposals, all_costs, strict=True)
        if not any(other != cost and _is_no_worse(other, cost) for other in all_costs)
    ]


def _is_no_worse(costs: Iterable[float], other: Iterable[float]) -> bool:
    return all(a <= b for a, b in zip(costs, other, strict=True))


def build_commands(candidate: PlanCandidate, source: str, model: Artifact | None) -> tuple[str, ...]:
    if model is None:
        return ()
    source = shlex.quote(source)
    if candidate.is_static:
        return (f"albertkit static {source} OUT -f TEXTS",)
    config, full = candidate.config, candidate.full
    options = [
        f"--{flag} {getattr(config, name)}"
        for flag, name in (
            ("heads", "num_attention_heads"),
            ("ffn", "intermediate_size"),
            ("layers", "num_hidden_layers"),
        )
        if getattr(config, name) != getattr(full, name)
    ]
    commands = []
    if model.metadata.quantization is not None:
        is_last = not options and candidate.bits == 32
        commands, source = [f"albertkit convert {source} {'OUT' if is_last else 'FLOAT'}"], "FLOAT"
    commands += [f"albertkit prune {source} PRUNED {' '.join(options)} -f TEXTS"] if options else []
    if candidate.bits != 32:
        commands.append(f"albertkit quantize {'PRUNED' if options else source} OUT --bits {candidate.bits} -f TEXTS")
    return tuple(commands)
