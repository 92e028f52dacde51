"""Layers compiled without their attention, and a trial on random texts that decides whether this pays.

    python studies/small-zh/compiled.py MODEL ANSWER [--device cuda]

The compiled backward pass of attention fails with a relative bias and texts of many lengths, so attention is left as it
is. The trial compares loss and gradient with those of layers that are not compiled, at lengths from 3 to 256, and
writes `yes` to the file ANSWER if both agree and the training is at least 5 % faster, otherwise `no`. `distill.py
--compile` then compiles.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.interop.convert import open_model  # noqa: E402
from albertkit.model import AlbertModel  # noqa: E402
from albertkit.model.encoder import Layer  # noqa: E402
from albertkit.train.distill_data import VectorDistillSettings  # noqa: E402
from albertkit.train.distill_vectors import VectorDistillObjective  # noqa: E402

LENGTHS = (3, 6, 8, 11, 16, 18, 24, 32, 33, 48, 64, 77, 100, 128, 176, 256)
SPEEDUP = 1.05
TOLERANCE = 0.02  # relative, of loss and norm of the gradient in bf16
RECOMPILATIONS = 64


def compile_layers(model: AlbertModel) -> None:
    """Compile each layer for all lengths, except for the attention inside it."""
    torch._dynamo.config.recompile_limit = RECOMPILATIONS
    for module in model.encoder.modules():
        if isinstance(module, Layer):
            module.attention.attend = torch.compiler.disable(module.attention.attend)  # type: ignore[method-assign]
            module.compile(dynamic=True)


def train_on(objective: VectorDistillObjective, length: int, tokens: int, device: torch.device) -> tuple[float, float]:
    """Loss and norm of the gradient for random texts of one length."""
    generator = torch.Generator().manual_seed(length)
    config, rows = objective.model.config, max(8, min(4096, tokens // length))
    ids = torch.randint(10, config.vocab_size, (rows, length), generator=generator).to(device)
    targets = F.normalize(torch.randn(rows, config.hidden_size, generator=generator)).to(device)
    depths = objective.depths if length % 2 else objective.depths[:2]
    loss = objective(depths, ids, targets)[0]
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in objective.parameters() if p.grad is not None]).norm()
    objective.zero_grad(set_to_none=True)
    return loss.item(), norm.item()


def measure(objective: VectorDistillObjective, tokens: int, device: torch.device) -> tuple[list[float], float]:
    """All losses and norms, and the seconds of the second pass over all lengths."""
    found = [number for length in LENGTHS for number in train_on(objective, length, tokens, device)]
    started = time.perf_counter()
    for length in LENGTHS:
        train_on(objective, length, tokens, device)
    return found, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=131_072)
    args = parser.parse_args()
    args.answer.write_text("no\n", encoding="ascii")  # also after a crash
    torch.set_float32_matmul_precision("high")
    device, student = torch.device(args.device), open_model(args.model)
    weights = {n: a for n, a in student.weights.items() if n.startswith("encoder.") and ".pooler." not in n}
    model = AlbertModel.from_artifact(dataclasses.replace(student, weights=weights)).to(device)
    objective = VectorDistillObjective(model, VectorDistillSettings()).train()
    objective.dtype = torch.bfloat16
    expected, plain = measure(objective, args.tokens, device)
    print(f"not compiled: {plain:.2f} s", flush=True)
    compile_layers(model)
    started = time.perf_counter()
    found, compiled = measure(objective, args.tokens, device)
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(found, expected, strict=True))
    pays = worst < TOLERANCE and compiled * SPEEDUP < plain
    print(f"compiled: {compiled:.2f} s, after {time.perf_counter() - started:.0f} s; largest difference {worst:.4f}")
    args.answer.write_text("yes\n" if pays else "no\n", encoding="ascii")


if __name__ == "__main__":
    main()
