"""Traces and metrics, sent to a collector by OTLP over HTTP.

In: finished requests, and the metrics for Prometheus. Out: one span per request and the same metrics, which other
threads send. The exporters and the sampler read the standard OTEL_ variables. Neither contains a text. Needs the
extra `otel`. Before: `telemetry.py`, which decides; `middleware.py` records.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import export as points
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from albertkit import __version__
from albertkit.serve.inference import RequestContext, Service
from albertkit.serve.serve_settings import METRICS_VARIABLE
from albertkit.serve.telemetry import log

if TYPE_CHECKING:
    from albertkit.serve.middleware import Endpoint

SCOPE = "albertkit.serve"
UNITS = {"_seconds": "s", "_bytes": "By"}
CUMULATIVE = points.AggregationTemporality.CUMULATIVE
INTERVAL = 60_000  # milliseconds between two exports of metrics, OpenTelemetry's default
STOP_SECONDS = 5.0  # for the last export


class OtlpExport:
    """Exports the requests and the metrics of a service until it is stopped."""

    def __init__(self, service: Service) -> None:
        self.service, self.started = service, time.time_ns()
        about = {
            "service.name": "albertkit",
            "service.version": __version__,
            "service.instance.id": f"{service.process_id.decode()}-{os.getpid()}",
        }
        self.resource = Resource.create(about).merge(OTELResourceDetector().detect())  # the variables take precedence
        self.propagator = TraceContextTextMapPropagator()
        self.provider = TracerProvider(resource=self.resource)
        if os.environ.get("OTEL_TRACES_EXPORTER") != "none":
            self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self.provider.get_tracer(SCOPE, __version__)
        self.metrics_exporter = OTLPMetricExporter()
        self.is_stopped = threading.Event()
        self.thread = threading.Thread(target=self._export_metrics, name="telemetry", daemon=True)
        if os.environ.get("OTEL_METRICS_EXPORTER") != "none":
            self.thread.start()

    def record_request(
        self, endpoint: Endpoint, status: int, seconds: float, headers: Mapping[bytes, bytes], context: RequestContext
    ) -> None:
        """The span of a request that has just finished. Its parent is that of the header `traceparent`."""
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        facts: dict[str, str | int | float] = {
            "http.request.method": endpoint.method,
            "http.route": endpoint.path,
            "http.response.status_code": status,
            "albertkit.texts": context.texts,
            "albertkit.tokens": context.tokens,
            "albertkit.wait_seconds": context.wait_seconds,
            "albertkit.compute_seconds": context.compute_seconds,
        }
        if context.model_name is not None:
            facts["albertkit.model"] = context.model_name
        if context.is_disconnected or context.error_type is not None:
            facts["error.type"] = context.error_type or "disconnected"
        end = time.time_ns()
        span = self.tracer.start_span(
            f"{endpoint.method} {endpoint.path}",
            context=self.propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=facts,
            start_time=end - int(seconds * 1e9),
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end)

    def stop(self) -> None:
        """Export what is left."""
        self.is_stopped.set()
        self.provider.shutdown()
        if self.thread.is_alive():
            self.thread.join(STOP_SECONDS)

    def _export_metrics(self) -> None:
        interval = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", INTERVAL)) / 1000
        is_last = False
        while not is_last:
            is_last = self.is_stopped.wait(interval)
            try:
                metrics = otlp_metrics(prometheus_metrics(self.service), self.started, time.time_ns())
                scope = points.ScopeMetrics(InstrumentationScope(SCOPE, __version__), metrics, "")
                data = points.MetricsData([points.ResourceMetrics(self.resource, [scope], "")])
                self.metrics_exporter.export(data)
            except Exception:  # the next export may succeed
                log.warning("metrics were not exported", exc_info=True)


def prometheus_metrics(service: Service) -> Iterable[Metric]:
    """The metrics of this process; those of other workers are exported by themselves."""
    service.refresh_gauges()
    folder = os.environ.get(METRICS_VARIABLE)
    if folder is None:
        return service.metrics.registry.collect()
    return MultiProcessCollector.merge([str(file) for file in Path(folder).glob(f"*_{os.getpid()}.db")])


def otlp_metrics(families: Iterable[Metric], start: int, now: int) -> list[points.Metric]:
    """Counters, gauges and histograms of Prometheus as metrics of OTLP, with the same names."""
    metrics = []
    for family in families:
        data: points.Sum | points.Gauge | points.Histogram
        if family.type == "histogram":
            data = points.Histogram(histogram_points(family, start, now), CUMULATIVE)
        else:
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            numbers = [points.NumberDataPoint(s.labels, start, now, s.value) for s in samples]
            is_counter = family.type == "counter"
            data = points.Sum(numbers, CUMULATIVE, is_monotonic=True) if is_counter else points.Gauge(numbers)
        unit = next((unit for suffix, unit in UNITS.items() if family.name.endswith(suffix)), "1")
        metrics.append(points.Metric(family.name, family.documentation, unit, data))
    return metrics


def histogram_points(family: Metric, start: int, now: int) -> list[points.HistogramDataPoint]:
    """One histogram per set of labels. Prometheus counts all values up to a bound, OTLP those between two bounds."""
    below: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            below.setdefault(labels, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    histograms = []
    for labels, counts in below.items():
        bounds = sorted(counts)  # the last one is infinity
        totals = [0, *(int(counts[bound]) for bound in bounds)]
        between = [high - low for low, high in itertools.pairwise(totals)]
        histograms.append(
            points.HistogramDataPoint(
                dict(labels), start, now, totals[-1], sums[labels], between, bounds[:-1], min=None, max=None
            )
        )
    return histograms
