"""The service behind the endpoints: requests to batcher jobs, results to vectors, predictions and words.

In: texts and options. Out: the results of `Albert` for the same texts. Texts are tokenized on separate threads,
computed on the engine's thread, and assembled here. Imports `served_models.py`, `batcher.py`; the endpoints use it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector

from albertkit.errors import AlbertkitError
from albertkit.runtime.embed import EmbedOptions, TokenWindows, combine_windows, pool, split_texts, split_tokens
from albertkit.runtime.mask_filling import MaskPrediction, encode_masks, likeliest_tokens, mask_predictions
from albertkit.runtime.predict import read_heads, task_depth, task_features
from albertkit.search.index import Index
from albertkit.serve.batcher import Batcher, BatchJob, ComputeRoute, EngineCall
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import ApiKeys, ServeSettings
from albertkit.serve.served_models import ServedModel, ServedModels, TokenCost
from albertkit.tokenizer import Tokenizer

T = TypeVar("T")
Text = str | list[int]
"""A text, or its token ids."""
TOKENIZER_THREADS = 2
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
TOKEN_CHARACTERS = 6  # a high estimate: a request that is rejected for its size has no second chance


class ServerMetrics:
    """Metrics for Prometheus; they contain no text.

    With several workers the numbers of all are summed, through files in a folder that `server.py` creates before this
    file is imported.
    """

    def __init__(self) -> None:
        disable_created_metrics()
        is_shared = FOLDER_VARIABLE in os.environ
        self.registry = CollectorRegistry()
        registry: dict[str, Any] = {"registry": None if is_shared else self.registry}
        gauge: dict[str, Any] = {"multiprocess_mode": "livesum", **registry}
        seconds, sizes = {"buckets": SECONDS, **registry}, {"buckets": SIZES, **registry}
        self.requests = Counter("albertkit_requests", "Finished requests.", ["endpoint", "status"], **registry)
        self.seconds = Histogram("albertkit_request_seconds", "Time of a request.", ["endpoint"], **seconds)
        self.rejected = Counter("albertkit_rejected", "Requests with an error, by type.", ["error_type"], **registry)
        self.disconnected = Counter("albertkit_disconnected", "Requests whose client disconnected.", **registry)
        self.texts = Counter("albertkit_texts", "Computed rows.", ["model"], **registry)
        self.tokens = Counter("albertkit_tokens", "Computed tokens.", ["model"], **registry)
        self.batch_seconds = Histogram("albertkit_batch_seconds", "Time of a batch.", ["model"], **seconds)
        self.batch_texts = Histogram("albertkit_batch_texts", "Rows in a batch.", **sizes)
        self.batch_tokens = Histogram("albertkit_batch_tokens", "Tokens in a batch.", **sizes)
        self.wait = Histogram("albertkit_wait_seconds", "How long the oldest row of a batch waited.", **seconds)
        self.waiting = Gauge("albertkit_waiting_seconds", "Waiting work, in seconds.", **gauge)
        self.pending_bytes = Gauge("albertkit_pending_bytes", "Bytes of open requests.", **gauge)
        self.reloads = Counter("albertkit_reloads", "Reloads of a model, by result.", ["result"], **registry)
        if is_shared:
            MultiProcessCollector(self.registry)

    def observe_batch(self, model: ServedModel, texts: int, tokens: int, seconds: float, waited: float) -> None:
        self.texts.labels(model.name).inc(texts)
        self.tokens.labels(model.name).inc(tokens)
        self.batch_seconds.labels(model.name).observe(seconds)
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)
        self.wait.observe(waited)


@dataclass
class Service:
    """The state that all requests share."""

    settings: ServeSettings
    models: ServedModels
    batcher: Batcher
    metrics: ServerMetrics
    keys: ApiKeys
    indexes: dict[str, Index] = field(default_factory=dict)
    process_id: bytes = field(default_factory=lambda: secrets.token_hex(4).encode())
    """Prefix of the request ids of this process."""
    is_ready: bool = False
    is_draining: bool = False
    pending_bytes: int = 0
    """Bytes of all open requests."""
    tokenizer_pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TOKENIZER_THREADS, "tokens"))


class RequestContext:
    """One request: its limits, its deadline and its log entry. It never contains a text."""

    def __init__(self, service: Service) -> None:
        self.service, self.settings = service, service.settings
        self.deadline = time.monotonic() + self.settings.deadline
        self.model_name: str | None = None
        self.texts = self.tokens = 0
        self.bytes = 0  # of the request and its response, counted in the service's `pending_bytes`
        self.wait_seconds = self.compute_seconds = 0.0
        self.is_disconnected = False
        self.error_type: str | None = None

    def choose_model(self, name: str | None, endpoint: str) -> ServedModel:
        """The model for a request."""
        model = self.service.models.choose(name, endpoint)
        self.model_name = model.name
        return model

    def count_texts(self, texts: Sequence[Any]) -> None:
        """Count a request's texts, and reject too many."""
        self.texts += len(texts)
        most = self.settings.max_texts
        if self.texts > most:
            raise HttpError(413, f"the request has {self.texts:,} texts; send at most {most:,} per request")

    def count_bytes(self, count: int, limit: int | None = None) -> None:
        """Count bytes of an open request; with `limit`, reject it if all requests together exceed it."""
        if limit is not None and self.service.pending_bytes + count > limit:
            raise HttpError(
                429, f"open requests already take {self.service.pending_bytes:,} bytes; retry later", retry_after=1
            )
        self.bytes += count
        self.service.pending_bytes += count

    async def run_tokenizer(self, function: Callable[..., T], *values: Any) -> T:
        """Call a function on a thread for tokenization."""
        return await asyncio.get_running_loop().run_in_executor(self.service.tokenizer_pool, function, *values)

    async def run_engine(self, cost: TokenCost, function: Callable[[], T], work: int) -> T:
        """Call a function that uses the engine, on its thread and in its turn; `work` is tokens times layers."""
        job = BatchJob(EngineCall(cost, function), [()], self.deadline, work=work)
        (result,) = await self._run(job)
        return cast(T, result)

    async def _run(self, job: BatchJob) -> list[Any]:
        """A job's results; its tokens and times are added to the self."""
        tokens, most = job.tokens, self.settings.max_tokens
        if tokens > most:
            raise HttpError(413, f"the request has {tokens:,} tokens; send at most {most:,} per request")
        self.tokens += tokens
        try:
            return await self.service.batcher.run(job)
        finally:
            self.wait_seconds += max(0.0, job.started - job.arrived) if job.started else 0.0
            self.compute_seconds += job.compute_seconds

    # Vectors -----------------------------------------------------------------------------------------------------

    async def embed(self, model: ServedModel, texts: Sequence[Text], options: EmbedOptions) -> np.ndarray:
        """Sentence vectors (texts, dim)."""
        self.count_texts(texts)
        if not texts:
            return np.zeros((0, options.dim or model.albert.dim), np.float32)
        estimate = sum(map(len, texts)) // TOKEN_CHARACTERS
        self.service.batcher.check(estimate * options.depth * model.token_cost.seconds)  # before tokenization
        windows = await self.run_tokenizer(split_into_windows, model, texts, options)
        route = ComputeRoute(model, options.depth, read_vectors, options.pooling)
        ids = [np.array(window, np.int32) for window in windows.ids]
        rows = await self._run(BatchJob(route, ids, self.deadline))
        return combine_windows(np.stack(rows), windows, options)

    async def query_cosines(
        self, model: ServedModel, query: str, texts: Sequence[str], depth: int | None = None
    ) -> np.ndarray:
        """Cosines (texts,) of a query with texts, with the model's prompts for both if it has them."""
        prompts = model.albert.metadata.prompts
        query_options, text_options = (
            model.albert.embed_options(normalize=True, depth=depth, prompt=name if name in prompts else None)
            for name in ("query", "passage")
        )
        one, many = await asyncio.gather(
            self.embed(model, [query], query_options), self.embed(model, texts, text_options)
        )
        return np.asarray(many @ one[0])

    # Predictions -------------------------------------------------------------------------------------------------

    async def predict(
        self, model: ServedModel, examples: Sequence[Any], task: str, depth: int | None = None
    ) -> list[Any]:
        """The results of the model's task for examples."""
        scores, features = await self.predict_scores(model, examples, task, depth)
        return await self.run_tokenizer(model.albert.task.results, scores, features, examples)

    async def predict_scores(
        self, model: ServedModel, examples: Sequence[Any], task: str, depth: int | None = None
    ) -> tuple[list[Any], list[Any]]:
        """The scores of the task's head and the features, one of each per row."""
        self.count_texts(examples)
        layers = task_depth(model.albert, depth)
        features = await self.run_tokenizer(task_features, model.albert, examples, task)
        ids, segments = [f.ids for f in features], [f.segments for f in features]
        job = BatchJob(ComputeRoute(model, layers, read_scores), ids, self.deadline, segments)
        return await self._run(job), features

    async def fill_masks(
        self, model: ServedModel, texts: Sequence[str], k: int, depth: int | None
    ) -> list[list[list[MaskPrediction]]]:
        """For each text, the most likely words for each of its masks."""
        self.count_texts(texts)
        albert = model.albert
        layers = albert.layers_to_apply(depth)
        encodings = await self.run_tokenizer(lambda: [encode_masks(albert, text, k) for text in texts])
        job = BatchJob(
            ComputeRoute(model, layers, read_words),
            [encoding.ids for encoding, _ in encodings],
            self.deadline,
            [encoding.segments for encoding, _ in encodings],
            [(places, k) for _, places in encodings],
        )
        best = await self._run(job)
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


def as_texts(value: str | list[str]) -> list[str]:
    """One text or several, as a list."""
    return [value] if isinstance(value, str) else value


def as_texts_or_tokens(value: str | list[str | int | list[int]], name: str) -> list[Text]:
    """One text or several, or the token ids of one or several, as a list."""
    if isinstance(value, str):
        return [value]
    kinds = {type(item) for item in value}
    if len(kinds) > 1:
        raise HttpError(422, f"{name} contains texts and token ids; send either", param=name)
    return cast(list[Text], [value] if kinds == {int} else value)
