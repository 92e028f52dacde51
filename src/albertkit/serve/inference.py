"""Requests to rows, rows to answers: what the endpoints share.

In: texts and how to read them. Out: vectors, task results, words. Before this file: `models.py`, `batcher.py`; after it: the
endpoints. Texts are cut into tokens on threads of their own, computed on the engine's thread, and put together here; what each
endpoint gives equals what `Albert` gives for the same texts.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.runtime.embed import EmbedOptions, TokenWindows, combine_windows, split_texts, split_tokens
from albertkit.runtime.embed import pool as pool_hidden
from albertkit.runtime.mask_filling import MaskPrediction, encode_masks, likeliest_tokens, mask_predictions
from albertkit.runtime.predict import read_heads, task_depth, task_features
from albertkit.serve.batch_queue import BatchJob, ComputeModel, ComputeRoute
from albertkit.serve.batcher import Batcher
from albertkit.serve.http_error import HttpError
from albertkit.serve.metrics import ServerMetrics
from albertkit.serve.serve_settings import ApiKeys, ServeSettings
from albertkit.serve.served_models import ServedModel, ServedModels
from albertkit.serve.vector_cache import VectorCache, cache_key

T = TypeVar("T")
CUTTERS = 2  # threads that cut texts into tokens
CHARACTERS = 6  # in a token, or more: a cautious guess, since what is refused for it has no second chance
LOOKERS = 4  # threads for what takes longer


@dataclass
class RequestContext:
    """One request: until when it must be answered, and what is told about it afterwards. It never holds a text."""

    deadline: float
    model: str | None = None
    texts: int = 0
    tokens: int = 0
    waited: float = 0.0
    computing: float = 0.0
    gone: bool = False
    """The client has left."""


@dataclass
class Service:
    """What every endpoint may use."""

    settings: ServeSettings
    models: ServedModels
    batcher: Batcher
    metrics: ServerMetrics
    keys: ApiKeys
    cache: VectorCache
    indexes: dict[str, Any] = field(default_factory=dict)
    name: bytes = field(default_factory=lambda: secrets.token_hex(4).encode())
    """Of this process, in the names of its requests."""
    draining: bool = False
    ready: bool = False
    held: int = 0
    """Bytes of all requests at work."""
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(CUTTERS, "cutter"))
    slow: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(LOOKERS, "slow"))
    """For opening models and for searching an index."""

    def pick(self, context: RequestContext, name: str | None, ability: str) -> ServedModel:
        """The model for a request."""
        model = self.models.pick(name, ability)
        context.model = model.name
        return model

    def foresee(self, model: ServedModel, texts: Sequence[Any], depth: int) -> None:
        """Refuse texts that could not be computed in time, from their sizes, before they are cut into tokens."""
        self.batcher.check(model, sum(map(len, texts)) // CHARACTERS * depth)

    async def cut(self, make: Callable[..., T], *values: Any) -> T:
        """Call something on a thread for cutting texts."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, make, *values)

    async def compute(self, context: RequestContext, job: BatchJob) -> list[Any]:
        """A job's results; what it took is noted."""
        tokens = job.tokens
        if tokens > self.settings.max_tokens:
            raise HttpError(
                413, f"the request has {tokens:,} tokens; send at most {self.settings.max_tokens:,} at a time"
            )
        context.tokens += tokens
        try:
            return await self.batcher.run(job)
        finally:
            context.waited += max(0.0, job.started - job.arrived) if job.started else 0.0
            context.computing += job.computing

    def count(self, context: RequestContext, texts: Sequence[Any]) -> None:
        """Note how many texts a request has, and refuse too many."""
        context.texts += len(texts)
        if context.texts > self.settings.max_texts:
            raise HttpError(
                413, f"the request has {context.texts:,} texts; send at most {self.settings.max_texts:,} at a time"
            )

    # What models give --------------------------------------------------------------------------------------------

    async def vectors(
        self, context: RequestContext, model: ServedModel, texts: Sequence[Any], options: EmbedOptions
    ) -> np.ndarray:
        """Sentence vectors (texts, dim) of texts, or of texts as token ids."""
        self.count(context, texts)
        keys = [b""] * len(texts)
        known: list[tuple[np.ndarray, int] | None] = [None] * len(texts)
        if self.cache.limit and all(isinstance(text, str) for text in texts):
            how = f"{model.number} {options}"
            keys = [cache_key(how, text) for text in texts]
            known = [self.cache.get(key) for key in keys]
            self.metrics.cached(sum(one is not None for one in known), known.count(None), self.cache.bytes)
        new = [place for place, one in enumerate(known) if one is None]
        found = await self._fresh_vectors(context, model, [texts[place] for place in new], options) if new else []
        for place, (vector, tokens) in zip(new, found, strict=True):
            known[place] = (vector, tokens)
            if keys[place]:
                self.cache.put(keys[place], vector, tokens)
        context.tokens += sum(one[1] for one in known if one is not None) - sum(tokens for _, tokens in found)
        rows = [one[0] for one in known if one is not None]
        return np.stack(rows) if rows else np.zeros((0, options.dim or model.albert.dim), np.float32)

    async def fitting(
        self, context: RequestContext, model: ServedModel, query: str, texts: Sequence[str], depth: int | None = None
    ) -> np.ndarray:
        """Cosines (texts,) of a query and texts, with the model's prompts for both where it has them."""
        prompts = model.albert.meta.prompts
        recipes = [
            model.albert.embed_options(normalize=True, depth=depth, prompt=name if name in prompts else None)
            for name in ("query", "passage")
        ]
        one, many = await asyncio.gather(
            self.vectors(context, model, [query], recipes[0]), self.vectors(context, model, texts, recipes[1])
        )
        found: np.ndarray = many @ one[0]
        return found

    async def _fresh_vectors(
        self, context: RequestContext, model: ServedModel, texts: Sequence[Any], options: EmbedOptions
    ) -> list[tuple[np.ndarray, int]]:
        self.foresee(model, texts, options.depth)
        windows = await self.cut(windows_of, model, texts, options)
        route = ComputeRoute(model, options.depth, pool, options.pooling)
        rows = await self.compute(
            context, BatchJob(route, [np.array(ids, np.int32) for ids in windows.ids], context.deadline)
        )
        vectors, lengths = combine_windows(np.stack(rows), windows, options), windows.lengths
        tokens = [sum(lengths[window] for window in own) for own in windows.by_text]
        return list(zip(vectors, tokens, strict=True))

    async def results(
        self, context: RequestContext, model: ServedModel, examples: Sequence[Any], task: str, depth: int | None = None
    ) -> list[Any]:
        """What a model made for a task says about examples."""
        self.count(context, examples)
        scores, features = await self._scores(context, model, examples, task, depth)
        return await self.cut(model.albert.task.results, scores, features, examples)

    async def scores(
        self, context: RequestContext, model: ServedModel, examples: Sequence[Any], task: str
    ) -> list[Any]:
        """The scores of the task's head, one for each example; for tasks with one row an example."""
        self.count(context, examples)
        return (await self._scores(context, model, examples, task, None))[0]

    async def _scores(
        self, context: RequestContext, model: ServedModel, examples: Sequence[Any], task: str, depth: int | None
    ) -> tuple[list[Any], list[Any]]:
        layers = task_depth(model.albert, depth)
        features = await self.cut(task_features, model.albert, examples, task)
        ids, segments = [f.ids for f in features], [f.segments for f in features]
        job = BatchJob(ComputeRoute(model, layers, heads), ids, context.deadline, segments)
        return await self.compute(context, job), features

    async def words(
        self, context: RequestContext, model: ServedModel, texts: Sequence[str], k: int, depth: int | None
    ) -> list[list[list[MaskPrediction]]]:
        """For each text the likeliest words for each of its masks."""
        self.count(context, texts)
        albert = model.albert
        layers = albert.layers_to_apply(depth)
        made = await self.cut(lambda: [encode_masks(albert, text, k) for text in texts])
        job = BatchJob(
            ComputeRoute(model, layers, masks),
            [encoding.ids for encoding, _ in made],
            context.deadline,
            [encoding.segments for encoding, _ in made],
            [(places, k) for _, places in made],
        )
        best = await self.compute(context, job)
        return [mask_predictions(albert, text, own) for text, own in zip(texts, best, strict=True)]

    async def call(self, context: RequestContext, model: ComputeModel, function: Callable[[], T], work: int) -> T:
        """Something that uses the engine by itself, in its turn; `work` is tokens times layers."""
        job = BatchJob(ComputeRoute(model, 0, pool), [], context.deadline, call=function, work=work)
        (found,) = await self.compute(context, job)
        result: T = found
        return result


