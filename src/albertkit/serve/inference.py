"""The service behind the endpoints: requests to batcher jobs, results to vectors, predictions and words.

In: texts and options. Out: the results of `Albert` for the same texts. Texts are tokenized on separate threads,
computed on the engine's thread, and assembled here. Imports `served_models.py`, `batcher.py`; the endpoints use it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector

from albertkit.errors import check_finite
from albertkit.input_warnings import InputProblems, collect_problems
from albertkit.runtime.embed import EmbedOptions, TokenWindows, combine_windows, pool, report_untrained_vectors
from albertkit.runtime.mask_filling import MaskPrediction, encode_masks, likeliest_tokens, mask_predictions
from albertkit.runtime.predict import read_heads, report_untrained_depth, task_depth
from albertkit.runtime.runtime_model import Depth
from albertkit.serve.batcher import Batcher, BatchJob, ComputeRoute, EngineCall
from albertkit.serve.request_texts import (
    MAX_EXPANSION,
    Text,
    characters,
    features_of_group,
    normalized_length,
    split_into_windows,
)
from albertkit.serve.response_size import OBJECT_MEMORY, PREDICTION_BYTES, text_bytes, vector_bytes
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import METRICS_VARIABLE, ApiKeys, ServeSettings
from albertkit.serve.served_indexes import ServedIndexes
from albertkit.serve.served_models import ServedModel, ServedModels, TokenCost
from albertkit.tasks.task import Feature
from albertkit.tokenizer import Encoding

if TYPE_CHECKING:
    from albertkit.serve.otlp import OtlpExport

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
TOKENIZER_THREADS = 2
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LARGE_MEMORY = 4 * 2**20  # bytes of a response in memory; larger ones are computed one after the other
GROUP_CHARACTERS = 100_000  # tokenized at a time; takes up to 50 MB
TOKEN_CHARACTERS = 6  # a high estimate: a request that is rejected for its size has no second chance


class ServerMetrics:
    """Metrics for Prometheus; they contain no text.

    With several workers the numbers of all are summed, through files in a folder that `server.py` creates before this
    file is imported.
    """

    def __init__(self) -> None:
        disable_created_metrics()
        is_shared = METRICS_VARIABLE in os.environ
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
    indexes: ServedIndexes
    process_id: bytes = field(default_factory=lambda: secrets.token_hex(4).encode())
    """Prefix of the request ids of this process."""
    is_ready: bool = False
    is_draining: bool = False
    pending_bytes: int = 0
    """Bytes of all open requests."""
    large_response_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one request whose large response is computed and written."""
    tokenizer_pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TOKENIZER_THREADS, "tokens"))
    telemetry: OtlpExport | None = None

    def refresh_gauges(self) -> None:
        """Set the metrics of the current state, before they are read."""
        self.metrics.waiting.set(self.batcher.waiting()[1])
        self.metrics.pending_bytes.set(self.pending_bytes)


