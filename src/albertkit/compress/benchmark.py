"""Candidates tried out: built in a scratch folder, and measured in a process of their own.

In: `Proposal`s and the model they are variants of (or, for a shape, nothing: random weights cost what trained ones cost). Out: the same with
a `Measurement`. Before this file: `fit.py`. Quality is the task's own metric where labelled data is given, else the mean cosine with the whole
model's vectors; for a shape without weights there is none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import Artifact, Meta, read_artifact, write_artifact
from albertkit.compress.fit import Candidate, Measurement, Proposal
from albertkit.compress.machine import random_weights, typical_seconds
from albertkit.compress.prune import PruneSettings, prune_heads_and_ffn, truncate_layers
from albertkit.compress.quantize import vector_cosines
from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.runtime.activation_moments import Progress, moments_of
from albertkit.runtime.graph_builder import as_float
from albertkit.tokenizer import Tokenizer
from albertkit.weights import encoder_shapes

SECONDS = 0.5  # that a candidate's latency is measured for
CHILD = "from albertkit.compress.benchmark import child; child()"


class Metric(Protocol):
    """What scores a folder."""

    def __call__(self, folder: Path, depth: int | None = None) -> float:
        """On labelled data, at a depth or the model's own."""


@dataclass(frozen=True)
class CalibrationData:
    """What candidates are judged by."""

    ids: list[list[int]]
    """Texts to calibrate with, as token ids."""
    held: list[list[int]]
    """Texts to compare vectors on."""
    metric: Metric | None = None
    """A folder's score on labelled data."""


def measure_proposals(
    proposals: Sequence[Proposal],
    model: Artifact | None,
    tokenizer: Tokenizer,
    data: CalibrationData | None,
    place: tuple[int, int],
    progress: Progress = lambda _: None,
) -> list[Proposal]:
    """Build and measure each proposal; `place` is (tokens of the text, threads)."""
    out, whole = [], None
    with tempfile.TemporaryDirectory() as scratch:
        if data is not None and data.metric is not None and model is not None:
            write_artifact(model, Path(scratch) / "whole")
            whole = data.metric(Path(scratch) / "whole")
        for number, proposal in enumerate(proposals, 1):
            progress(f"trying {number} of {len(proposals)}: {proposal.candidate.name}")
            folder = Path(scratch) / str(number)
            made = build(proposal.candidate, model, tokenizer, data, folder)
            found = measure_folder(folder, *place)
            trial = Measurement(found["latency"], found["memory"], found["process"])
            if data is not None and model is not None:
                trial = _judged(trial, model, made, folder, data, whole)
            out.append(replace(proposal, trial=trial))
    return out


def _judged(
    trial: Measurement, model: Artifact, made: Artifact, folder: Path, data: CalibrationData, whole: float | None
) -> Measurement:
    if data.metric is not None and whole is not None:
        if made.config.options.static:
            return trial  # it has no head for the task
        quality = data.metric(folder)
        return replace(trial, quality=quality, loss=whole - quality)
    if made.config.options.static:
        return trial  # its vectors mean something else
    quality = float(vector_cosines(model, read_artifact(folder), data.held).mean())
    return replace(trial, quality=quality, loss=1 - quality)


def build(
    candidate: Candidate, model: Artifact | None, tokenizer: Tokenizer, data: CalibrationData | None, folder: Path
) -> Artifact:
    """Write a candidate as an artifact."""
    config, bits = candidate.config, None if candidate.bits == 32 else candidate.bits
    if model is None or config.options.static:
        made = _random(config.replace(vocab_size=max(config.vocab_size, tokenizer.vocab_size)), tokenizer)
        write_artifact(made, folder, bits=bits)
        return made
    if data is None:
        raise AlbertkitError("a model's variants need texts to be fitted to")
    keep = PruneSettings(heads=config.num_attention_heads, ffn=config.intermediate_size)
    made = prune_heads_and_ffn(truncate_layers(model, config.num_hidden_layers), keep, data.ids)
    seen = None if bits is None else moments_of(made.config, dict(made.weights), data.ids)
    write_artifact(made, folder, bits=bits, moments=seen)
    return made


def _random(config: AlbertConfig, tokenizer: Tokenizer) -> Artifact:
    """A model that has learnt nothing."""
    weights = {n: as_float(w) for n, w in random_weights(encoder_shapes(config, pooler=False), 32).items()}
    return Artifact(config, weights, tokenizer, Meta(task="embed"))


# In a process of its own -----------------------------------------------------------------------------------------


def measure_folder(folder: Path | None, length: int, threads: int) -> dict[str, float]:
    """Latency and memory of a folder's model, by a fresh process; without a folder, of the process and no model."""
    asked = json.dumps({"folder": None if folder is None else str(folder), "length": length, "threads": threads})
    done = subprocess.run([sys.executable, "-c", CHILD], input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise AlbertkitError(f"measuring {folder} in a process of its own failed: {why[:200]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child() -> None:
    """What the fresh process does: read a question from stdin, answer on stdout."""
    import onnxruntime  # noqa: F401  what every model needs is there before memory is counted

    asked = json.load(sys.stdin)
    before = resident("VmRSS")
    found: dict[str, Any] = {"latency": 0.0, "memory": 0.0}
    if asked["folder"] is not None:
        albert = Albert(asked["folder"], threads=asked["threads"])
        room = min(asked["length"], albert.max_tokens) - sum(map(len, albert._ends))
        ids = np.random.default_rng(0).integers(5, albert.tokenizer.vocab_size, max(1, room)).tolist()
        how = albert.embed_options()
        found["latency"] = typical_seconds(lambda: _vector(albert, ids, how), SECONDS)
    found["process"] = max(resident("VmHWM"), resident("VmRSS"))
    found["memory"] = found["process"] - before
    sys.stdout.write(json.dumps(found) + "\n")


def _vector(albert: Albert, ids: list[int], how: Any) -> np.ndarray:
    """One text, given as token ids."""
    from albertkit.albert import joined
    from albertkit.runtime.batching import token_batches

    pieces, owners = albert.cut([ids], how.long_texts)
    if albert.config.options.static:
        vectors = albert.engine.means(pieces)
    else:
        (batch,) = token_batches(pieces, token_budget=albert.token_budget)
        vectors = albert._pool(albert.engine.run(batch, how.depth), batch.lengths, how.pooling)
    return next(joined(vectors, [len(piece) for piece in pieces], owners, how))


def resident(name: str) -> float:
    """Bytes of this process in memory now (VmRSS) or at the most (VmHWM)."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next((row for row in status.read_text().splitlines() if row.startswith(f"{name}:")), "0 0")
        return float(line.split()[1]) * 1024
    import resource

    most = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return most if sys.platform == "darwin" else most * 1024


def tokenizer_memory(tokenizer: Tokenizer) -> float:
    """Bytes that a tokenizer adds to a process."""
    from albertkit.compress.static_model import static_config

    config = static_config(AlbertConfig(), tokenizer.vocab_size, 1)
    with tempfile.TemporaryDirectory() as scratch:
        write_artifact(_random(config, tokenizer), Path(scratch) / "table")
        return measure_folder(Path(scratch) / "table", 8, 1)["memory"]
