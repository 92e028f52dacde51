"""Where does a pre-training step spend its time on a GPU, and which attention with relative positions is fastest?

    python studies/training_profile.py --out studies/results/training-profile.json                 # one H200, two minutes
    python studies/training_profile.py --out /tmp/try.json --rows 4 --steps 2 --device cpu --compile no    # a trial

- steps: tokens per second, share of the peak, and time by kernel, for canonical attention and relative positions.
- attention: forward and backward of one layer's attention, for lengths 128, 256 and 512, in several ways.

Rows are those of runs/tiny.txt.xz. Each measurement is written to --out when it is done.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / name) for name in ("src", "bench")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from steps import share_of_peak  # noqa: E402
from torch import Tensor  # noqa: E402

from albertkit import Tokenizer  # noqa: E402
from albertkit.config import preset  # noqa: E402
from albertkit.data.corpus import CorpusSettings, build_corpus  # noqa: E402
from albertkit.model.optional_modules import ConfigurableAttention  # noqa: E402
from albertkit.train import loop, pretrain  # noqa: E402
from albertkit.train.distributed import ProcessGroup  # noqa: E402
from albertkit.train.train_settings import TrainSettings  # noqa: E402

VARIANTS: dict[str, dict[str, Any]] = {"canonical": {}, "relative": {"attention_bias": "relative"}}
HEADS, HEAD_SIZE = 6, 64
KINDS = {  # the first that matches the name of a kernel
    "attention": "fmha|flash|attention|cutlassF|cutlassB|pytorch_flash",
    "matrix products": "gemm|cublas|nvjet|cutlass|sm90_xmma|matmul",
    "compiled": "triton",
    "copies": "memcpy|memset|copy",
}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def steps(shards: Path, options: dict[str, Any], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Speed of the training loop, then the time of each kind of kernel."""
    device = torch.device(args.device)
    settings = TrainSettings(
        steps=10**6, batch_size=args.rows, evaluations=0, optimizer="muon", learning_rate=1e-4, tensorboard=False,
        device=args.device, compile=args.compile,
    )  # fmt: skip
    shape = preset(args.shape)
    work = pretrain.PretrainTask(shards, shape.replace(options=shape.options.__class__(**options)), settings)
    run = loop.TrainingRun(work, settings, folder, ProcessGroup(0, 1, device), lambda line: None)
    run.open(False)
    run.reset_sums()
    began = time.perf_counter()
    for _ in range(3):
        run.step(0.5)
    synchronize(device)
    warm = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(args.steps):
        run.step(0.5)
    synchronize(device)
    seconds = (time.perf_counter() - began) / args.steps
    speed = args.rows * work.length / seconds
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            run.step(0.5)
        synchronize(device)
    kernels = [
        (event.key, event.self_device_time_total / 3000, event.count / 3)
        for event in profile.key_averages()
        if event.device_type != torch.profiler.DeviceType.CPU
    ]
    kinds: dict[str, float] = defaultdict(float)
    for name, milliseconds, _ in kernels:
        kinds[next((kind for kind, names in KINDS.items() if re.search(names, name.lower())), "other")] += milliseconds
    kernels.sort(key=lambda kernel: -kernel[1])
    return {
        "start_s": warm,
        "ms_per_step": 1000 * seconds,
        "tokens_per_second": speed,
        "share_of_peak": share_of_peak(speed, work, device),
        "ms_by_kind": dict(kinds),
        "kernels": [{"name": name[:110], "ms": ms, "count": count} for name, ms, count in kernels[:25]],
    }


# Attention of one layer ----------------------------------------------------------------------------------------------


class Bias(ConfigurableAttention):
    """The bias of relative positions alone."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.heads, self.reach = HEADS, 64
        self.theta = torch.nn.Parameter(torch.randn(HEADS, 129))


def plain(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Scores and weights are stored: (texts, heads, length, length)."""
    scores = query @ key.transpose(2, 3) * HEAD_SIZE**-0.5 + bias
    return scores.float().softmax(-1).to(value.dtype) @ value


def fused(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.contiguous())