class RequestContext:
    """One request: its limits, its deadline and its log entry. It never contains a text."""

    def __init__(self, service: Service) -> None:
        self.service, self.settings = service, service.settings
        self.deadline = time.monotonic() + self.settings.deadline
        self.model_name: str | None = None
        self.texts = self.tokens = 0
        self.bytes = 0  # of the request and its response, counted in the service's `pending_bytes`
        self.response_bytes = 0  # foreseen
        self.response_memory = 0  # foreseen, until the response is written
        self.has_response_lock = False  # `large_response_lock`
        self.wait_seconds = self.compute_seconds = 0.0
        self.is_disconnected = False
        self.error_type: str | None = None
        self.problems = InputProblems()

    def choose_model(self, name: str | None, endpoint: str) -> ServedModel:
        model = self.service.models.choose(name, endpoint)
        self.model_name = model.name
        return model

    def count_texts(self, texts: Sequence[Any]) -> None:
        """Count a request's texts, and reject too many."""
        self.texts += len(texts)
        limit = self.settings.max_texts
        if self.texts > limit:
            raise HttpError(413, f"the request has {self.texts:,} texts; send at most {limit:,} per request")

    def count_bytes(self, count: int, limit: int | None = None) -> None:
        """Count bytes of an open request; with `limit`, reject it if all requests together exceed it."""
        if limit is not None and self.bytes + count > limit:
            raise HttpError(
                413, f"the request needs {self.bytes + count:,} bytes of memory; at most {limit:,} are allowed"
            )
        if limit is not None and self.service.pending_bytes + count > limit:
            raise HttpError(
                429, f"open requests already take {self.service.pending_bytes:,} bytes; retry later", retry_after=1
            )
        self.bytes += count
        self.service.pending_bytes += count

    def foresee_response(self, count: int, remedy: str, memory: int = OBJECT_MEMORY) -> None:
        """Count bytes of the response before it is computed, and reject it if it would be too large.

        memory: bytes in memory for each byte of the response, while it is computed and written.
        """
        self.response_bytes += count
        self.response_memory += memory * count
        limit = self.settings.max_response_bytes
        if self.response_bytes > limit:
            raise HttpError(
                413, f"the response would have about {self.response_bytes:,} bytes; the limit is {limit:,}. {remedy}"
            )
        self.count_bytes(memory * count, self.settings.max_pending_bytes)

    async def acquire_response_lock(self) -> None:
        """Wait until no other large response is computed or written, so that one of them is in memory at a time."""
        if not self.has_response_lock and self.response_memory > LARGE_MEMORY:
            await self.service.large_response_lock.acquire()
            self.has_response_lock = True
            self.check_deadline()

    def release_response_lock(self) -> None:
        """Let the next large response be computed."""
        if self.has_response_lock:
            self.has_response_lock = False
            self.service.large_response_lock.release()

    def check_deadline(self) -> None:
        if time.monotonic() > self.deadline:
            raise self.service.batcher.timeout_error()

    async def run_tokenizer(self, function: Callable[..., T], *values: Any) -> T:
        """Call a function on a thread for tokenization. Its time, and that in the queue, count for the deadline."""
        await self.acquire_response_lock()

        def call() -> tuple[T, list[InputProblems]]:
            self.check_deadline()
            with collect_problems() as problems:
                result = function(*values)
            self.check_deadline()
            return result, problems

        result, problems = await asyncio.get_running_loop().run_in_executor(self.service.tokenizer_pool, call)
        self.problems = sum(problems, self.problems)
        return result

    async def tokenize(self, function: Callable[[list[S], int], R], items: Sequence[S]) -> AsyncIterator[R]:
        """The results of a function for groups of texts or examples and the place of the first; memory is bounded.

        Between groups, other requests have their turn.
        """
        sizes = await self.check_characters(items)
        start = size = 0
        for stop, following in enumerate([*sizes, GROUP_CHARACTERS + 1]):
            if stop > start and size + following > GROUP_CHARACTERS:
                yield await self.run_tokenizer(function, list(items[start:stop]), start)
                start, size = stop, 0
            size += following

    async def check_characters(self, items: Sequence[Any]) -> list[int]:
        """The characters of texts or examples; rejects those with too many, also after normalization."""
        most, sizes = self.settings.max_characters, [characters(item) for item in items]
        if max(sizes, default=0) <= most and sum(sizes) * MAX_EXPANSION > min(most, GROUP_CHARACTERS):
            sizes = await self.run_tokenizer(lambda: [characters(item, normalized_length) for item in items])
        for place, size in enumerate(sizes):
            if size > most and not isinstance(items[place], list):
                raise HttpError(413, f"text {place} has {size:,} characters; send at most {most:,} per text. Split it.")
        return sizes

    async def run_engine(self, cost: TokenCost, function: Callable[[], T], work: int, are_new_texts: bool = False) -> T:
        """Call a function that uses the engine, on its thread and in its turn; `work` is tokens times layers.

        are_new_texts: no earlier call of this request had these texts.
        """

        def call() -> tuple[T, list[InputProblems]]:
            with collect_problems() as problems:
                return function(), problems

        job = BatchJob(EngineCall(cost, call), [()], self.deadline, work=work)
        ((result, problems),) = await self._run(job)
        if not self.problems.has_any or are_new_texts:
            self.problems = sum(problems, self.problems)
        return cast(T, result)

    async def _run(self, job: BatchJob) -> list[Any]:
        """A job's results; its tokens and times are added to those of the request."""
        await self.acquire_response_lock()
        tokens = job.tokens
        self.check_tokens(tokens)
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
        windows = await self._windows(model, texts, options)
        route = ComputeRoute(model, options.depth, read_vectors, options.pooling)
        ids = [np.array(window, np.int32) for window in windows.ids]
        rows = await self._run(BatchJob(route, ids, self.deadline))
        return combine_windows(np.stack(rows), windows, options)

    async def embed_to_compare(self, model: ServedModel, texts: Sequence[Text], options: EmbedOptions) -> np.ndarray:
        """`embed`, with a warning if the model was not trained for vectors."""
        with collect_problems() as problems:
            report_untrained_vectors(model.albert)
        self.problems = sum(problems, self.problems)
        return await self.embed(model, texts, options)

    async def embed_tokens(self, model: ServedModel, texts: Sequence[Text], options: EmbedOptions) -> list[np.ndarray]:
        """The vectors (tokens, H) of each text's tokens. A text of several windows is rejected."""
        self.count_texts(texts)
        windows = await self._windows(model, texts, options)
        long = next((place for place, count in enumerate(windows.counts) if count > 1), None)
        if long is not None:
            limit = model.albert.max_tokens
            raise HttpError(
                413, f"text {long} has more than the model's {limit} tokens; split it, or set truncate", param="inputs"
            )
        size = vector_bytes(sum(windows.lengths), model.albert.dim)
        self.foresee_response(size, "Send fewer or shorter texts.", memory=1)
        ids = [np.array(window, np.int32) for window in windows.ids]
        rows = await self._run(BatchJob(ComputeRoute(model, options.depth, read_tokens), ids, self.deadline))
        check_finite("token vectors", rows)
        return rows

    async def _windows(self, model: ServedModel, texts: Sequence[Text], options: EmbedOptions) -> TokenWindows:
        """Texts as windows of token ids, within the limits."""
        estimate = sum(map(len, texts)) // TOKEN_CHARACTERS
        self.service.batcher.check(estimate * options.depth * model.token_cost.seconds)  # before tokenization
        limit, windows = self.settings.max_characters, TokenWindows([], [])
        if options.long_texts == "truncate":
            texts = [text.lstrip()[:limit] if isinstance(text, str) else text for text in texts]
        ids = sum(len(text) for text in texts if not isinstance(text, str))
        self.check_tokens(ids)
        tokens = 0
        async for part in self.tokenize(partial(split_into_windows, model, options), texts):
            tokens += sum(part.lengths)
            self.check_tokens(tokens)
            windows.ids.extend(part.ids)
            windows.counts.extend(part.counts)
        return windows

    def check_tokens(self, tokens: int) -> None:
        limit = self.settings.max_tokens
        if tokens > limit:
            raise HttpError(413, f"the request has {tokens:,} tokens; send at most {limit:,} per request")

    async def query_cosines(
        self, model: ServedModel, query: str, texts: Sequence[str], depth: Depth | None = None
    ) -> np.ndarray:
        """Cosines (texts,) of a query with texts, with the model's prompts for both if it has them."""
        prompts = model.albert.metadata.prompts
        query_options, text_options = (
            model.albert.embed_options(normalize=True, depth=depth, prompt=name if name in prompts else None)
            for name in ("query", "passage")
        )
        query_vectors, text_vectors = await asyncio.gather(
            self.embed_to_compare(model, [query], query_options), self.embed(model, texts, text_options)
        )
        return np.asarray(text_vectors @ query_vectors[0])

    # Predictions -------------------------------------------------------------------------------------------------

    async def predict(
        self, model: ServedModel, examples: Sequence[Any], task: str, depth: Depth | None = None
    ) -> list[Any]:
        scores, features = await self.predict_scores(model, examples, task, depth)
        return await self.run_tokenizer(model.albert.task.results, scores, features, examples)

    async def predict_scores(
        self, model: ServedModel, examples: Sequence[Any], task: str, depth: Depth | None = None
    ) -> tuple[list[Any], list[Any]]:
        """The scores of the task's head and the features, one of each per row."""
        self.count_texts(examples)
        layers = task_depth(model.albert, depth)
        with collect_problems() as problems:
            report_untrained_depth(model.albert, depth)
        self.problems = sum(problems, self.problems)
        features: list[Feature] = []
        async for group in self.tokenize(partial(features_of_group, model.albert, task), examples):
            features += group
        ids, segments = [f.ids for f in features], [f.segments for f in features]
        job = BatchJob(ComputeRoute(model, layers, read_scores), ids, self.deadline, segments)
        scores = await self._run(job)
        check_finite("scores", scores)
        return scores, features

    async def fill_masks(
        self, model: ServedModel, texts: Sequence[str], k: int, depth: Depth | None
    ) -> list[list[list[MaskPrediction]]]:
        """For each text, the most likely words for each of its masks."""
        self.count_texts(texts)
        albert = model.albert
        layers = albert.layers_to_apply(depth)
        masks = sum(text.count("[MASK]") for text in texts)
        self.foresee_response(masks * k * PREDICTION_BYTES + text_bytes(texts), "Send fewer masks, or a lower k.")
        encodings: list[tuple[Encoding, list[int]]] = []
        async for group in self.tokenize(lambda part, start: [encode_masks(albert, text, k) for text in part], texts):
            encodings += group
        job = BatchJob(
            ComputeRoute(model, layers, read_words),
            [encoding.ids for encoding, _ in encodings],
            self.deadline,
            [encoding.segments for encoding, _ in encodings],
            [(positions, k) for _, positions in encodings],
        )
        best = await self._run(job)
        return await self.run_tokenizer(lambda: [mask_predictions(albert, words) for words in best])


# Readers of hidden states (rows, length, H), on the engine's thread ----------------------------------------------


def read_vectors(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    return list(np.asarray(pool(route.model.albert, hidden, lengths, route.pooling), np.float32))


def read_tokens(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    return [row[:length].astype(np.float32) for row, length in zip(hidden, lengths, strict=True)]


def read_scores(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    return read_heads(route.model.albert, hidden, lengths)


def read_words(route: ComputeRoute, hidden: np.ndarray, lengths: np.ndarray, arguments: list[Any]) -> list[Any]:
    """The most likely words; an argument is (positions of masks, number of words)."""
    return [
        likeliest_tokens(route.model.albert, hidden[row, positions], k) for row, (positions, k) in enumerate(arguments)
    ]
