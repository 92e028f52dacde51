"""`serve`: listen with one process, or with several that share a port.

In: models, settings and indexes. Out: a running server. Before: `app.py`.

With several workers, this process opens the models, binds one socket per worker and forks, so that workers share the
memory of the weights. A worker that dies is restarted on the same socket, which keeps its waiting connections.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from albertkit.cpu_cores import cores
from albertkit.errors import AlbertkitError, need
from albertkit.printable import escape_json
from albertkit.serve.process_memory import use_one_heap
from albertkit.serve.serve_settings import METRICS_VARIABLE, PARENT_VARIABLE, ApiKeys, ServeSettings

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    from albertkit.serve.inference import Service

log = logging.getLogger("albertkit.serve")
Listen = Callable[[socket.socket, Callable[[], None]], None]
"""(socket, called when ready) → runs until a signal."""
RESTART_DELAY = 2.0  # least seconds between two starts of the same worker
SIGNALS = {getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD") if hasattr(signal, name)}


def serve(
    models: Sequence[str] = (),
    settings: ServeSettings | None = None,
    indexes: Sequence[Path] = (),
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C.

    models: folders, each FOLDER or NAME=FOLDER; none for the built-in models. indexes: files for /search. on_ready:
    called with the server's address.

    >>> from albertkit import ServeSettings, serve
    >>> serve(["en=models/albert"], ServeSettings(port=8000), on_ready=print)  # doctest: +SKIP
    """
    settings = settings or ServeSettings()
    configure_logging()
    raise_file_limit()
    use_one_heap()
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the app handles it
    if settings.workers == 1:
        need("prometheus_client", "serve", "serving")
        run = prepare(list(models), settings, list(indexes))
        (listener,) = bind(settings)
        run(listener, lambda: on_ready(address(settings, listener)))
        return
    if not hasattr(os, "fork") or sys.platform == "darwin":
        raise AlbertkitError("workers above 1 need Linux; start several servers behind a load balancer instead")
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # `supervise` waits for them; threads started later inherit this
    with tempfile.TemporaryDirectory(prefix="albertkit-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[METRICS_VARIABLE] = folder
        need("prometheus_client", "serve", "serving")  # after the variable is set: it is read on import
        supervise(settings, prepare(list(models), settings, list(indexes)), on_ready)


def prepare(names: list[str], settings: ServeSettings, index_paths: list[Path]) -> Listen:
    """Open the models; returns a function that listens."""
    from albertkit.serve.batcher import Batcher
    from albertkit.serve.inference import ServerMetrics, Service
    from albertkit.serve.served_indexes import ServedIndexes
    from albertkit.serve.served_models import ModelSource, ServedModels
    from albertkit.serve.telemetry import exports_telemetry, open_telemetry

    keys, has_telemetry = ApiKeys.read(settings), exports_telemetry(settings)
    threads = 1 if settings.workers > 1 else settings.threads or cores()  # several threads do not survive a fork
    models = ServedModels(ModelSource.parse_all(names), settings, threads)
    if not settings.is_local and not keys.users:
        log.warning("every client is answered", extra={"facts": {"host": settings.host, "reason": "--no-auth"}})
    ServedIndexes(index_paths, models).close()  # checked now; after a fork they are opened again

    def run(listener: socket.socket, on_ready: Callable[[], None]) -> None:
        models.reload()  # for a worker that starts later than others
        metrics = ServerMetrics()
        batcher = Batcher(settings.token_budget, settings.deadline, metrics.observe_batch)
        service = Service(settings, models, batcher, metrics, keys, ServedIndexes(index_paths, models))
        service.telemetry = open_telemetry(service) if has_telemetry else None
        listen(service, listener, on_ready)

    return run


def listen(service: Service, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Answer on a socket until a signal; `on_ready` is called when the server accepts requests."""
    import uvicorn

    from albertkit.serve.app import make_app
    from albertkit.serve.http_protocol import make_protocol

    settings = service.settings

    class DrainingServer(uvicorn.Server):
        """uvicorn's server; it marks the service as draining when it stops, and exits with code 0."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            names = [model.name for model in service.models]
            log.info("listening", extra={"facts": {"address": address(settings, listener), "models": names}})
            on_ready()

        def handle_exit(self, sig: int, frame: object) -> None:
            self.force_exit = self.should_exit and sig == signal.SIGINT
            self.should_exit = service.is_draining = True
            log.info("draining", extra={"facts": {"signal": sig}})

    config = uvicorn.Config(
        make_app(service),
        http=make_protocol(settings),
        loop="asyncio",  # also where uvloop is installed, whose errors differ
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(max(1, settings.keep_alive)),
        timeout_graceful_shutdown=int(max(1, settings.shutdown_timeout)),
    )
    DrainingServer(config).run([listener])
    log.info("stopped")


def bind(settings: ServeSettings) -> list[socket.socket]:
    """One socket per worker, all on the same port."""
    sockets: list[socket.socket] = []
    port, is_shared = settings.port, settings.workers > 1
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        for _ in range(settings.workers):
            listener = socket.create_server((settings.host, port), family=family, backlog=2048, reuse_port=is_shared)
            listener.setblocking(False)
            sockets.append(listener)
            port = listener.getsockname()[1]
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise AlbertkitError(
            f"cannot listen on {settings.host}:{port}: {reason}; choose another --host or --port"
        ) from None
    return sockets


def address(settings: ServeSettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


def raise_file_limit() -> None:
    """Allow as many open files, and so connections, as the system permits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))


# Logging -----------------------------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON. Of an exception the message is not logged, because it might quote a text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "pid": os.getpid(),
        }
        line.update(getattr(record, "facts", {}))
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)[-8:]
            line["error"] = kind.__name__
            line["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return escape_json(orjson.dumps(line, default=str).decode())


def configure_logging() -> None:
    """Send the records of the server, and warnings of uvicorn and OpenTelemetry, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    libraries = dict.fromkeys(("uvicorn", "opentelemetry"), logging.WARNING)
    for name, level in {"albertkit.serve": logging.INFO, **libraries}.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


# Several workers -------------------------------------------------------------------------------------------------


def supervise(settings: ServeSettings, run: Listen, on_ready: Callable[[str], None]) -> None:
    """Start one process per socket, and restart those that die, until a signal to stop; `SIGNALS` are blocked."""
    from prometheus_client.multiprocess import mark_process_dead

    gc.collect()
    gc.freeze()  # so that the garbage collector does not write to shared memory
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    listeners = bind(settings)
    restart_times = [0.0] * len(listeners)  # each worker is not restarted before its time
    dead: set[int] = set()  # places of workers to restart

    def start(place: int) -> ForkProcess:
        # A daemon, so that it ends if this process fails.
        worker = multiprocessing.get_context("fork").Process(target=work, args=(listeners, place, run), daemon=True)
        worker.start()
        restart_times[place] = time.monotonic() + RESTART_DELAY
        facts = {"worker": place + 1, "of": len(listeners), "child": worker.pid}
        log.info("worker started", extra={"facts": facts})
        return worker

    workers = [start(place) for place in range(len(listeners))]
    on_ready(address(settings, listeners[0]))
    while (number := next_signal(0.2 if dead else 60)) not in (signal.SIGTERM, signal.SIGINT):
        for place, worker in enumerate(workers):
            if worker.exitcode is None:
                if number == signal.SIGHUP and worker.pid is not None:
                    os.kill(worker.pid, signal.SIGHUP)
                continue
            if place not in dead:
                dead.add(place)
                mark_process_dead(worker.pid)
                cause = f"signal {-worker.exitcode}" if worker.exitcode < 0 else f"code {worker.exitcode}"
                facts = {"worker": place + 1, "child": worker.pid, "cause": cause}
                log.error("worker died", extra={"facts": facts})
            if time.monotonic() >= restart_times[place]:
                dead.remove(place)
                workers[place] = start(place)
    log.info("draining", extra={"facts": {"signal": number}})
    for worker in workers:
        worker.terminate()
    limit = time.monotonic() + settings.shutdown_timeout + 5
    for worker in workers:
        worker.join(max(0.0, limit - time.monotonic()))
        worker.kill()  # one that takes too long
    log.info("stopped")


def next_signal(timeout: float) -> int:
    """The next of `SIGNALS`; 0 if none comes within some seconds."""
    info = signal.sigtimedwait(SIGNALS, timeout)
    return 0 if info is None else info.si_signo


def work(listeners: list[socket.socket], place: int, run: Listen) -> None:
    """The main function of a worker."""
    for listener in listeners:
        if listener is not listeners[place]:
            listener.close()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the app handles it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    threading.Thread(target=watch_parent, args=(os.getppid(),), daemon=True).start()
    try:
        run(listeners[place], lambda: None)
    except Exception as error:
        log.exception("worker failed", extra={"facts": {"reason": str(error)}})
        sys.exit(1)


def watch_parent(parent: int) -> None:
    """Stop this worker when its supervisor is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
