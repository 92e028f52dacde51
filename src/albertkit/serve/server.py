"""Listening: one process, or several that share a port.

In: models and settings. Out: a running server. Before this file: `app.py`.

With several workers, this process opens the models, binds one socket for each worker, forks, and from then on only watches: a worker
that dies is started anew on the same socket, whose waiting connections it finds there; SIGTERM and SIGHUP are passed on. Workers
that compute on one thread each share all memory that nobody writes to: weights, vocabulary, libraries. An engine of several threads
does not survive a fork, so there each worker opens the models itself.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from albertkit.errors import AlbertkitError, need
from albertkit.runtime.engine import cores
from albertkit.serve import logs
from albertkit.serve.serve_settings import ApiKeys, ServeSettings

if TYPE_CHECKING:
    from albertkit.serve.inference import Service

log = logging.getLogger("albertkit.serve")
Run = Callable[[socket.socket, Callable[[], None]], None]
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD")


@dataclass(frozen=True)
class Plan:
    """What to serve, and how."""

    folders: list[str]
    settings: ServeSettings
    indexes: list[Path] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Processors for each worker."""
        return self.settings.threads or max(1, cores() // self.settings.workers)


def serve(plan: Plan, told: Callable[[str], None] = lambda address: None) -> None:
    """Listen until SIGTERM or Ctrl-C; `told` hears the address once all is ready."""
    logs.set_up()
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # the processors belong to the engine, and threads do not survive a fork
    )
    raise_limit()
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the app listens to it
    settings = plan.settings
    if settings.workers == 1:
        need("prometheus_client", "serve", "serving")
        run = prepared(plan)
        (listener,) = bind(settings)
        run(listener, lambda: told(address(settings, listener)))
        return
    if not hasattr(os, "fork") or sys.platform == "darwin":
        raise AlbertkitError("several workers need Linux; start one server each and put a load balancer before them")
    folder = tempfile.mkdtemp(prefix="albertkit-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        need("prometheus_client", "serve", "serving")  # not before: it looks at the variable when it is imported
        watch(plan, told)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepared(plan: Plan) -> Run:
    """Models opened; what is left is to listen."""
    from albertkit.serve.batcher import Batcher
    from albertkit.serve.inference import Service
    from albertkit.serve.metrics import ServerMetrics
    from albertkit.serve.search_api import open_indexes
    from albertkit.serve.served_models import ModelSource, ServedModels
    from albertkit.serve.vector_cache import VectorCache

    settings = plan.settings
    keys = ApiKeys.read(settings)
    models = ServedModels(ModelSource.all_of(plan.folders), settings, plan.threads)
    if settings.host not in ("127.0.0.1", "::1", "localhost") and not keys.users:
        log.warning("open to the network without keys", extra={"facts": {"host": settings.host}})

    for index in open_indexes(plan.indexes, models).values():
        index.close()  # what is wrong with one is said now; a fork needs it opened anew

    def run(listener: socket.socket, told: Callable[[], None]) -> None:
        models.reload()  # a worker that is started later than others
        numbers = ServerMetrics()
        batcher = Batcher(settings.token_budget, settings.deadline, numbers.batch)
        indexes = open_indexes(plan.indexes, models)
        cache = VectorCache(int(settings.cache * 2**20))
        listen(Service(settings, models, batcher, numbers, keys, cache, indexes), listener, told)

    return run


def listen(service: Service, listener: socket.socket, told: Callable[[], None]) -> None:
    """Answer on a socket until a signal comes; `told` is called when all is ready."""
    import uvicorn

    from albertkit.serve.app import make_app
    from albertkit.serve.http_protocol import protocol_of

    settings = service.settings

    class Server(uvicorn.Server):
        """uvicorn's, which also tells the app that it stops, and ends with code 0 when it was told to."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            names = [model.name for model in service.models]
            log.info("listening", extra={"facts": {"address": address(settings, listener), "models": names}})
            told()

        def handle_exit(self, sig: int, frame: object) -> None:
            self.force_exit = self.should_exit and sig == signal.SIGINT
            self.should_exit = service.draining = True
            log.info("draining", extra={"facts": {"signal": sig}})

    config = uvicorn.Config(
        make_app(service),
        http=protocol_of(settings.patience, settings.max_connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(max(1, settings.keep_alive)),
        timeout_graceful_shutdown=int(max(1, settings.drain)),
    )
    Server(config).run([listener])
    log.info("stopped")


def bind(settings: ServeSettings) -> list[socket.socket]:
    """One socket for each worker, all on the same port."""
    found: list[socket.socket] = []
    port = settings.port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        for _ in range(settings.workers):
            many = settings.workers > 1
            found.append(socket.create_server((settings.host, port), family=family, backlog=2048, reuse_port=many))
            port = found[0].getsockname()[1]
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise AlbertkitError(
            f"{settings.host}:{port} cannot be listened on: {why}; choose another --host or --port"
        ) from None
    for one in found:
        one.setblocking(False)
    return found


def address(settings: ServeSettings, listener: socket.socket) -> str:
    """Where the server is."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


def raise_limit() -> None:
    """As many open files, and so connections, as the system allows."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))


# Several workers -------------------------------------------------------------------------------------------------


@dataclass
class WorkerProcess:
    """A process that answers, and its socket, which outlives it."""

    number: int
    listener: socket.socket
    pid: int = 0
    started: float = 0.0
    failures: int = 0
    due: float = 0.0
    """When to start it again."""


def watch(plan: Plan, told: Callable[[str], None]) -> None:
    """Start the workers, and keep them going until told to stop."""
    settings = plan.settings
    shared = plan.threads == 1
    run = prepared(plan) if shared else None
    if not shared:
        from albertkit.interop.convert import open_stored
        from albertkit.serve.served_models import ModelSource

        for source in ModelSource.all_of(plan.folders):
            open_stored(source.folder)  # what is wrong with a folder is said here, once
    gc.collect()
    gc.freeze()  # so that the collector does not write to memory that is shared
    signals = {getattr(signal, name) for name in SIGNALS}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    os.environ["ALBERTKIT_SERVE_PARENT"] = str(os.getpid())
    workers = [WorkerProcess(number, listener) for number, listener in enumerate(bind(settings), 1)]
    for worker in workers:
        begin(worker, workers, plan, run)
    told(address(settings, workers[0].listener))
    while True:
        late = [worker for worker in workers if not worker.pid]
        for worker in late:
            if time.monotonic() >= worker.due:
                begin(worker, workers, plan, run)
        got = signal.sigtimedwait(signals, 0.2 if late else 60)
        number = 0 if got is None else got.si_signo
        if number in (signal.SIGTERM, signal.SIGINT):
            end(workers, number, settings.drain)
            return
        if number == signal.SIGHUP:
            for worker in workers:
                tell(worker, signal.SIGHUP)
        collect(workers)


def begin(worker: WorkerProcess, workers: list[WorkerProcess], plan: Plan, run: Run | None) -> None:
    """Fork a worker."""
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
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the app listens to it
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.Thread(target=orphaned, args=(os.getppid(),), daemon=True).start()
        (run or prepared(plan))(worker.listener, lambda: None)
        code = 0
    except AlbertkitError as error:
        log.error("worker failed", extra={"facts": {"reason": str(error)}})
    except BaseException:
        log.exception("worker failed")
    finally:
        os._exit(code)


def orphaned(parent: int) -> None:
    """End this worker in good order when the process that watches it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def collect(workers: list[WorkerProcess]) -> None:
    """Note which workers have died, and when to start them again: at once, or later if they keep dying young."""
    for worker in workers:
        if not worker.pid:
            continue
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if not pid:
            continue
        young = time.monotonic() - worker.started < 5
        worker.failures = worker.failures + 1 if young else 0
        wait = min(10.0, 0.25 * 2**worker.failures) if worker.failures else 0.0
        worker.pid, worker.due = 0, time.monotonic() + wait
        forget_metrics(pid)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
        log.error("worker died", extra={"facts": {"worker": worker.number, "child": pid, "by": how, "again_in": wait}})


def forget_metrics(pid: int) -> None:
    """Numbers that only a living process has are no longer counted."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid)


def tell(worker: WorkerProcess, number: int) -> None:
    """Send a worker a signal."""
    if worker.pid:
        try:
            os.kill(worker.pid, number)
        except ProcessLookupError:
            log.debug("worker is gone")


def end(workers: list[WorkerProcess], number: int, drain: float) -> None:
    """Let all workers finish what they do; those that take too long are ended."""
    log.info("draining", extra={"facts": {"signal": number}})
    for worker in workers:
        tell(worker, signal.SIGTERM)
    limit = time.monotonic() + drain + 5
    for worker in workers:
        while worker.pid and not os.waitpid(worker.pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                tell(worker, signal.SIGKILL)
            time.sleep(0.05)
        worker.pid = 0
        worker.listener.close()
    log.info("stopped")
