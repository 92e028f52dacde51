"""From what a user wants to proposals: the whole of `albertkit plan` with a limit.

In: a preset's name or a model folder, limits, texts and labelled data. Out: `PlanResult`. Before this file: `machine.py`, `fit.py`, `trial.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.artifact import Artifact, model_folder, read_json
from albertkit.compress.benchmark import CalibrationData, Metric, measure_folder, measure_proposals, tokenizer_memory
from albertkit.compress.fit import DEPTHS, Candidate, Limits, Proposal, pareto, propose, shapes_below, variants
from albertkit.compress.machine import Machine, measure_machine
from albertkit.config import PRESETS, AlbertConfig, preset
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model
from albertkit.runtime.activation_moments import Progress, calibration, own_text
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import Engine, cores
from albertkit.tasks import TASKS
from albertkit.tokenizer import Tokenizer


@dataclass(frozen=True)
class PlanRequest:
    """What is asked for."""

    latency: float | None = None
    memory: float | None = None
    length: int | None = None
    """Tokens of a text; where texts are given, their median is taken, and else by default 128, or the most that the shape reads."""
    texts: Path | None = None
    task: Path | None = None
    """Labelled examples for a fine-tuned model."""
    count: int = 6
    threads: int | None = None


@dataclass(frozen=True)
class PlanResult:
    """What was proposed and measured."""

    proposals: list[Proposal]
    best: list[Proposal]
    """Those that no other one beats."""
    machine: Machine
    limits: Limits
    process: float
    """Bytes of a process before it opens a model."""
    metric: str
    """What quality means; empty where none was measured."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = []
        for p in self.proposals:
            trial = p.trial
            rows.append(
                {
                    "name": p.candidate.name,
                    "config": p.candidate.config.to_dict(),
                    "bits": p.candidate.bits,
                    "fits": p.fits,
                    "best": p in self.best,
                    "predicted": {"latency": p.latency, "memory": p.memory, "file": p.candidate.file},
                    "measured": None if trial is None else dict(vars(trial)),
                    "steps": list(p.steps),
                }
            )
        machine = {k: getattr(self.machine, k) for k in ("threads", "length", "around", "peaks")}
        return {"machine": machine, "process": self.process, "metric": self.metric, "proposals": rows}


def config_of(shape: str) -> AlbertConfig:
    """The shape of a folder, of a built-in model, of a .json file or of a preset."""
    if is_model(shape):
        folder = model_folder(shape)
        if (folder / "config.json").is_file():
            return AlbertConfig.from_dict(read_json(folder / "config.json"))
        return open_model(folder).config
    if Path(shape).suffix == ".json":
        if not Path(shape).is_file():
            raise AlbertkitError(f"{shape} does not exist; name a config, a model's folder or a preset")
        return AlbertConfig.from_dict(read_json(Path(shape)))
    return preset(shape)


def is_model(shape: str) -> bool:
    """Whether there are weights: a folder, or a built-in model whose name is no preset's."""
    return Path(shape).is_dir() or (shape in builtin.BUILTINS and shape not in PRESETS)


def plan(shape: str, wanted: PlanRequest, progress: Progress = lambda _: None) -> PlanResult:
    """Measure the machine, propose, try out."""
    threads = wanted.threads or cores()
    model = open_model(shape) if is_model(shape) else None
    if model is None and wanted.task is not None:
        raise AlbertkitError(
            f"--task is given, and {shape} is a shape without weights, which has no score; name a fine-tuned model's folder, or leave --task away"
        )
    if model is not None and model.config.options.static:
        raise AlbertkitError(f"{shape} is a static model; there is nothing smaller to plan for")
    tokenizer = _tokenizer(model)
    texts = None if wanted.texts is None else _lines(wanted.texts)
    config = config_of(shape) if model is None else model.config
    length = _length(config, wanted, tokenizer, texts)
    data = None if model is None else _data(model, texts, wanted.task, progress)
    if model is None or data is None:
        candidates = shapes_below(_called(shape), config)
    else:
        shallow = depth_cosines(model, data.held) if wanted.task is None else depth_scores(shape, model, data)
        vectors = model.meta.task not in TASKS or model.meta.task == "match"
        candidates = variants(_called(shape), config, shallow, 256 if vectors else None)
    limits = Limits(wanted.latency, wanted.memory)
    machine = measure_machine([c.config for c in candidates if not c.static], length, threads, progress=progress)
    progress("measuring memory")
    words, process = tokenizer_memory(tokenizer), measure_folder(None, length, threads)["process"]
    chosen = [
        replace(p, steps=commands(p.candidate, shape, model))
        for p in propose(candidates, machine, limits, words, wanted.count)
    ]
    tried = [
        p if p.trial is None else replace(p, fits=limits.allow(p.trial.latency, p.trial.memory))
        for p in measure_proposals(chosen, model, tokenizer, data, (length, threads), progress)
    ]
    progress("")
    metric = "" if data is None else "score" if data.metric is not None else "cosine"
    return PlanResult(tried, pareto(tried), machine, limits, process, metric)


