"""The models that are served: opened, named, chosen by what they can do, and exchanged while requests run.

In: folders, each alone or as NAME=FOLDER; none for the built-in models. Out: `ServedModel`s. After this file: `work.py` computes with them.

A reload opens the new files beside the old model, checks their hashes, computes once, and only then puts the new model in the old
one's place. Requests that have begun end with the old one. Files that cannot be opened change nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.artifact import model_folder
from albertkit.builtin import DEFAULT, WORDS
from albertkit.errors import AlbertkitError, nearest
from albertkit.runtime.batching import pad_batch
from albertkit.runtime.early_exit import available_exit_depths
from albertkit.serve.batch_queue import TokenCost
from albertkit.serve.http_error import HttpError
from albertkit.serve.serve_settings import ServeSettings
from albertkit.weights import size as parameters_of

log = logging.getLogger("albertkit.serve")
ALWAYS = ("embed", "rerank", "similar", "search", "tokenize", "explain")
BY_TASK = {"classify": ("classify", "predict"), "tag": ("tag",), "answer": ("answer",), "choose": ("choose",), "intent": ("intent",), "generate": ("generate",)}  # fmt: skip
_numbers = itertools.count(1)


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, and its name; no folder means the built-in model."""

    name: str
    folder: Path | None

    @classmethod
    def of(cls, text: str) -> ModelSource:
        """From FOLDER or NAME=FOLDER.

        >>> Source.of("en=models/albert").name, Source.of("models/albert").name, Source.of("run/model").name
        ('en', 'albert', 'run')
        """
        name, given, rest = text.partition("=")
        if given and not Path(text).exists():
            return cls(name, Path(rest))
        folder = Path(text).absolute()
        return cls(folder.parent.name if folder.name == "model" and folder.parent.name else folder.name, Path(text))

    @classmethod
    def all_of(cls, texts: list[str]) -> list[ModelSource]:
        """Several, which must have different names; without any, what `Albert()` uses: for vectors, and for words."""
        found = [cls.of(text) for text in texts] or [cls(DEFAULT, None), cls(WORDS, Path(WORDS))]
        for number, source in enumerate(found):
            if not source.name or source.name in {other.name for other in found[:number]}:
                raise AlbertkitError(f"two models are named {source.name!r}; write NAME=FOLDER to name them apart")
        return found

    def stamp(self) -> str:
        """Changes when the files do."""
        try:
            folder = model_folder(self.folder)
            files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
            facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns, file.stat().st_ino) for file in files]
        except OSError as error:
            raise AlbertkitError(
                f"{self.folder} cannot be read: {error.strerror}; name a folder that holds a model, or a built-in one"
            ) from None
        return hashlib.sha256(repr(facts).encode()).hexdigest()