# What is read off hidden states (texts, length, H); on the engine's thread ----------------------------------------


def pool(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, marks: list[Any]) -> list[np.ndarray]:
    """Sentence vectors."""
    return list(np.asarray(pool_hidden(route.model.albert, hidden, lengths, route.how), np.float32))


def heads(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, marks: list[Any]) -> list[Any]:
    """Scores of the task's heads."""
    return read_heads(route.model.albert, hidden, lengths)


def masks(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, marks: list[Any]) -> list[Any]:
    """Likeliest words; a mark is (places of masks, how many words)."""
    return [likeliest_tokens(route.model.albert, hidden[at, places], k) for at, (places, k) in enumerate(marks)]


# What is asked for, checked --------------------------------------------------------------------------------------


def windows_of(model: ServedModel, texts: Sequence[Any], options: EmbedOptions) -> TokenWindows:
    """Windows of token ids for texts, or for token ids."""
    if texts and not isinstance(texts[0], str):
        return split_tokens(model.albert, [bare(model.albert.tokenizer, ids) for ids in texts], options.long_texts)
    return split_texts(model.albert, texts, options)


def bare(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Token ids of a text without the special ones around it."""
    most = tokenizer.vocab_size
    for token in ids:
        if not 0 <= token < most:
            raise AlbertkitError(
                f"token {token} is not in this model's vocabulary of {most:,}; send text, or ids from /tokenize"
            )
    start = int(len(ids) > 0 and ids[0] == tokenizer.cls_id)
    stop = len(ids) - int(len(ids) > start and ids[-1] == tokenizer.sep_id)
    return list(ids[start:stop])


def texts_of(value: Any, name: str) -> list[str]:
    """A text or several, as a list."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise HttpError(422, f"{name} must be a text or a list of at least one text", name=name)
    return found


def texts_or_tokens(value: Any, name: str) -> list[Any]:
    """A text, several, the token ids of one, or of several, as a list of one kind."""
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(ids, list) for ids in value):
        for ids in value:
            if not ids or not all(type(token) is int for token in ids):
                raise HttpError(422, f"each list in {name} must hold token ids, at least one", name=name)
        return value
    return texts_of(value, name)


def seconds_left(settings: ServeSettings) -> float:
    """When a request that comes now must be answered, on the clock of the batcher."""
    return time.monotonic() + settings.deadline
