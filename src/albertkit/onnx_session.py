"""Sessions of onnxruntime, and the memory in which they compute.

In: a serialised ONNX model and `SessionOptions`. Out: a session. All sessions of a process compute in the same memory;
otherwise each keeps that of its largest batch. Graphs of strangers have a memory of their own, with a limit. After this
file: `runtime/engine.py` and `head_graph.py`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    import onnxruntime

_LOCK = threading.Lock()
_registered: list[int | None] = []  # the limits of the memories so far; a session uses the last one when it is opened


def open_session(
    model: bytes, options: onnxruntime.SessionOptions, memory_limit: int | None = None
) -> onnxruntime.InferenceSession:
    """A session on the CPU. memory_limit: bytes that it may use, together with sessions of the same limit that are
    opened directly before and after it; None: any number.
    """
    import onnxruntime as ort

    options.add_session_config_entry("session.use_env_allocators", "1")
    with _LOCK:
        if not _registered:
            _register(None)  # first, for versions of onnxruntime that accept one memory only
        if _registered[-1] != memory_limit:
            _register(memory_limit)
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _register(limit: int | None) -> None:
    """Let sessions that are opened from now on compute in a new memory."""
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    settings = None if limit is None else ort.OrtArenaCfg(limit, -1, -1, -1)
    try:
        ort.create_and_register_allocator(memory, settings)
    except RuntimeError:  # another library in this process has done it
        if limit is not None:
            raise AlbertkitError(
                "this onnxruntime cannot limit the memory of a custom head. Update it: pip install -U onnxruntime"
            ) from None
    _registered.append(limit)
