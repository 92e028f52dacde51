"""Training that knows the weights will be rounded (quantisation-aware): what is stored afterwards is what was trained.

In: a float model, the bits it will be stored in, examples of its task or texts. Out: float weights and the `smooth` of each matrix, which `quantize.pack`
rounds to the numbers that the last step computed with. Before this file: `student.py`; next: `compress/quantize.py`.

Every matrix is rounded once an update and used L times, so that its gradient is the sum over all uses; rounding itself lets gradients through unchanged
(Bengio et al., arXiv 1308.3432). Inputs of products are rounded for each token as `runtime/graph_builder.py` does. The teacher is the float model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.model.attention import Attention
from albertkit.model.encoder import FeedForward
from albertkit.model.heads import MaskedWordHead
from albertkit.quantized import BITS, BLOCK, is_quantizable, smoothing_factors, uses_four_bits
from albertkit.runtime.activation_moments import calibration, moments_of
from albertkit.runtime.graph import LOWEST
from albertkit.runtime.graph_builder import Levels
from albertkit.train.distill_settings import DistillSettings, RecoverySettings
from albertkit.train.recover import DistillData, train_from_teacher
from albertkit.train.teacher_states import PLAIN

Smooth = dict[str, np.ndarray]


# Weights: `quantize.quantize_rows` and `quantize.quantize_blocks` in torch, to the bit ------------------------------


def straight_through(rounded: Tensor, given: Tensor) -> Tensor:
    """The rounded numbers, whose gradient goes to those that were given."""
    return rounded.detach() + (given - given.detach())


@torch.no_grad()
def fake_quantize_rows(weight: Tensor) -> Tensor:
    """A scale for each row, and whole numbers up to 127."""
    top = weight.abs().amax(1)
    scale = torch.where(top > 0, top / top.new_tensor(127), torch.ones_like(top))[:, None]
    return (weight / scale).round().clamp(-127, 127) * scale


@torch.no_grad()
def fake_quantize_blocks(weight: Tensor) -> Tensor:
    """A scale for each row, a step for each block of 32, and whole numbers from -8 to 7."""
    rows, columns = weight.shape
    blocks = -(-columns // BLOCK)
    top = weight.abs().amax(1)
    scale = torch.where(top > 0, top / top.new_tensor(120), torch.ones_like(top))[:, None]
    short = blocks * BLOCK - columns  # zeros at the end are rounded to zeros, and no error comes from them
    cut = nn.functional.pad(weight / scale, (0, short)).view(rows, blocks, BLOCK)
    steps = torch.ones(rows, blocks, 1, device=weight.device)
    best = torch.full_like(steps, torch.inf, dtype=torch.float64)
    for number in range(1, 16):
        step = weight.new_tensor(number)
        error = ((cut / step).round().clamp(-8, 7) * step - cut).square().sum(-1, keepdim=True, dtype=torch.float64)
        steps, best = torch.where(error < best, step, steps), torch.minimum(error, best)
    wide = steps.expand(rows, blocks, BLOCK).reshape(rows, -1)[:, :columns]
    values = (weight / (scale * wide)).round().clamp(-8, 7)
    return values * wide * scale


def fake_quantize_weight(name: str, weight: Tensor, bits: int, smooth: Tensor | None = None) -> Tensor:
    """A weight as it will be stored, with the gradient of the one it is made from."""
    array = weight.detach()
    array = array if smooth is None else array / smooth
    made = fake_quantize_blocks(array) if bits == 4 and uses_four_bits(name) else fake_quantize_rows(array)
    return straight_through(made if smooth is None else made * smooth, weight)


def fake_quantize_tokens(x: Tensor, levels: Levels, smooth: Tensor | None = None, floor: float | None = None) -> Tensor:
    """The input of a product as the runtime rounds it: each token by its own largest number. See `Builder.product`."""
    with torch.no_grad():
        y = x.float() if smooth is None else x.float() * smooth
        y = y if floor is None else y + floor
        reach = levels.top if floor is not None else levels.middle - 1
        top = (y if floor is not None else y.abs()).amax(-1, keepdim=True)
        grow = y.new_tensor(reach) / top.clamp(min=1e-20)
        low, high = (0, levels.top) if floor is not None else (-levels.middle, levels.top - levels.middle)
        y = (y * grow).round().clamp(low, high) / grow
        y = y if floor is None else y - floor
        y = y if smooth is None else y / smooth
    return straight_through(y.to(x.dtype), x)


class FakeQuantizedModel(nn.Module):
    """A model that computes as it will when it is stored in few bits. Its parameters are the model's own."""

    def __init__(self, model: AlbertModel, bits: int, smooth: Smooth, levels: Levels | None = None) -> None:
        super().__init__()
        if bits not in BITS:
            raise AlbertkitError(f"bits is {bits!r}; choose 8 or 4")
        odd = sorted(set(model.config.options.active()) - PLAIN)
        if odd:
            raise AlbertkitError(
                f"this model has the option {odd[0]}; training for few bits knows plain layers only, so quantise it without --train"
            )
        self.model, self.bits, self.levels = model, bits, levels or Levels()
        self.smooth = {name: torch.from_numpy(np.array(array)) for name, array in smooth.items()}
        self.matrices = {n for n, p in model.named_parameters() if is_quantizable(n, p.detach().cpu().numpy())}
        floor = LOWEST[model.config.hidden_act]
        for name, module in model.named_modules():
            if isinstance(module, Attention):
                self._round_input(module, f"{name}.query.weight")
                self._round_input(module.output, f"{name}.output.weight")
            elif isinstance(module, FeedForward):
                self._round_input(module.up, f"{name}.up.weight")
                self._round_input(module.down, f"{name}.down.weight", floor)
            elif isinstance(module, MaskedWordHead) and not module.bare_projection:
                module.norm.register_forward_hook(lambda _m, _g, out: fake_quantize_tokens(out, self.levels))

    def _round_input(self, module: nn.Module, name: str, floor: float | None = None) -> None:
        def hook(_module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            smooth = self.smooth_of(name, given[0].device)
            return (fake_quantize_tokens(given[0], self.levels, smooth, floor), *given[1:])

        module.register_forward_pre_hook(hook)

    def smooth_of(self, name: str, device: torch.device) -> Tensor | None:
        """The numbers a matrix is smoothed with, moved to the device once."""
        if name in self.smooth:
            self.smooth[name] = self.smooth[name].to(device)
        return self.smooth.get(name)

    def weights(self) -> dict[str, Tensor]:
        """Every matrix rounded, once for all its uses."""
        return {
            name: fake_quantize_weight(name, parameter, self.bits, self.smooth_of(name, parameter.device))
            for name, parameter in self.model.named_parameters()
            if name in self.matrices
        }

    def forward(self, *given: Any, **options: Any) -> Any:
        return torch.func.functional_call(self.model, self.weights(), given, options)


# Training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QatResult:
    """A model trained for few bits."""

    artifact: Artifact
    """Float weights, to be rounded with `smooth` and nothing else."""
    smooth: Smooth
    metrics: dict[str, float]


def calibrate_smoothing(
    artifact: Artifact, texts: list[str] | None, bits: int, progress: Callable[[str], None]
) -> Smooth:
    """The `smooth` of each matrix that has one, from what the float model's layers see."""
    seen = moments_of(artifact.config, dict(artifact.weights), calibration(artifact, texts, progress), progress)
    found = {name: smoothing_factors(name, square, bits) for name, square in seen.items()}
    return {name: array for name, array in found.items() if array is not None}


def train_for_bits(
    artifact: Artifact,
    bits: int,
    data: DistillData,
    training: RecoverySettings,
    run: Path,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
) -> QatResult:
    """Train a float model for `bits`; the same call goes on in `run` where it was stopped."""
    if artifact.meta.quantisation is not None:
        raise AlbertkitError(f"the model is stored as {artifact.meta.quantisation}; train the float model it came from")
    smooth = calibrate_smoothing(artifact, data.texts()[:512] or None, bits, lambda text: None)
    if data.task is None:
        lesson = DistillSettings(hidden=1.0, vectors=1.0 if artifact.meta.task == "embed" else 0.0)
    else:
        lesson = DistillSettings(labels=0.5, logits=1.0, hidden=0.5)

    def prepare(work: Any) -> None:
        work.step = f"training for {bits} bits"
        work.objective.called = FakeQuantizedModel(work.model, bits, smooth)
        work.settings = dataclasses.replace(work.settings, precision="float32")  # half precision would round otherwise

    made, metrics = train_from_teacher(artifact, artifact, data, lesson, training, run, prepare, log, progress_bar)
    return QatResult(made, smooth, metrics)
