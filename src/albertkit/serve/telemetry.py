"""Whether the server exports traces and metrics by OTLP, the protocol of OpenTelemetry. It is off by default.

In: the setting `otel` and the standard OTEL_ variables. Out: an `OtlpExport` for the service, or None. Without it,
OpenTelemetry is not imported, and a request costs one comparison more. Before: `serve_settings.py`; next: `otlp.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from albertkit.errors import AlbertkitError, need
from albertkit.serve.serve_settings import ServeSettings

if TYPE_CHECKING:
    from albertkit.serve.inference import Service
    from albertkit.serve.otlp import OtlpExport

log = logging.getLogger("albertkit.serve")
PROTOCOL = "http/protobuf"


def exports_telemetry(settings: ServeSettings) -> bool:
    """Whether to export: with --otel, or without --no-otel if OTEL_EXPORTER_OTLP_ENDPOINT is set.

    Without --otel, a server that cannot export starts without telemetry, and the log has the reason.
    """
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or not (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") if settings.otel is None else settings.otel):
        return False
    with telemetry_errors(settings):
        check_exporter()
        return True
    return False


@contextlib.contextmanager
def telemetry_errors(settings: ServeSettings) -> Iterator[None]:
    """Raise an error as `AlbertkitError` if --otel was passed; otherwise only log it."""
    try:
        yield
    except Exception as error:
        reason = f"an OTEL_ variable is not valid ({error!r}). Correct it, or pass --no-otel."
        reason = str(error) if isinstance(error, AlbertkitError) else reason
        if settings.otel:
            raise AlbertkitError(reason) from None
        log.warning("telemetry is off", extra={"facts": {"reason": reason}})


def check_exporter() -> None:
    """Raise if the packages are missing, or if a variable has a value that is not supported."""
    need("opentelemetry.sdk.trace", "otel", "exporting telemetry")
    need("opentelemetry.exporter.otlp.proto.http", "otel", "exporting telemetry")
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOL)
    if protocol != PROTOCOL:
        raise AlbertkitError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol!r} is not available: the server exports by {PROTOCOL}. Set it to "
            f"{PROTOCOL}, and the endpoint to the collector's port for HTTP, usually 4318."
        )
    interval = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "1")
    if not interval.isdecimal() or not int(interval):
        raise AlbertkitError(
            f"OTEL_METRIC_EXPORT_INTERVAL={interval!r} is not valid: it must be a whole number of milliseconds, at "
            "least 1. Correct it."
        )


def open_telemetry(service: Service) -> OtlpExport | None:
    """Start to export the requests and the metrics of a service; None if a variable prevents it."""
    with telemetry_errors(service.settings):
        from albertkit.serve.otlp import OtlpExport

        return OtlpExport(service)
    return None