def no_bias(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def flex(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """FlexAttention; the gradient of the bias is its own."""
    from torch.nn.attention.flex_attention import flex_attention

    def add(score: Tensor, text: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + bias[0, head, row, column]

    return flex_attention(query, key, value, score_mod=add)  # type: ignore[return-value]


def flex_constant(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """FlexAttention without a gradient of the bias, which could be computed by `bias_gradient`."""
    return flex(query, key, value, bias.detach())


def bias_gradient(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """The gradient of the bias as plain products, with a random gradient of the output."""
    weights = (query @ key.transpose(2, 3) * HEAD_SIZE**-0.5 + bias).float().softmax(-1)
    change = (value @ value.transpose(2, 3)).float()
    return (weights * (change - (weights * change).sum(-1, keepdim=True))).sum(0)


WAYS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], bool]] = {  # is it compiled?
    "no bias, fused": (no_bias, False),
    "fused": (fused, False),
    "plain, compiled": (plain, True),
    "flex": (flex, True),
    "flex, constant bias": (flex_constant, True),
    "gradient of the bias": (bias_gradient, True),
}


def attention(length: int, way: str, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of one layer's attention, forward and both ways, and the difference from plain float32."""
    device, dtype = torch.device(args.device), torch.bfloat16 if args.device == "cuda" else torch.float32
    texts = max(1, args.rows * 128 // length)
    call, is_compiled = WAYS[way]
    bias = Bias().to(device)
    shape = (3, texts, HEADS, length, HEAD_SIZE)
    inputs = torch.randn(shape, device=device, dtype=dtype).unbind()
    query, key, value = (x.detach().requires_grad_() for x in inputs)

    def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return call(query, key, value, bias.relative_bias(length, length).to(dtype)[None])

    run = torch.compile(whole, dynamic=False) if is_compiled and args.compile != "no" else whole
    found: dict[str, float] = {}
    if way in ("fused", "plain, compiled", "flex"):
        few = [x[:2].detach() for x in (query, key, value)]
        exact = plain(*(x.float() for x in few), bias.relative_bias(length, length)[None])
        found["difference"] = float((run(query, key, value)[:2].float() - exact).abs().max())
    grad = torch.randn_like(query)

    def both() -> None:
        out = run(query, key, value)
        if out.shape == grad.shape:
            torch.autograd.grad(out, [query, key, value], grad) if way in ("no bias, fused", "flex, constant bias") else \
                torch.autograd.grad(out, [query, key, value, bias.theta], grad)  # fmt: skip

    def forward() -> None:
        with torch.no_grad():
            run(query, key, value)

    for name, action in (("forward_ms", forward), ("both_ms", both)):
        for _ in range(3):
            action()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(args.steps):
            action()
        synchronize(device)
        found[name] = 1000 * (time.perf_counter() - began) / args.steps
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="auto", choices=("auto", "layer", "no"))
    parser.add_argument("--shape", default="small")
    parser.add_argument("--rows", type=int, default=1024, help="of 128 tokens")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lengths", default="128,256,512")
    args = parser.parse_args()
    record: dict[str, Any] = {"torch": torch.__version__, "rows": args.rows, "shape": args.shape}
    if args.device == "cuda":
        record["gpu"] = torch.cuda.get_device_name()

    def keep(group: str, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        try:
            found = measure()
        except Exception as error:  # the others are measured all the same
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        record.setdefault(group, {})[name] = found
        args.out.write_text(json.dumps(record, indent=1) + "\n")
        print(group, name, {key: value for key, value in found.items() if key != "kernels"}, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
        build_corpus([str(ROOT / "runs" / "tiny.txt.xz")], folder / "shards", tokenizer, CorpusSettings(), workers=1)
        for name, options in VARIANTS.items():
            keep(
                "steps", name, lambda options=options, name=name: steps(folder / "shards", options, folder / name, args)
            )  # type: ignore[misc]
            torch._dynamo.reset()
    for length in map(int, args.lengths.split(",")):
        for way in WAYS:
            keep("attention", f"{way}, {length}", lambda length=length, way=way: attention(length, way, args))  # type: ignore[misc]


if __name__ == "__main__":
    main()
