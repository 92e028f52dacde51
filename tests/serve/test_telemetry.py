"""A real server sends its traces and metrics to a collector, which reads them with OpenTelemetry's own messages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from albertkit.errors import AlbertkitError
from albertkit.serve import telemetry
from albertkit.serve.serve_settings import ServeSettings
from tests.serve.conftest import Served
from tests.waiting import wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_server_without_it_imports_nothing_of_opentelemetry():
    code = (
        "import sys, albertkit.serve.app, albertkit.serve.server, albertkit.serve.telemetry as t;"
        "from albertkit.serve.serve_settings import ServeSettings as S;"
        "print(t.exports_telemetry(S()), [m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    free = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=free)
    assert done.stdout.strip() == "False []"


def test_without_its_packages_the_option_is_an_error_and_the_variable_a_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setattr("albertkit.errors.importlib.import_module", missing)
    with pytest.raises(AlbertkitError, match=r"pip install 'albertkit\[otel\]'"):
        telemetry.exports_telemetry(ServeSettings(otel=True))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert not telemetry.exports_telemetry(ServeSettings())
    (record,) = caplog.records
    assert record.message == "telemetry is off" and "albertkit[otel]" in record.facts["reason"]


def missing(name):
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("otel", "variables", "expected"),
    [
        (None, {}, False),
        (True, {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        (True, {"OTEL_SDK_DISABLED": "true"}, False),
        (True, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        (True, {"OTEL_METRIC_EXPORT_INTERVAL": "fast"}, "fast"),
    ],
)
def test_the_option_and_the_standard_variables_decide(no_variables, monkeypatch, otel, variables, expected):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if isinstance(expected, bool):
        assert telemetry.exports_telemetry(ServeSettings(otel=otel)) is expected
    else:
        with pytest.raises(AlbertkitError, match=expected):
            telemetry.exports_telemetry(ServeSettings(otel=otel))


@pytest.mark.parametrize("otel", [True, None])
def test_a_wrong_variable_is_an_error_of_the_option_and_otherwise_a_warning(no_variables, monkeypatch, caplog, otel):
    """What each version of the exporter rejects differs, and it does so when it is made."""
    otlp = pytest.importorskip("albertkit.serve.otlp", reason="OpenTelemetry is not installed")
    monkeypatch.setattr(otlp, "BatchSpanProcessor", lambda exporter: float("soon"))
    service = SimpleNamespace(process_id=b"1", settings=ServeSettings(otel=otel))
    if otel:
        with pytest.raises(AlbertkitError, match="an OTEL_ variable is not valid .*'soon'.* Correct it"):
            telemetry.open_telemetry(service)
    else:
        assert telemetry.open_telemetry(service) is None
        (record,) = caplog.records
        assert record.message == "telemetry is off" and "'soon'" in record.facts["reason"]


def test_metrics_are_exported_again_after_an_error(no_variables, monkeypatch, caplog):
    otlp = pytest.importorskip("albertkit.serve.otlp", reason="OpenTelemetry is not installed")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setattr(otlp.OTLPMetricExporter, "export", lambda self, data: exported.set())
    answers, exported = iter([ValueError("a registry that changes")]), threading.Event()

    def metrics(service):
        for error in answers:
            raise error
        return []

    monkeypatch.setattr(otlp, "prometheus_metrics", metrics)
    export = otlp.OtlpExport(SimpleNamespace(process_id=b"1"))
    assert exported.wait(60), "the thread of metrics ended"
    export.stop()
    assert [record.message for record in caplog.records] == ["metrics were not exported"]


class Collector:
    """An HTTP server that keeps the messages it receives."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        kinds = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
        self.received = received = {path: [] for path in kinds}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                received[self.path].append(kinds[self.path].FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *values):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def variables(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        }

    def spans(self) -> list:
        requests = list(self.received["/v1/traces"])
        return [span for one in requests for part in one.resource_spans for s in part.scope_spans for span in s.spans]

    def metrics(self) -> list[tuple[dict[str, str], dict]]:
        """The resource and the metrics of each message."""
        found = []
        for one in list(self.received["/v1/metrics"]):
            for part in one.resource_metrics:
                about = plain(part.resource.attributes)
                found.append((about, {metric.name: metric for s in part.scope_metrics for metric in s.metrics}))
        return found


def plain(attributes) -> dict:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def collector(no_variables):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    made = Collector()
    yield made
    made.server.shutdown()


