"""Which numbers to compute in. The weights stay float32; on a GPU the arithmetic happens in bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from albertkit.train.train_settings import TrainSettings


def choose(settings: TrainSettings, device: torch.device) -> torch.dtype:
    """bf16 where the device is made for it, or as the settings say."""
    small = settings.precision == "bf16"
    if settings.precision == "auto":
        small = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if small else torch.float32


def call(model: nn.Module, dtype: torch.dtype, *given: Any, **options: Any) -> Any:
    """The model, computing in `dtype`; gradients reach the float32 weights."""
    if dtype == torch.float32:
        return model(*given, **options)
    weights = {name: p.to(dtype) for name, p in model.named_parameters()}
    return torch.func.functional_call(model, weights, given, options)
