"""The number of processors of this process: the default number of threads and worker processes.

In: the affinity of the process and the quota of its control group. Out: `cores`. Imports nothing of the package.
"""

from __future__ import annotations

import math
import os
from pathlib import Path


def cores() -> int:
    """The number of processors this process may use, by its affinity and the quota of its container."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(available, cpu_quota())))


def cpu_quota(group: Path = Path("/sys/fs/cgroup")) -> float:
    """The CPU quota of the control group, such as 1.5; inf without a limit."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota, period = (
                (group / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
        return math.inf if quota.strip() == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
