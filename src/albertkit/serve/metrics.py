"""Numbers about the server, for Prometheus. They hold no text.

In: what happens. Out: the page /metrics. With several workers the numbers of all are added up, through files in a folder that
`run.py` makes before this file is imported.
"""

from __future__ import annotations

import os
from typing import Any

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

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class ServerMetrics:
    """All numbers of one server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        disable_created_metrics()
        shared = FOLDER in os.environ
        self.registry = CollectorRegistry()
        where: dict[str, Any] = {"registry": None if shared else self.registry}
        self.requests = Counter("albertkit_requests", "Requests answered.", ["endpoint", "status"], **where)
        self.seconds = Histogram("albertkit_request_seconds", "From request to answer.", ["endpoint"], buckets=SECONDS, **where)  # fmt: skip
        self.refused = Counter("albertkit_refused", "Requests not answered as asked, by kind of problem.", ["kind"], **where)  # fmt: skip
        self.gone = Counter("albertkit_gone", "Requests whose client left before the answer.", **where)
        self.texts = Counter("albertkit_texts", "Rows computed.", ["model"], **where)
        self.tokens = Counter("albertkit_tokens", "Tokens computed.", ["model"], **where)
        self.batch_seconds = Histogram("albertkit_batch_seconds", "Time of a batch.", ["model"], buckets=SECONDS, **where)  # fmt: skip
        self.batch_texts = Histogram("albertkit_batch_texts", "Rows in a batch.", buckets=SIZES, **where)
        self.batch_tokens = Histogram("albertkit_batch_tokens", "Tokens in a batch.", buckets=SIZES, **where)
        self.wait = Histogram("albertkit_wait_seconds", "How long the oldest row of a batch waited.", buckets=SECONDS, **where)  # fmt: skip
        self.waiting = Gauge("albertkit_waiting_seconds", "Work that waits, in seconds.", multiprocess_mode="livesum", **where)  # fmt: skip
        self.held = Gauge("albertkit_held_bytes", "Bytes of requests at work.", multiprocess_mode="livesum", **where)
        self.hits = Counter("albertkit_cache_hits", "Vectors taken from the cache.", **where)
        self.misses = Counter("albertkit_cache_misses", "Vectors not in the cache.", **where)
        self.cache_bytes = Gauge("albertkit_cache_bytes", "Bytes of the cache.", multiprocess_mode="livesum", **where)
        self.reloads = Counter("albertkit_reloads", "Reloads of a model, by result.", ["result"], **where)
        if shared:
            MultiProcessCollector(self.registry)

    def page(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self.registry)

    def batch(self, model: Any, texts: int, tokens: int, seconds: float, waited: float) -> None:
        """A batch was computed."""
        self.texts.labels(model.name).inc(texts)
        self.tokens.labels(model.name).inc(tokens)
        self.batch_seconds.labels(model.name).observe(seconds)
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)
        self.wait.observe(waited)

    def cached(self, hits: int, misses: int, held: int) -> None:
        """Vectors were looked up."""
        self.hits.inc(hits)
        self.misses.inc(misses)
        self.cache_bytes.set(held)
