"""One process that owns a device such as a GPU, and computes for the workers of a bulk run.

In: a `BulkJob`, and `PackedTexts` from any number of workers. Out: outputs, see `runtime/packed_texts.py`. Workers
read, tokenize and write; the device computes for one of them while others prepare their texts. The texts of two workers
are never mixed, so a part always gives the same file. Before this file: `runtime/torch_engine.py`;
`engines.py` starts the process, and `worker.py` connects to it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.process import current_process
from multiprocessing.util import get_temp_dir
from typing import Any

import numpy as np

from albertkit.albert import Albert
from albertkit.bulk.worker import BulkJob, check_model
from albertkit.data.document_tokenizer import follow_parent
from albertkit.errors import AlbertkitError, short_reason
from albertkit.runtime.packed_texts import OutputRequest, PackedOutputs, PackedTexts
from albertkit.runtime.torch_engine import TorchEngine

WAITING = 1024  # workers that connect at the same time
ENDED = "the process of device {} ended, perhaps because memory ran out. Rerun the command to resume."


def open_outputs(job: BulkJob) -> PackedOutputs:
    """The model of a job on its device, compiled on a GPU."""
    check_model(job)
    options = job.options
    engine = Albert(options.model, bits=options.bits, device=options.device, precision=options.precision).engine
    if not isinstance(engine, TorchEngine):
        raise AlbertkitError(f"device={options.device!r} is not a device of torch. Pass cuda.")
    if engine.is_gpu:
        engine.compile()
        with compile_errors():
            engine.outputs(PackedTexts.of([[0] * 16] * 64), 1, [OutputRequest("mean")])
    return engine.outputs


@contextlib.contextmanager
def compile_errors() -> Iterator[None]:
    """Turn what torch raises when it cannot compile into an error with a remedy."""
    try:
        yield
    except AlbertkitError:
        raise
    except Exception as error:
        raise AlbertkitError(
            f"torch cannot compile the layers: {short_reason(error)}. Set TORCH_COMPILE_DISABLE=1 to run "
            "without, at lower speed."
        ) from None


@contextlib.contextmanager
def device_process(job: BulkJob) -> Iterator[str]:
    """The address of a process that computes on the device of a job; empty for the CPU, where workers compute."""
    if job.options.device == "cpu":
        yield ""
        return
    context = multiprocessing.get_context("spawn")
    get_temp_dir()  # the folder of the socket: this process deletes it, the other one is killed
    pipe, other = context.Pipe()
    process = context.Process(target=_serve, args=(other, job), name="device", daemon=True)
    process.start()
    other.close()
    try:
        try:
            address = pipe.recv()
        except EOFError:
            raise AlbertkitError(ENDED.format(job.options.device)) from None
        if isinstance(address, AlbertkitError):
            raise address
        if not isinstance(address, str):
            raise RuntimeError(f"the process of the device failed:\n{address[0]}")
        yield address
    finally:
        process.kill()
        process.join()
        pipe.close()


def _serve(pipe: Connection, job: BulkJob) -> None:
    """The process of the device: one thread for each worker."""
    follow_parent()
    # group sizes vary; fixed segments would be freed and reallocated all the time
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    try:
        outputs = open_outputs(job)
        listener = Listener(backlog=WAITING, authkey=current_process().authkey)
    except AlbertkitError as error:
        pipe.send(error)
        return
    except BaseException:
        pipe.send((traceback.format_exc(),))
        return
    pipe.send(listener.address)
    while True:
        with contextlib.suppress(EOFError, OSError, multiprocessing.AuthenticationError):
            threading.Thread(target=_answer, args=(listener.accept(), outputs), daemon=True).start()


def _answer(connection: Connection, outputs: PackedOutputs) -> None:
    """Answer the requests of one worker until it ends."""
    with contextlib.suppress(EOFError, OSError), connection:
        while True:
            request = connection.recv()
            reply: Any
            try:
                reply = outputs(*request)
            except AlbertkitError as error:
                reply = error
            except Exception:
                reply = traceback.format_exc()
            connection.send(reply)


class DeviceClient:
    """The `PackedOutputs` of a device's process, for one worker."""

    def __init__(self, address: str, device: str) -> None:
        self.device = device
        with self._errors():
            self.connection = Client(address, authkey=current_process().authkey)

    def __call__(self, texts: PackedTexts, depth: int, requests: Sequence[OutputRequest]) -> list[np.ndarray]:
        with self._errors():
            self.connection.send((texts, depth, requests))
            reply = self.connection.recv()
        if isinstance(reply, AlbertkitError):
            raise reply
        if isinstance(reply, str):
            raise RuntimeError(f"the process of device {self.device} failed:\n{reply}")
        outputs: list[np.ndarray] = reply
        return outputs

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise AlbertkitError(ENDED.format(self.device)) from None
