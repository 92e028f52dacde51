"""The memory of a server's process: one heap for all threads, and freed memory that goes back to the system.

glibc gives each thread a heap of its own, and each heap keeps what was freed. After some large requests a server would
hold the memory of all of them. With another C library, nothing is done here. `server.py` and `middleware.py` use it.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

M_ARENA_MAX = -8  # of glibc's malloc.h


@cache
def c_library() -> ctypes.CDLL | None:
    """The C library of this process, if it is glibc."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def use_one_heap() -> None:
    """Let threads that start later allocate from the heap of the first."""
    if (library := c_library()) is not None:
        library.mallopt(M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Return freed memory to the system; takes some milliseconds, in which other threads run."""
    if (library := c_library()) is not None:
        library.malloc_trim(0)
