"""The service behind the endpoints: requests to batcher jobs, results to vectors, predictions and words.

In: texts and options. Out: what `Albert` returns for the same texts. Texts are tokenized on threads of their own,
computed on the engine's thread, and assembled here. Before: `served_models.py`, `batcher.py`; next: the endpoints.
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
from albertkit.runtime.embed import EmbedOptions, TokenWindows, combine_windows, pool, split_texts, split_tokens
from albertkit.runtime.mask_filling import MaskPrediction, encode_masks, likeliest_tokens, mask_predictions
from albertkit.runtime.predict import read_heads, task_depth, task_features
from albertkit.search.index import Index
from albertkit.serve.batch_queue import BatchJob, ComputeModel, ComputeRoute
from albertkit.serve.batcher import Batcher
from albertkit.serve.metrics import ServerMetrics
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import ApiKeys, ServeSettings
from albertkit.serve.served_models import ServedModel, ServedModels
from albertkit.serve.vector_cache import VectorCache, cache_key
from albertkit.tokenizer import Tokenizer

T = TypeVar("T")
Text = str | list[int]
"""A text, or its token ids."""
TOKENIZER_THREADS = 2
SLOW_THREADS = 4
TOKEN_CHARACTERS = 6  # a high estimate: a request that is rejected for its size has no second chance


@dataclass
class RequestContext:
    """One request: its deadline, and what is logged about it. It never holds a text."""

    deadline: float
    model: str | None = None
    texts: int = 0
    tokens: int = 0
    wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    is_disconnected: bool = False

    @classmethod
    def begin(cls, settings: ServeSettings) -> RequestContext:
        return cls(time.monotonic() + settings.deadline)


@dataclass
class Service:
    """What the endpoints share."""

    settings: ServeSettings
    models: ServedModels
    batcher: Batcher
    metrics: ServerMetrics
    keys: ApiKeys
    cache: VectorCache
    indexes: dict[str, Index] = field(default_factory=dict)
    process_id: bytes = field(default_factory=lambda: secrets.token_hex(4).encode())
    """Prefix of the request ids of this process."""
    is_ready: bool = False
    is_draining: bool = False
    pending_bytes: int = 0
    """Bytes of all open requests."""
    tokenizer_pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TOKENIZER_THREADS, "tokens"))
    slow_pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(SLOW_THREADS, "slow"))
    """For opening models and searching indexes."""

    def choose_model(self, context: RequestContext, name: str | None, endpoint: str) -> ServedModel:
        """The model for a request."""
        model = self.models.choose(name, endpoint)
        context.model = model.name
        return model

    def count_texts(self, context: RequestContext, texts: Sequence[Any]) -> None:
        """Count a request's texts, and reject too many."""
        context.texts += len(texts)
        most = self.settings.max_texts
        if context.texts > most:
            raise HttpError(413, f"the request has {context.texts:,} texts; send at most {most:,} per request")

    async def run_tokenizer(self, function: Callable[..., T], *values: Any) -> T:
        """Call a function on a thread for tokenization."""
        return await asyncio.get_running_loop().run_in_executor(self.tokenizer_pool, function, *values)

    async def run_slow(self, function: Callable[..., T], *values: Any) -> T:
        """Call a function on a thread for slow work outside the engine."""
        return await asyncio.get_running_loop().run_in_executor(self.slow_pool, function, *values)

    async def run_engine(self, context: RequestContext, model: ComputeModel, function: Callable[[], T], work: int) -> T:
        """Call a function that uses the engine, on its thread and in its turn; `work` is tokens times layers."""
        job = BatchJob(ComputeRoute(model, 0, read_vectors), [], context.deadline, call=function, work=work)
        (result,) = await self._run(context, job)
        return result

    async def _run(self, context: RequestContext, job: BatchJob) -> list[Any]:
        """A job's results; its tokens and times are added to the context."""
        tokens, most = job.tokens, self.settings.max_tokens
        if tokens > most:
            raise HttpError(413, f"the request has {tokens:,} tokens; send at most {most:,} per request")
        context.tokens += tokens
        try:
            return await self.batcher.run(job)
        finally:
            context.wait_seconds += max(0.0, job.started - job.arrived) if job.started else 0.0
            context.compute_seconds += job.compute_seconds

    # Vectors -----------------------------------------------------------------------------------------------------

    async def embed(
        self, context: RequestContext, model: ServedModel, texts: Sequence[Text], options: EmbedOptions
    ) -> np.ndarray:
        """Sentence vectors (texts, dim)."""
        self.count_texts(context, texts)
        keys = [b""] * len(texts)
        entries: list[tuple[np.ndarray, int] | None] = [None] * len(texts)
        if self.cache.limit and all(isinstance(text, str) for text in texts):
            keys = [cache_key(f"{model.number} {options}", str(text)) for text in texts]
            entries = [self.cache.get(key) for key in keys]
            misses = entries.count(None)
            self.metrics.observe_cache(len(entries) - misses, misses, self.cache.bytes)
        places = [place for place, entry in enumerate(entries) if entry is None]
        fresh = await self._embed_fresh(context, model, [texts[place] for place in places], options) if places else []
        for place, (vector, tokens) in zip(places, fresh, strict=True):
            entries[place] = (vector, tokens)
            if keys[place]:
                self.cache.put(keys[place], vector, tokens)
        found = [entry for entry in entries if entry is not None]
        cached_tokens = sum(tokens for _, tokens in found) - sum(tokens for _, tokens in fresh)
        context.tokens += cached_tokens
        if not found:
            return np.zeros((0, options.dim or model.albert.dim), np.float32)
        return np.stack([vector for vector, _ in found])

    async def _embed_fresh(
        self, context: RequestContext, model: ServedModel, texts: Sequence[Text], options: EmbedOptions
    ) -> list[tuple[np.ndarray, int]]:
        """The vector and the number of tokens of each text, computed."""
        estimate = sum(map(len, texts)) // TOKEN_CHARACTERS
        self.batcher.check(model, estimate * options.depth)  # before tokenization
        windows = await self.run_tokenizer(split_into_windows, model, texts, options)
        route = ComputeRoute(model, options.depth, read_vectors, options.pooling)
        ids = [np.array(window, np.int32) for window in windows.ids]
        rows = await self._run(context, BatchJob(route, ids, context.deadline))
        vectors, lengths = combine_windows(np.stack(rows), windows, options), windows.lengths
        return [
            (vector, sum(lengths[place] for place in places))
            for vector, places in zip(vectors, windows.by_text, strict=True)
        ]

    async def query_cosines(
        self,
        context: RequestContext,
        model: ServedModel,
        query: str,
        texts: Sequence[str],
        depth: int | None = None,
    ) -> np.ndarray:
        """Cosines (texts,) of a query with texts, with the model's prompts for both if it has them."""
        prompts = model.albert.metadata.prompts
        query_options, text_options = (
            model.albert.embed_options(normalize=True, depth=depth, prompt=name if name in prompts else None)
            for name in ("query", "passage")
        )
        one, many = await asyncio.gather(
            self.embed(context, model, [query], query_options), self.embed(context, model, texts, text_options)
        )
        return np.asarray(many @ one[0])

    # Predictions -------------------------------------------------------------------------------------------------

    async def predict(
        self, context: RequestContext, model: ServedModel, examples: Sequence[Any], task: str, depth: int | None = None
    ) -> list[Any]:
        """The results of the model's task for examples."""
        self.count_texts(context, examples)
        scores, features = await self._scores(context, model, examples, task, depth)
        return await self.run_tokenizer(model.albert.task.results, scores, features, examples)

    async def predict_scores(
        self, context: RequestContext, model: ServedModel, examples: Sequence[Any], task: str
    ) -> np.ndarray:
        """The scores of the task's head, (examples, classes); for tasks with one row per example."""
        self.count_texts(context, examples)
        scores, _ = await self._scores(context, model, examples, task, None)
        return np.stack(scores).astype(np.float64)

    async def _scores(
        self, context: RequestContext, model: ServedModel, examples: Sequence[Any], task: str, depth: int | None
    ) -> tuple[list[Any], list[Any]]:
        layers = task_depth(model.albert, depth)
        features = await self.run_tokenizer(task_features, model.albert, examples, task)
        ids, segments = [f.ids for f in features], [f.segments for f in features]
        job = BatchJob(ComputeRoute(model, layers, read_scores), ids, context.deadline, segments)
        return await self._run(context, job), features

    async def fill_masks(
        self, context: RequestContext, model: ServedModel, texts: Sequence[str], k: int, depth: int | None
    ) -> list[list[list[MaskPrediction]]]:
        """For each text, the most likely words for each of its masks."""
        self.count_texts(context, texts)
        albert = model.albert
        layers = albert.layers_to_apply(depth)
        encodings = await self.run_tokenizer(lambda: [encode_masks(albert, text, k) for text in texts])
        job = BatchJob(
            ComputeRoute(model, layers, read_words),
            [encoding.ids for encoding, _ in encodings],
            context.deadline,
            [encoding.segments for encoding, _ in encodings],
            [(places, k) for _, places in encodings],
        )
        best = await self._run(context, job)
        return [mask_predictions(albert, text, words) for text, words in zip(texts, best, strict=True)]


