"""Optimizers: AdamW from torch, LAMB, which torch lacks, and Muon, which torch has in bf16 only.

In: a model and `TrainSettings`. Out: a list of optimizers whose learning rates `loop.py` sets at each step.
Weight decay applies to matrices only. LAMB does not rescale the steps of biases and norms, as in the original code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from albertkit.train.train_settings import TrainSettings

NEWTON_SCHULZ_STEPS = 5


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (arXiv 1904.00962): an Adam step, rescaled for each tensor to the size of its
    weights.

    update = m̂ / (√v̂ + ε) + λ·w, and w moves by lr · ‖w‖ / ‖update‖ · update. Groups with `adapt=False` keep the plain
    step. AdamW is the same without the ratio; LARS has the ratio without the second moment.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1.76e-3, eps: float = 1e-6, weight_decay: float = 0.01
    ) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.999), "eps": eps, "weight_decay": weight_decay, "adapt": True}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One step, for all tensors of a group at once."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if not self.state[p]:
                    self.state[p] |= {
                        "step": torch.zeros((), dtype=torch.float32),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
                self.state[p]["step"] += 1
            self._update(params, group)

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params]
        first = [self.state[p]["exp_avg"] for p in params]
        second = [self.state[p]["exp_avg_sq"] for p in params]
        step = float(self.state[params[0]]["step"])
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first, grads, 1 - beta1)  # type: ignore[arg-type]
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)  # type: ignore[arg-type]
        denominator = torch._foreach_sqrt(second)
        torch._foreach_mul_(denominator, (1 - beta2**step) ** -0.5)
        torch._foreach_add_(denominator, group["eps"])
        update = torch._foreach_div(first, denominator)
        torch._foreach_mul_(update, 1 / (1 - beta1**step))
        if group["weight_decay"]:
            torch._foreach_add_(update, params, alpha=group["weight_decay"])
        if group["adapt"]:
            weight_norms, update_norms = torch._foreach_norm(params), torch._foreach_norm(update)
            ratios = [
                torch.where((w > 0) & (u > 0), w / u, torch.ones_like(w))
                for w, u in zip(weight_norms, update_norms, strict=True)
            ]
            torch._foreach_mul_(update, ratios)
        torch._foreach_add_(params, update, alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum (Jordan et al. 2024): each step is the nearest matrix with equal singular values. It is
    scaled to the size of an AdamW step (arXiv 2502.16982), so AdamW's learning rates fit.

    Equals `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, but uses float32 on a CPU: bf16 products are slow on
    most processors, and crash on some.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One step, for every matrix."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                buffer = self.state[p]["momentum_buffer"]
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalize(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Bring all singular values near 1, by a few steps of the Newton-Schulz polynomial.

    A step is X ← P·X, where P is a polynomial of S = X·Xᵀ, so the next S is P·S·P. In float32, wide matrices are
    multiplied once, by the product of all P. In bf16 this would lose the small singular values.
    """
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    wide = x if x.shape[0] <= x.shape[1] else x.T
    wide = wide / wide.norm().clamp(min=1e-7)
    is_factored = not matrix.is_cuda and wide.shape[1] >= 2 * wide.shape[0]
    wide = _factored_steps(wide) if is_factored else _plain_steps(wide)
    return (wide if x.shape[0] <= x.shape[1] else wide.T).to(matrix.dtype)


def _plain_steps(wide: Tensor) -> Tensor:
    for _ in range(NEWTON_SCHULZ_STEPS):
        wide = torch.addmm(wide, _polynomial(wide @ wide.T), wide, beta=3.4445)
    return wide


def _factored_steps(wide: Tensor) -> Tensor:
    square, total = wide @ wide.T, None  # (rows, rows)
    for number in range(NEWTON_SCHULZ_STEPS):
        step = _polynomial(square)
        step.diagonal().add_(3.4445)
        total = step if total is None else step @ total
        square = step @ square @ step if number < NEWTON_SCHULZ_STEPS - 1 else square
    return wide if total is None else total @ wide


def _polynomial(square: Tensor) -> Tensor:
    """-4.775·S + 2.0315·S², of which a step adds the product with X to 3.4445·X."""
    return torch.addmm(square, square, square, beta=-4.775, alpha=2.0315)


def build_optimizers(model: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """One optimizer, or two for Muon: it optimizes only the matrices inside the layers, and AdamW the rest."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [p for _, p in named if p.dim() >= 2]
    vectors: dict[str, Any] = {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0}
    rates: dict[str, Any] = {"lr": settings.peak_learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "lamb":
        return [Lamb([{"params": matrices}, {**vectors, "adapt": False}], **rates)]
    optimizers: list[torch.optim.Optimizer] = []
    if settings.optimizer == "muon":
        optimizers = [Muon([p for n, p in named if p.dim() == 2 and ".groups." in n], **rates)]
        matrices = [p for n, p in named if p.dim() >= 2 and not (p.dim() == 2 and ".groups." in n)]
    groups = [{"params": matrices}, vectors]
    return [*optimizers, torch.optim.AdamW(groups, **rates, betas=(0.9, 0.98), eps=1e-6, fused=True)]
