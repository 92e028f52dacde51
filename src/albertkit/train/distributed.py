"""The processes that train together, as `torchrun` started them; one process is a team of one.

In: the environment. Out: `ProcessGroup`, with the few things the loop asks of the others; and how fast its device multiplies.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from albertkit.errors import AlbertkitError


@dataclass(frozen=True)
class ProcessGroup:
    """This process among `world`, and the device it computes on."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """The one process that writes files and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        if self.world_size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)).item() > 0)

    def broadcast(self, value: float) -> float:
        """The first process's number, so that all see the same clock."""
        if self.world_size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared.item())

    def barrier(self) -> None:
        """Until all are here."""
        if self.world_size > 1:
            dist.barrier()


def plan_attention(wanted: bool) -> None:
    """Whether cuDNN may compute attention on a GPU. It makes a plan for each new shape, which takes longer than the rest of a step: for batches of one shape alone."""
    torch.backends.cuda.enable_cudnn_sdp(wanted)


def choose_device(name: str) -> torch.device:
    """A device by name; `auto` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise AlbertkitError(f"device is {name!r}, and torch {torch.__version__} sees no GPU; use --device cpu")
    # batches differ much in size; memory in whole pieces would be given back and asked for again
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    plan_attention(False)
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise AlbertkitError(f"device {name!r} cannot be used: {str(error)[:120]}; use --device cpu") from None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return device


@contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """Join the processes `torchrun` started, and leave them at the end."""
    chosen = choose_device(device)
    world = int(os.environ.get("WORLD_SIZE", 1))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if world > 1:
        _join("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(int(os.environ.get("RANK", 0)) if world > 1 else 0, world, chosen)
    finally:
        if world > 1:
            dist.destroy_process_group()


def _join(backend: str) -> None:
    """Meet the others. torchrun keeps its store over restarts, with the addresses of the dead, so each start meets under a name of its own."""
    store, rank, world = next(dist.rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(backend, store=dist.PrefixStore(f"start {start}", store), rank=rank, world_size=world)


def is_restart() -> bool:
    """Whether `torchrun --max-restarts` started this process after another one failed; then the run goes on by itself."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def peak(device: torch.device, size: int | None = None) -> float:
    """Operations a second of a large matrix product on this device, measured: bf16 on a GPU, float32 elsewhere."""
    cuda = device.type == "cuda"
    size = size or (8192 if cuda else 1024)
    x = torch.randn(size, size, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    best = math.inf
    for _ in range(4):
        began = time.perf_counter()
        y: Tensor = x @ x
        if cuda:
            torch.cuda.synchronize()
        else:
            y.sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
