"""Device, processes started by `torchrun`, and precision of a training run.

In: a device name and the environment. Out: `ProcessGroup`, with the few operations that `loop.py` needs, the precision,
and which library computes products on a CPU. A single process is a group of one.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from albertkit.errors import AlbertkitError
from albertkit.train.train_settings import TrainSettings

BF16_PRODUCT = "import torch; x = torch.ones(256, 256, dtype=torch.bfloat16); x @ x"  # a program


@dataclass(frozen=True)
class ProcessGroup:
    """This process among `world_size`, and the device it computes on."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is true in any process."""
        if self.world_size == 1:
            return flag
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)).item() > 0)

    def broadcast(self, value: float) -> float:
        """The main process's number."""
        if self.world_size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared.item())

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def process_group(device: str, precision: str = "auto") -> Iterator[ProcessGroup]:
    """Join the process group that `torchrun` started, and destroy it at the end."""
    torch_device = choose_device(device)
    check_precision(precision, torch_device)
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if torch_device.type == "cuda":
        torch.cuda.set_device(torch_device)
    if world_size > 1:
        _init_process_group("nccl" if torch_device.type == "cuda" else "gloo")
    try:
        with fast_float32_products(torch_device):
            yield ProcessGroup(int(os.environ.get("RANK", 0)) if world_size > 1 else 0, world_size, torch_device)
    finally:
        if world_size > 1:
            dist.destroy_process_group()


def _init_process_group(backend: str) -> None:
    """torchrun's store survives restarts and has the addresses of dead processes, so each start needs a new prefix."""
    store, rank, world_size = next(dist.rendezvous("env://"))
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"start {start}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def is_restart() -> bool:
    """Whether `torchrun --max-restarts` started this process after a failure; then the run resumes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def choose_device(name: str) -> torch.device:
    """A device by name; `auto` takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise AlbertkitError(
            f"device={name!r} is not available: torch {torch.__version__} finds no GPU. Use --device cpu."
        )
    # batch sizes vary; fixed segments would be freed and reallocated all the time
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    allow_cudnn_attention(False)
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise AlbertkitError(f"device {name!r} cannot be used: {str(error)[:120]}. Use --device cpu.") from None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return device


def allow_cudnn_attention(allowed: bool) -> None:
    """Allow or forbid cuDNN attention. Allow it only for batches of one shape: planning each new shape takes longer
    than the rest of a step.
    """
    torch.backends.cuda.enable_cudnn_sdp(allowed)


def compute_dtype(settings: TrainSettings, device: torch.device) -> torch.dtype:
    """`settings.precision`; `auto` is bf16 if the device supports it. Weights stay float32."""
    is_bf16 = settings.precision == "bf16"
    if settings.precision == "auto":
        is_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if is_bf16 else torch.float32


def check_precision(precision: str, device: torch.device) -> None:
    """Raise if a bf16 product on the CPU would end this process."""
    uses_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if precision == "bf16" and device.type == "cpu" and uses_onednn and not survives_bf16():
        raise AlbertkitError(
            "precision=bf16 is not available: a bf16 product fails on this CPU. Use --precision float32."
        )


@functools.cache
def survives_bf16() -> bool:
    """Whether another process survives a bf16 product: some virtual machines hide instructions that oneDNN uses."""
    try:
        done = subprocess.run([sys.executable, "-c", BF16_PRODUCT], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def call_in_dtype(model: nn.Module, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    """Call the model with its weights cast to `dtype`; gradients reach the float32 weights."""
    if dtype == torch.float32:
        return model(*args, **kwargs)
    weights = {name: p.to(dtype) for name, p in model.named_parameters()}
    return torch.func.functional_call(model, weights, args, kwargs)


def has_amd_avx512() -> bool:
    """Whether this is an AMD processor with AVX-512 and without AMX, and this version of torch recognises it."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    cpu = torch.cpu.get_capabilities()
    return "AMD" in cpu.get("cpu_name", "") and cpu.get("avx512_f", False) and not cpu.get("amx_tile", False)


@contextmanager
def fast_float32_products(device: torch.device) -> Iterator[None]:
    """Let oneDNN compute float32 products on AMD processors with AVX-512, inside this context.

    torch uses MKL otherwise, which uses AVX2 on AMD: half the speed. torch's switch is named bf16, since it permits
    bf16. oneDNN rounds to bf16 with AMX only. So it is used only without AMX, and only if a product stays exact.
    Attention is computed in plain products, since fused attention makes many small ones, which oneDNN makes slowly.
    """
    if device.type != "cpu" or not has_amd_avx512():
        yield
        return
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    try:
        products.fp32_precision = "bf16"
        is_exact = _is_product_exact()
        products.fp32_precision = "bf16" if is_exact else before
        with sdpa_kernel(SDPBackend.MATH) if is_exact else nullcontext():
            yield
    finally:
        products.fp32_precision = before


def _is_product_exact() -> bool:
    """Whether a product of integers with up to 12 bits, which bf16 rounds and float32 does not, is exact."""
    left = torch.arange(256 * 128, dtype=torch.float32).view(256, 128) % 4093
    right = torch.arange(128 * 192, dtype=torch.float32).view(128, 192) % 7
    return torch.equal((left @ right).double(), left.double() @ right.double())