def _called(shape: str) -> str:
    """A short name for a folder, that of the training for the model inside it, or of a file."""
    folder = Path(shape).resolve()
    if folder.suffix == ".json":
        return folder.stem
    return folder.parent.name if folder.name == "model" else folder.name


def depth_cosines(model: Artifact, ids: list[list[int]]) -> dict[int, float]:
    """How well the vectors at each depth agree with those of all layers: the mean cosine."""
    engine, most = Engine(model.config, dict(model.weights)), model.config.num_hidden_layers
    wanted = shallower(most)
    sums, count = np.zeros(len(wanted)), 0
    for batch in token_batches(ids[:32]):
        inside = (np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None])[..., None]
        found = [np.where(inside, engine.run(batch, depth), 0).sum(axis=1) for depth in wanted]
        unit = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in found]
        sums += [float((v * unit[-1]).sum()) for v in unit]
        count += len(batch.lengths)
    return dict(zip(wanted, (sums / max(1, count)).tolist(), strict=True))


def depth_scores(shape: str, model: Artifact, data: CalibrationData) -> dict[int, float]:
    """The same by the task's score, which an elastic model keeps at depths whose vectors are others: 1 less what a depth loses."""
    assert data.metric is not None
    most = model.config.num_hidden_layers
    scores = {depth: data.metric(model_folder(shape), depth) for depth in shallower(most)}
    return {depth: 1 - max(0.0, scores[most] - score) for depth, score in scores.items()}


def shallower(most: int) -> list[int]:
    """The depths in question, the full one last."""
    return sorted({max(1, round(most * share)) for share in DEPTHS} | {most})


def _tokenizer(model: Artifact | None) -> Tokenizer:
    if model is None:  # a shape is measured with the vocabulary that comes with the package
        return Tokenizer.load(model_folder(None))
    if model.tokenizer is None:
        raise AlbertkitError("this model has no tokenizer, so it cannot be measured on text; convert it with one")
    return model.tokenizer


def _lines(path: Path) -> list[str]:
    from albertkit.cli.entry_point import read_texts

    found = list(read_texts((), path))
    if len(found) < 10:
        raise AlbertkitError(f"{path} holds {len(found)} texts; give at least 10, better some hundred")
    return found


def _length(config: AlbertConfig, wanted: PlanRequest, tokenizer: Tokenizer, texts: Sequence[str] | None) -> int:
    """Tokens of a usual text."""
    length = min(128, config.max_position_embeddings) if wanted.length is None else wanted.length
    if texts is not None:
        length = int(np.median([len(ids) + 2 for ids in tokenizer.ids_batch(list(texts)[:2000])]))
        return min(length, config.max_position_embeddings)
    if not 1 <= length <= config.max_position_embeddings:
        raise AlbertkitError(f"length is {length}; this shape reads 1 to {config.max_position_embeddings} tokens")
    return length


def _data(model: Artifact, texts: Sequence[str] | None, task: Path | None, progress: Progress) -> CalibrationData:
    """What a model's variants are fitted to and judged by."""
    if texts is None:
        ids, held = own_text(model, progress), own_text(model, progress, texts=16, seed=1)
    else:
        ids = calibration(model, [text for i, text in enumerate(texts) if i % 10])
        held = calibration(model, texts[::10])
    return CalibrationData(ids, held, None if task is None else _metric(model, task))


def _metric(model: Artifact, task: Path) -> Metric:
    """A function that scores a folder, at a depth, on labelled examples, by the first of its task's metrics."""
    from albertkit.albert import Albert
    from albertkit.cli.task_commands import Reading, read_files
    from albertkit.runtime.predict import predict

    name = model.meta.task
    if name not in TASKS:
        raise AlbertkitError(
            f"this model was made for {name!r}, which has no score; fine-tune it, or leave --task away"
        )
    examples = read_files(name, {"test": task}, Reading())["test"]

    def score(folder: Path, depth: int | None = None) -> float:
        albert = Albert(folder)
        return float(next(iter(albert.task.measure(predict(albert, examples, name, depth), examples).values())))

    return score


def commands(candidate: Candidate, source: str, model: Artifact | None) -> tuple[str, ...]:
    """The commands that make a candidate from a model."""
    if model is None:
        return ()
    source = shlex.quote(source)
    if candidate.static:
        return (f"albertkit static {source} OUT --texts TEXTS",)
    config, full = candidate.config, candidate.full
    cut = []
    if config.num_attention_heads != full.num_attention_heads:
        cut.append(f"--heads {config.num_attention_heads}")
    if config.intermediate_size != full.intermediate_size:
        cut.append(f"--ffn {config.intermediate_size}")
    if config.num_hidden_layers != full.num_hidden_layers:
        cut.append(f"--layers {config.num_hidden_layers}")
    made = []
    if model.meta.quantisation is not None:
        whole = not cut and candidate.bits == 32
        made, source = [f"albertkit convert {source} {'OUT' if whole else 'FLOAT'}"], "FLOAT"
    made += [f"albertkit prune {source} PRUNED {' '.join(cut)} -f TEXTS"] if cut else []
    if candidate.bits != 32:
        made.append(f"albertkit quantize {'PRUNED' if cut else source} OUT --bits {candidate.bits} -f TEXTS")
    return tuple(made)
