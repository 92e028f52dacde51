"""The served models: opening, names, selection by endpoint, and reload while requests run.

In: folders, as FOLDER or NAME=FOLDER; none for the built-in models. Out: `ServedModel`s, which `inference.py` uses.

A reload opens the new files next to the old model, computes a batch, and only then replaces the old model. Running
requests finish with the old one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from albertkit.albert import Albert
from albertkit.artifact import model_folder
from albertkit.builtin import DEFAULT, PRETRAINED, mask_model
from albertkit.errors import AlbertkitError, nearest
from albertkit.explain.explain_input import can_fill_masks
from albertkit.runtime.batching import pad_batch
from albertkit.runtime.early_exit import available_exit_depths, last_exit_depth
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import ServeSettings
from albertkit.weights import encoder_shapes
from albertkit.weights import size as count_parameters

log = logging.getLogger("albertkit.serve")
NEW_WEIGHT = 0.2  # weight of a new measurement in a moving average
GENERATE_COST = 8.0  # first estimate: how many times more a generated token costs than one that is read
CHINESE = "今天天气很好，我们去公园。"  # common characters, which every Chinese vocabulary contains
COMMON_ENDPOINTS = ("embed", "rerank", "similar", "search", "tokenize", "explain")
TASK_ENDPOINTS = {
    "classify": ("classify", "predict"),
    "tag": ("tag",),
    "answer": ("answer",),
    "choose": ("choose",),
    "intent": ("intent",),
    "generate": ("generate",),
}


class TokenCost:
    """Seconds per token and layer: a moving average over batches that are at least half full."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def update(self, seconds: float) -> None:
        self.seconds += NEW_WEIGHT * (seconds - self.seconds)


