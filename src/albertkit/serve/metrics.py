"""Metrics for Prometheus. They contain no text.

In: events. Out: the text of /metrics. With several workers the numbers of all are summed, through files in a folder
that `server.py` creates before this file is imported.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

if TYPE_CHECKING:
    from albertkit.serve.batch_queue import ComputeModel

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class ServerMetrics:
    """All metrics of one server."""

    content_type = CONTENT_TYPE_LATEST

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
        self.hits = Counter("albertkit_cache_hits", "Vectors found in the cache.", **registry)
        self.misses = Counter("albertkit_cache_misses", "Vectors not found in the cache.", **registry)
        self.cache_bytes = Gauge("albertkit_cache_bytes", "Bytes of the cache.", **gauge)
        self.reloads = Counter("albertkit_reloads", "Reloads of a model, by result.", ["result"], **registry)
        if is_shared:
            MultiProcessCollector(self.registry)

    def export(self) -> bytes:
        return generate_latest(self.registry)

    def observe_batch(self, model: ComputeModel, texts: int, tokens: int, seconds: float, waited: float) -> None:
        self.texts.labels(model.name).inc(texts)
        self.tokens.labels(model.name).inc(tokens)
        self.batch_seconds.labels(model.name).observe(seconds)
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)
        self.wait.observe(waited)

    def observe_cache(self, hits: int, misses: int, size: int) -> None:
        self.hits.inc(hits)
        self.misses.inc(misses)
        self.cache_bytes.set(size)
