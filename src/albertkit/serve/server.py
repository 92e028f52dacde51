"""`serve`: listen with one process, or with several that share a port.

In: models, settings and indexes. Out: a running server. Before: `app.py`.

With several workers, this process opens the models, binds one socket per worker, forks, and then supervises: a worker
that dies is restarted on the same socket, which keeps its waiting connections; SIGTERM and SIGHUP are forwarded.
Workers with one thread each share all memory that is not written to: weights, vocabulary, libraries. An engine with
several threads does not survive a fork, so then each worker opens the models itself.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from albertkit.errors import AlbertkitError, need
from albertkit.runtime.engine import cores
from albertkit.serve.serve_settings import MEGABYTE, ApiKeys, ServeSettings

if TYPE_CHECKING:
    from albertkit.serve.inference import Service

log = logging.getLogger("albertkit.serve")
Listen = Callable[[socket.socket, Callable[[], None]], None]
"""(socket, called when ready) → runs until a signal."""
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD")
UVICORN_MESSAGES = (
    "Started server process",
    "Finished server process",
    "Waiting for application",
    "Application ",
    "Shutting down",
)


@dataclass(frozen=True)
class Deployment:
    """What to serve."""

    models: list[str]
    settings: ServeSettings
    indexes: list[Path] = field(default_factory=list)

    @property
    def threads(self) -> int:
        return self.settings.threads or max(1, cores() // self.settings.workers)


def serve(
    models: Sequence[str] = (),
    settings: ServeSettings | None = None,
    indexes: Sequence[Path] = (),
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C.

    models: folders, each FOLDER or NAME=FOLDER; none for the built-in models. indexes: files for /search. on_ready:
    called with the server's address.

    >>> serve(["en=models/albert"], ServeSettings(port=8000), on_ready=print)  # doctest: +SKIP
    http://127.0.0.1:8000
    """
    settings = settings or ServeSettings()
    deployment = Deployment(list(models), settings, list(indexes))
    configure_logging()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the engine uses the processors; threads do not survive a fork
    raise_file_limit()
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the app handles it
    if settings.workers == 1:
        need("prometheus_client", "serve", "serving")
        run = prepare(deployment)
        (listener,) = bind(settings)
        run(listener, lambda: on_ready(address(settings, listener)))
        return
    if not hasattr(os, "fork") or sys.platform == "darwin":
        raise AlbertkitError("workers above 1 need Linux; start several servers behind a load balancer instead")
    folder = tempfile.mkdtemp(prefix="albertkit-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        need("prometheus_client", "serve", "serving")  # after the variable is set: it is read on import
        supervise(deployment, on_ready)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare(deployment: Deployment) -> Listen:
    """Open the models; returns a function that listens."""
    from albertkit.serve.batcher import Batcher
    from albertkit.serve.inference import Service
    from albertkit.serve.metrics import ServerMetrics
    from albertkit.serve.search_api import open_indexes
    from albertkit.serve.served_models import ModelSource, ServedModels
    from albertkit.serve.vector_cache import VectorCache

    settings = deployment.settings
    keys = ApiKeys.read(settings)
    models = ServedModels(ModelSource.parse_all(deployment.models), settings, deployment.threads)
    if not settings.is_local and not keys.users:
        log.warning("open to the network without keys", extra={"facts": {"host": settings.host}})
    for index in open_indexes(deployment.indexes, models).values():
        index.close()  # checked now; after a fork they are opened again

    def run(listener: socket.socket, on_ready: Callable[[], None]) -> None:
        models.reload()  # for a worker that starts later than others
        metrics = ServerMetrics()
        batcher = Batcher(settings.token_budget, settings.deadline, metrics.observe_batch)
        indexes = open_indexes(deployment.indexes, models)
        cache = VectorCache(int(settings.cache_megabytes * MEGABYTE))
        listen(Service(settings, models, batcher, metrics, keys, cache, indexes), listener, on_ready)

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
        http=make_protocol(settings.client_timeout, settings.max_connections),
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
            one = socket.create_server((settings.host, port), family=family, backlog=2048, reuse_port=is_shared)
            one.setblocking(False)
            sockets.append(one)
            port = one.getsockname()[1]
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
        return orjson.dumps(line, default=str).decode()


def configure_logging() -> None:
    """Send the records of the server and of uvicorn to stderr, without uvicorn's routine messages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: not str(record.msg).startswith(UVICORN_MESSAGES))
    for name in ("albertkit.serve", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
    logging.getLogger("uvicorn.access").disabled = True


# Several workers -------------------------------------------------------------------------------------------------


@dataclass
class WorkerProcess:
    """A worker and its socket, which outlives it."""

    number: int
    listener: socket.socket
    pid: int = 0
    started: float = 0.0
    failures: int = 0
    restart_at: float = 0.0

    def send(self, number: int) -> None:
        if self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                log.debug("worker has exited")


def supervise(deployment: Deployment, on_ready: Callable[[str], None]) -> None:
    """Start the workers and restart them until a signal to stop."""
    settings = deployment.settings
    is_shared = deployment.threads == 1
    run = prepare(deployment) if is_shared else None
    if not is_shared:
        from albertkit.interop.convert import open_stored
        from albertkit.serve.served_models import ModelSource

        for source in ModelSource.parse_all(deployment.models):
            open_stored(source.folder)  # errors are reported here, once
    gc.collect()
    gc.freeze()  # so that the garbage collector does not write to shared memory
    signals = {getattr(signal, name) for name in SIGNALS}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    os.environ["ALBERTKIT_SERVE_PARENT"] = str(os.getpid())
    workers = [WorkerProcess(number, listener) for number, listener in enumerate(bind(settings), 1)]
    for worker in workers:
        start_worker(worker, workers, deployment, run)
    on_ready(address(settings, workers[0].listener))
    while True:
        missing = [worker for worker in workers if not worker.pid]
        for worker in missing:
            if time.monotonic() >= worker.restart_at:
                start_worker(worker, workers, deployment, run)
        info = signal.sigtimedwait(signals, 0.2 if missing else 60)
        number = 0 if info is None else info.si_signo
        if number in (signal.SIGTERM, signal.SIGINT):
            stop_workers(workers, number, settings.shutdown_timeout)
            return
        if number == signal.SIGHUP:
            for worker in workers:
                worker.send(signal.SIGHUP)
        collect_exited(workers)


def start_worker(
    worker: WorkerProcess, workers: list[WorkerProcess], deployment: Deployment, run: Listen | None
) -> None:
    pid = os.fork()
    if pid:
        worker.pid, worker.started = pid, time.monotonic()
        log.info("worker started", extra={"facts": {"worker": worker.number, "of": len(workers), "child": pid}})
        return
    code = 1
    try:
        for other in workers:
            if other is not worker:
                other.listener.close()
        for name in SIGNALS:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the app handles it
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.Thread(target=watch_parent, args=(os.getppid(),), daemon=True).start()
        (run or prepare(deployment))(worker.listener, lambda: None)
        code = 0
    except AlbertkitError as error:
        log.error("worker failed", extra={"facts": {"reason": str(error)}})
    except BaseException:
        log.exception("worker failed")
    finally:
        os._exit(code)


def watch_parent(parent: int) -> None:
    """Stop this worker when its supervisor is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def collect_exited(workers: list[WorkerProcess]) -> None:
    """Collect workers that have exited, and schedule their restart: at once, or later if they fail repeatedly."""
    from prometheus_client.multiprocess import mark_process_dead

    for worker in workers:
        pid, status = os.waitpid(worker.pid, os.WNOHANG) if worker.pid else (0, 0)
        if not pid:
            continue
        is_early = time.monotonic() - worker.started < 5
        worker.failures = worker.failures + 1 if is_early else 0
        delay = min(10.0, 0.25 * 2**worker.failures) if worker.failures else 0.0
        worker.pid, worker.restart_at = 0, time.monotonic() + delay
        mark_process_dead(pid)
        cause = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        facts = {"worker": worker.number, "child": pid, "cause": cause, "restart_in": delay}
        log.error("worker died", extra={"facts": facts})


def stop_workers(workers: list[WorkerProcess], number: int, timeout: float) -> None:
    """Let all workers finish their requests; kill those that take too long."""
    log.info("draining", extra={"facts": {"signal": number}})
    for worker in workers:
        worker.send(signal.SIGTERM)
    limit = time.monotonic() + timeout + 5
    for worker in workers:
        while worker.pid and not os.waitpid(worker.pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                worker.send(signal.SIGKILL)
            time.sleep(0.05)
        worker.pid = 0
        worker.listener.close()
    log.info("stopped")