@dataclass(frozen=True)
class ModelSource:
    """A model's name and folder; no folder means the built-in model."""

    name: str
    folder: Path | None

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """FOLDER or NAME=FOLDER.

        >>> ModelSource.parse("en=models/albert").name, ModelSource.parse("models/albert").name
        ('en', 'albert')
        >>> ModelSource.parse("run/model").name
        'run'
        """
        name, sign, path = text.partition("=")
        if sign and not Path(text).exists():
            return cls(name, Path(path))
        folder = Path(text).absolute()
        return cls(folder.parent.name if folder.name == "model" and folder.parent.name else folder.name, Path(text))

    @classmethod
    def parse_all(cls, texts: list[str]) -> list[ModelSource]:
        """Models with distinct names; the default is the built-in models for vectors and for masks."""
        sources = [cls.parse(text) for text in texts] or [
            cls(DEFAULT, None),
            cls(PRETRAINED[DEFAULT], Path(PRETRAINED[DEFAULT])),
        ]
        for number, source in enumerate(sources):
            if not source.name or source.name in {other.name for other in sources[:number]}:
                raise AlbertkitError(f"two models have the name {source.name!r}; rename one with NAME=FOLDER")
        return sources

    def stamp(self) -> list[tuple[str, int, int, int]]:
        """What changes when the files change."""
        try:
            folder = model_folder(self.folder)
            states = [(file.name, file.stat()) for file in (sorted(folder.iterdir()) if folder.is_dir() else [folder])]
        except OSError as error:
            raise AlbertkitError(
                f"{self.folder} cannot be read: {error.strerror}; choose a model folder or a built-in model"
            ) from None
        return [(name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states]


@dataclass(frozen=True)
class ModelInfo:
    """A served model: OpenAI's four fields, then its properties."""

    id: str
    created: int
    task: str
    labels: list[str]
    endpoints: list[str]
    dimensions: int
    max_tokens: int
    layers: int
    depth: int
    depths: Annotated[list[int], Meta(description="Depths with useful results; others may be meaningless.")]
    heads: int
    parameters: int
    vocabulary: int
    tokenizer: str
    can_read_chinese: Annotated[bool, Meta(description="Whether its vocabulary covers Chinese.")]
    pooling: str
    prompts: dict[str, str]
    weights: str
    version: str
    object: Literal["model"] = "model"
    owned_by: str = "albertkit"


@dataclass(eq=False)
class ServedModel:
    """An open model."""

    name: str
    albert: Albert
    stamp: list[tuple[str, int, int, int]]
    token_cost: TokenCost
    opened: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.generate_cost = TokenCost(GENERATE_COST * self.token_cost.seconds)

    @classmethod
    def open(cls, source: ModelSource, settings: ServeSettings, threads: int) -> ServedModel:
        """Open a model and compute a full batch, which checks it, warms it up and measures its speed."""
        stamp = source.stamp()
        albert = Albert(
            source.folder,
            bits=settings.bits,
            threads=threads,
            device=settings.device,
            token_budget=settings.token_budget,
        )
        length = min(64, albert.max_tokens)
        rows = max(1, settings.token_budget // length)
        ids = np.full((rows, length), min(5, albert.config.vocab_size - 1))
        best = float("inf")
        for _ in range(2):
            began = time.perf_counter()
            hidden = albert.engine.run(pad_batch(list(ids), None, list(range(rows))), albert.depth)
            best = min(best, time.perf_counter() - began)
        if albert.metadata.task == "generate":
            _ = albert.generator  # opened now, so that the first request does not wait for it
        if not np.isfinite(hidden).all():
            name = source.folder or "the built-in model"
            raise AlbertkitError(f"{name} computes numbers that are not finite; its weights are damaged")
        return cls(source.name, albert, stamp, TokenCost(best / (rows * length * albert.depth)))

    @cached_property
    def endpoints(self) -> frozenset[str]:
        albert = self.albert
        endpoints = {*COMMON_ENDPOINTS, *TASK_ENDPOINTS.get(albert.metadata.task, ())}
        if albert.metadata.task == "classify" and albert.task.kind == "single":
            endpoints.add("intent")  # intents without slots
        if can_fill_masks(albert):
            endpoints.add("fill")
        if albert.config.options.static:
            endpoints.discard("explain")  # it has no layers
        return frozenset(endpoints)

    @cached_property
    def info(self) -> ModelInfo:
        """What clients and the page need to know."""
        albert, config, meta = self.albert, self.albert.config, self.albert.metadata
        return ModelInfo(
            id=self.name,
            created=int(self.opened),
            task=meta.task,
            labels=list(meta.labels),
            endpoints=sorted(self.endpoints),
            dimensions=albert.dim,
            max_tokens=albert.max_tokens,
            layers=config.num_hidden_layers,
            depth=albert.depth,
            depths=[]
            if config.options.static
            else sorted({*available_exit_depths(albert), albert.depth, last_exit_depth(albert, None)}),
            heads=config.num_attention_heads,
            parameters=count_parameters(encoder_shapes(config)),
            vocabulary=albert.tokenizer.vocab_size,
            tokenizer=albert.tokenizer.kind,
            can_read_chinese=albert.tokenizer.encode(CHINESE).unknown_fraction == 0,
            pooling=meta.pooling,
            prompts=dict(meta.prompts),
            weights=meta.quantization or (f"int{albert.bits}" if albert.bits else "float32"),
            version=albert.name,
        )


class ServedModels:
    """All models of a process, by name. A reload replaces an entry; running requests keep their `ServedModel`."""

    def __init__(self, sources: list[ModelSource], settings: ServeSettings, threads: int) -> None:
        self.sources, self.settings, self.threads = sources, settings, threads
        self._models: dict[str, ServedModel] = {}
        for source in sources:
            self._models[source.name] = self._open(source)
        self._reload_lock = threading.Lock()

    def _open(self, source: ModelSource) -> ServedModel:
        """Open a model. Models with the same vocabulary share one tokenizer, which takes 30 MB."""
        opened = ServedModel.open(source, self.settings, self.threads)
        vocabulary = opened.albert.tokenizer.fingerprint()
        for other in self:
            if other.albert.tokenizer.fingerprint() == vocabulary:
                opened.albert.tokenizer = other.albert.tokenizer
        return opened

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def choose(self, name: str | None, endpoint: str) -> ServedModel:
        """The named model, or the first with an endpoint; models trained for it come first."""
        if name is None:
            able = [model for model in self if endpoint in model.endpoints]
            if not able:
                tasks = ", ".join(f"{model.name} ({model.albert.metadata.task})" for model in self)
                remedy = self._remedy(endpoint, list(self))
                raise HttpError(424, f"no served model has {endpoint!r} (served: {tasks}); {remedy}")
            trained = [model for model in able if endpoint in TASK_ENDPOINTS.get(model.albert.metadata.task, ())]
            return (trained or able)[0]
        model = self[name]
        if endpoint not in model.endpoints:
            raise HttpError(
                424,
                f"model {name!r}, trained for {model.albert.metadata.task!r}, does not have {endpoint!r}; "
                f"it has {', '.join(sorted(model.endpoints))}; {self._remedy(endpoint, [model])}",
            )
        return model

    def _remedy(self, endpoint: str, models: list[ServedModel]) -> str:
        """Which model to serve for an endpoint that these models do not have."""
        if endpoint != "fill":
            return "serve a model for this task"
        fillers = dict.fromkeys(mask_model(model.albert.source) or PRETRAINED[DEFAULT] for model in models)
        return f"serve {' or '.join(fillers)} too, which fills masks"

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self._models:
            hint, names = nearest(name, self._models), ", ".join(self._models)
            raise HttpError(404, f"model {name!r} is not served{hint}; choose one of {names}", param="model")
        return self._models[name]

    def reload(self) -> dict[str, str]:
        """Open changed models again: each name → 'same', 'reloaded', or the reason why the old one was kept."""
        with self._reload_lock:
            return {source.name: self._reload(source) for source in self.sources}

    def _reload(self, source: ModelSource) -> str:
        old = self._models[source.name]
        try:
            if source.stamp() == old.stamp:
                return "same"
            self._models[source.name] = self._open(source)
        except Exception as error:  # whatever is wrong with the new files, the old model stays
            log.error("reload failed", extra={"facts": {"model": source.name, "reason": str(error)}})
            return f"kept the old one: {error}"
        log.info("reloaded", extra={"facts": {"model": source.name, "version": self._models[source.name].albert.name}})
        return "reloaded"