# Readers of hidden states (rows, length, H), on the engine's thread ----------------------------------------------


def read_vectors(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    return list(np.asarray(pool(route.model.albert, hidden, lengths, route.pooling), np.float32))


def read_scores(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    return read_heads(route.model.albert, hidden, lengths)


def read_words(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    """The most likely words; an argument is (places of masks, number of words)."""
    return [likeliest_tokens(route.model.albert, hidden[at, places], k) for at, (places, k) in enumerate(arguments)]


# Texts and token ids ---------------------------------------------------------------------------------------------


def split_into_windows(model: ServedModel, texts: Sequence[Text], options: EmbedOptions) -> TokenWindows:
    ids = [strip_special_tokens(model.albert.tokenizer, text) for text in texts if not isinstance(text, str)]
    if ids:
        return split_tokens(model.albert, ids, options.long_texts)
    return split_texts(model.albert, [text for text in texts if isinstance(text, str)], options)


def strip_special_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Token ids of a text without the special tokens around it."""
    for token in ids:
        if not 0 <= token < tokenizer.vocab_size:
            raise AlbertkitError(
                f"token id {token} is not in this model's vocabulary of {tokenizer.vocab_size:,}; "
                "send text, or ids from /tokenize"
            )
    start = int(len(ids) > 0 and ids[0] == tokenizer.cls_id)
    stop = len(ids) - int(len(ids) > start and ids[-1] == tokenizer.sep_id)
    return list(ids[start:stop])


def as_texts(value: object, name: str) -> list[str]:
    """One text or several, as a list."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise HttpError(422, f"{name} must be a text or a list of at least one text", param=name)
    return texts


def as_texts_or_tokens(value: object, name: str) -> list[Text]:
    """One text or several, or the token ids of one or several, as a list."""
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(ids, list) for ids in value):
        for ids in value:
            if not ids or not all(type(token) is int for token in ids):
                raise HttpError(422, f"each list in {name} must contain token ids, at least one", param=name)
        return value
    return list(as_texts(value, name))