@dataclass(eq=False)
class ServedModel:
    """A model that is served."""

    name: str
    albert: Albert
    stamp: str
    token_cost: TokenCost
    opened: float = field(default_factory=time.time)
    number: int = field(default_factory=lambda: next(_numbers))
    """Different for each opening, so that nothing remembered of one model is taken for another's."""

    @classmethod
    def open(cls, source: ModelSource, settings: ServeSettings, threads: int) -> ServedModel:
        """Open, and compute one full batch: it shows that the model works, warms it up, and tells its pace."""
        stamp = source.stamp()
        albert = Albert(source.folder, bits=settings.bits, threads=threads, token_budget=settings.token_budget)
        length = min(64, albert.max_tokens)
        rows = max(1, settings.token_budget // length)
        ids = np.full((rows, length), min(5, albert.config.vocab_size - 1))
        best = float("inf")
        for _ in range(2):
            began = time.perf_counter()
            hidden = albert.engine.run(pad_batch(list(ids), None, list(range(rows))), albert.depth)
            best = min(best, time.perf_counter() - began)
        if albert.meta.task == "generate":
            _ = albert.generator  # opened now, so that the first request does not wait for it
        if not np.isfinite(hidden).all():
            raise AlbertkitError(f"{source.folder or 'the built-in model'} computes numbers that are not finite")
        return cls(source.name, albert, stamp, TokenCost(best / (rows * length * albert.depth)))

    @cached_property
    def can(self) -> frozenset[str]:
        """The endpoints it can answer."""
        found = {*ALWAYS, *BY_TASK.get(self.albert.meta.task, ())}
        if self.albert.meta.task == "classify" and self.albert.task.kind == "single":
            found.add("intent")  # intents without slots
        if self.albert.tokenizer.mask_id is not None and self.albert.can_fill_masks:
            found.add("fill")
        if self.albert.config.options.static:
            found.discard("explain")  # there are no layers to look at
        return frozenset(found)

    def facts(self) -> dict[str, Any]:
        """What a program or a page needs to know about it."""
        albert = self.albert
        config, meta = albert.config, albert.meta
        from albertkit.weights import encoder_shapes

        return {
            "id": self.name,
            "task": meta.task,
            "labels": list(meta.labels),
            "endpoints": sorted(self.can),
            "dimensions": albert.dim,
            "max_tokens": albert.max_tokens,
            "layers": config.num_hidden_layers,
            "depth": albert.depth,
            "depths": [] if config.options.static else sorted({*available_exit_depths(albert), albert.depth}),
            "heads": config.num_attention_heads,
            "parameters": parameters_of(encoder_shapes(config)),
            "vocabulary": albert.tokenizer.vocab_size,
            "tokenizer": albert.tokenizer.kind,
            "pooling": meta.pooling,
            "prompts": dict(meta.prompts),
            "weights": meta.quantisation or (f"int{albert.bits}" if albert.bits else "float32"),
            "version": albert.name,
            "opened": int(self.opened),
        }


class ServedModels:
    """All models of a process, by name. A reload exchanges one entry; whoever holds a `ServedModel` keeps it."""

    def __init__(self, sources: list[ModelSource], settings: ServeSettings, threads: int) -> None:
        self.sources, self.settings, self.threads = sources, settings, threads
        self._held = {source.name: ServedModel.open(source, settings, threads) for source in sources}
        self._reloading = threading.Lock()

    def __iter__(self) -> Any:
        return iter(self._held.values())

    def pick(self, name: str | None, ability: str) -> ServedModel:
        """The named model, or the first that has an ability, one made for it before others; it must have it."""
        if name is not None:
            model = self._held.get(name)
            if model is None:
                names = ", ".join(self._held)
                raise HttpError(
                    404, f"there is no model {name!r}{nearest(name, self._held)}; served: {names}", name="model"
                )
            if ability not in model.can:
                made = f"it was made for {model.albert.meta.task!r} and can: {', '.join(sorted(model.can))}"
                raise HttpError(424, f"the model {name!r} cannot do {ability!r}; {made}")
            return model
        able = [model for model in self._held.values() if ability in model.can]
        if able:
            for_it = [model for model in able if ability in BY_TASK.get(model.albert.meta.task, ())]
            return (for_it or able)[0]
        tasks = ", ".join(f"{m.name} ({m.albert.meta.task})" for m in self._held.values())
        raise HttpError(424, f"no served model can do {ability!r}; served: {tasks}; serve one that was made for it")

    def reload(self) -> dict[str, str]:
        """Open again what has changed on disk: the name of each model → 'same', 'reloaded', or the reason why it was kept."""
        found = {}
        with self._reloading:
            for source in self.sources:
                found[source.name] = self._reload(source)
        return found

    def _reload(self, source: ModelSource) -> str:
        old = self._held[source.name]
        try:
            if source.stamp() == old.stamp:
                return "same"
            self._held[source.name] = ServedModel.open(source, self.settings, self.threads)
        except Exception as error:  # whatever is wrong with the new files, the old model stays
            log.error("reload failed", extra={"facts": {"model": source.name, "reason": str(error)}})
            return f"kept the old one: {error}"
        log.info("reloaded", extra={"facts": {"model": source.name, "version": self._held[source.name].albert.name}})
        return "reloaded"