def test_requests_become_spans_and_metrics_of_a_collector(collector, folders):
    with Served(f"words={folders['words']}", env=collector.variables) as server:
        parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        done = server.post("/embed", {"inputs": ["one text", "two"]}, headers=parent)
        refused = server.post("/classify", {"texts": "a secret"})
        assert (done.status_code, refused.status_code) == (200, 424) and server.get("/health").status_code == 200
        wait_until(lambda: len(collector.spans()) >= 2, "two spans")
        wait_until(lambda: collector.metrics() and "albertkit_tokens" in collector.metrics()[-1][1], "metrics")
        printed = server.get("/metrics").text
    good, bad = sorted(collector.spans(), key=lambda span: span.name, reverse=True)
    assert (good.name, good.kind, good.trace_id.hex(), good.parent_span_id.hex()) == ("POST /embed", 2, TRACE, PARENT)
    facts = plain(good.attributes)
    assert facts["http.route"] == "/embed" and facts["http.response.status_code"] == 200
    assert (facts["albertkit.model"], facts["albertkit.texts"]) == ("words", 2) and facts["albertkit.tokens"] > 4
    seconds = (good.end_time_unix_nano - good.start_time_unix_nano) / 1e9
    assert 0 <= facts["albertkit.wait_seconds"] <= seconds and 0 < facts["albertkit.compute_seconds"] <= seconds
    timing = done.headers["server-timing"]
    assert timing.endswith(f"compute;dur={1000 * facts['albertkit.compute_seconds']:.2f}")
    assert bad.name == "POST /classify" and not bad.parent_span_id and bad.trace_id.hex() != TRACE
    assert plain(bad.attributes)["error.type"] == "model" and "secret" not in str(collector.spans())
    check_metrics(collector.metrics()[-1], printed)


def check_metrics(sent, printed) -> None:
    """The last message has the numbers of /metrics."""
    about, metrics = sent
    assert about["service.name"] == "albertkit" and about["deployment.environment.name"] == "test"
    tokens = metrics["albertkit_tokens"].sum
    assert tokens.is_monotonic and tokens.aggregation_temporality == 2
    assert f'albertkit_tokens_total{{model="words"}} {tokens.data_points[0].as_double}' in printed
    histogram = metrics["albertkit_request_seconds"]
    (point,) = [one for one in histogram.histogram.data_points if plain(one.attributes) == {"endpoint": "/embed"}]
    assert histogram.unit == "s" and point.count == 1 == sum(point.bucket_counts)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    low, high = ([0.0, *point.explicit_bounds, float("inf")][list(point.bucket_counts).index(1) + i] for i in (0, 1))
    assert low <= point.sum <= high
    assert metrics["albertkit_pending_bytes"].unit == "By" and metrics["albertkit_pending_bytes"].gauge.data_points


def test_each_worker_sends_its_own_metrics(collector, folders):
    with Served(f"words={folders['words']}", "--workers", 2, "--otel", env=collector.variables) as server:
        asked = 12
        for _ in range(asked):
            assert server.client.post("/embed", json={"inputs": "one"}, headers={"connection": "close"}).is_success

        def counted() -> dict[str, float]:
            """The last count of each worker."""
            return {
                about["service.instance.id"]: sum(p.as_double for p in metrics["albertkit_requests"].sum.data_points)
                for about, metrics in collector.metrics()
                if "albertkit_requests" in metrics
            }

        wait_until(lambda: sum(counted().values()) == asked, lambda: f"{counted()}")
        assert len({about["service.instance.id"] for about, _ in collector.metrics()}) == 2


def test_what_is_left_is_sent_when_the_server_stops(collector, folders):
    slow = {"OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_METRIC_EXPORT_INTERVAL": "600000"}
    with Served(f"words={folders['words']}", env={**collector.variables, **slow}) as server:
        assert server.post("/embed", {"inputs": "one"}).is_success
        assert not collector.spans()
        assert server.stop() == 0
    assert [span.name for span in collector.spans()] == ["POST /embed"] and collector.metrics()


def test_without_a_collector_requests_are_answered(no_variables, folders):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    quick["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    with Served(f"words={folders['words']}", env=quick) as server:
        for _ in range(3):
            assert server.post("/embed", {"inputs": "one"}).is_success
        wait_until(lambda: any('"warning"' in line or '"error"' in line for line in server.lines), "a logged failure")
        assert all(line.startswith("{") for line in server.lines)
