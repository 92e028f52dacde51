"""Are adapters useful for a shared layer? LoRA (arXiv 2106.09685) compared with full fine-tuning, on the same loop.
It is the source of a section of docs/results/ideas.md.

    python studies/adapters.py DATA [--examples 6000] [--epochs 1] [--seeds 1] [--start small]
    python studies/adapters.py DATA --quick    # toy size; records nothing

DATA is a folder with train.tsv and dev.tsv of texts and classes, such as SST-2. Each variant runs in a separate
process, one after the other, to measure its peak memory. Head and pooler are trained in every variant: the built-in
vector model has no pooler, so the pooler is initialized randomly.

Expected memory, with E, H, F, V, L of the built-in model (128, 384, 1536, 30,000, 12). The matrices of the shared layer
have 4·H² + 2·H·F = 1.8 M weights, the word embeddings V·E = 3.8 M. Gradient and AdamW state take 12 bytes per weight:
21 MB for the layer. Adapters can save at most this; without sharing it would be L times as much. Freezing the word
embeddings saves 46 MB and needs no adapters. Activations are stored for all L uses in any case. In this
implementation, the sums W + B·A and their gradient use 8 of the 12 bytes again during a training step.

Expected time: the forward pass and the gradient of the hidden states are the same. The gradient of the matrices, a
third of the operations, is also the same here: W + B·A is computed once per step and used L times. LoRA on hidden
states, W·x + B·(A·x), omits this gradient and adds small products, so it could take two thirds of the time at best.
This is not measured here. The size of a task on disk is smaller in any case. LoRA's scale is 1 (alpha = rank). A is
initialized uniformly within ±1/√inputs, B with 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from inference import machine, versions  # noqa: E402
from jobs import run_jobs  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from albertkit.artifact import QUANTIZED_FILE  # noqa: E402
from albertkit.builtin import DEFAULT, resolve  # noqa: E402
from albertkit.compress.benchmark import resident_bytes  # noqa: E402
from albertkit.compress.quantize import quantize  # noqa: E402
from albertkit.interop.convert import open_model  # noqa: E402
from albertkit.model import AlbertModel, ModelOutput  # noqa: E402
from albertkit.tasks import make_task  # noqa: E402
from albertkit.tasks.readers import read_examples  # noqa: E402
from albertkit.train.collapse import no_learning_reason  # noqa: E402
from albertkit.train.finetune_runs import loop_settings  # noqa: E402
from albertkit.train.finetune_task import FinetuneTask  # noqa: E402
from albertkit.train.loop import train  # noqa: E402
from albertkit.train.presets import preset_learning_rate  # noqa: E402
from albertkit.train.train_settings import FinetuneSettings  # noqa: E402

RESULT = Path(__file__).parent / "results" / "adapters.json"
QUICK = 64  # examples at toy size, to learn from and to measure with


@dataclass(frozen=True)
class Way:
    """What is trained, and how fast."""

    rank: int = 0
    """Of the adapters; 0 trains the layer itself."""
    embeddings: bool = False
    """Whether they are trained."""
    times: int = 1
    """The preset rate is multiplied with it."""


WAYS = {
    "everything": Way(embeddings=True),
    "all but the embeddings": Way(),
    **{f"LoRA of rank {rank}, rate × {times}": Way(rank, times=times) for rank in (8, 32) for times in (1, 10)},
}


class LowRank(nn.Module):
    """A matrix W becomes W + B·A."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        nn.init.uniform_(self.a, -(inputs**-0.5), inputs**-0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


class Adapted(AlbertModel):
    """A model whose layers are frozen and have adapters. In files the matrices are the sums, and the adapters lie
    beside them as a head of one's own.
    """

    def __init__(self, plain: AlbertModel, rank: int) -> None:
        nn.Module.__init__(self)  # a second encoder would count as memory of this way
        self.config, self.encoder, self.heads = plain.config, plain.encoder, plain.heads
        linears = {n: m for n, m in self.encoder.groups.named_modules() if isinstance(m, nn.Linear)}
        adapters = {name.replace(".", "-"): LowRank(linear.weight, rank) for name, linear in linears.items()}
        for linear, adapter in zip(linears.values(), adapters.values(), strict=True):
            parametrize.register_parametrization(linear, "weight", adapter)
        self.linears = {f"encoder.groups.{name}.weight": linear for name, linear in linears.items()}
        self.encoder.groups.requires_grad_(False)
        self.heads["adapters"] = nn.ModuleDict(adapters).requires_grad_(True)

    def forward(self, *arguments: Any, **named: Any) -> ModelOutput:
        """The sums are made once, for all uses of the layer."""
        with parametrize.cached():
            return super().forward(*arguments, **named)

    def weights(self) -> dict[str, Any]:
        """The sums under the names of the matrices, and everything else."""
        plain_weights = {name: array for name, array in super().weights().items() if ".parametrizations." not in name}
        return plain_weights | {name: linear.weight.detach().cpu().numpy() for name, linear in self.linears.items()}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        """All but the sums: what they are made of is frozen, or lies beside them."""
        return super().load_state_dict(state, strict=False, assign=assign)


class Adapting(FinetuneTask):
    """The work of fine-tuning in one of the ways."""

    def __init__(self, way: Way, *arguments: Any) -> None:
        self.way = way
        super().__init__(*arguments)

    def build_model(self) -> AlbertModel:
        """The model, with frozen parts and adapters as the way has them."""
        model = super().build_model()
        model.encoder.embeddings.requires_grad_(self.way.embeddings)
        return Adapted(model, self.way.rank) if self.way.rank else model


def trained_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that learn, each once."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def artifact_growth(work: Adapting, model: Path, texts: list[str]) -> int:
    """Bytes that a task adds on disk: the whole folder in int8, its tensors beyond the embeddings, or adapters and head
    as they are (float32).
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "int8"
        if work.way.rank:
            save_file(trained_parameters(work.model), Path(scratch) / "adapters.safetensors")
            return (Path(scratch) / "adapters.safetensors").stat().st_size
        quantize(model, folder, 8, texts)
        if work.way.embeddings:
            return sum(file.stat().st_size for file in folder.iterdir())
        with safe_open(folder / QUANTIZED_FILE, "np") as file:
            return sum(file.get_tensor(n).nbytes for n in file.keys() if not n.startswith("encoder.embeddings."))  # noqa: SIM118


def run_variant(name: str, seed: int, args: argparse.Namespace, target: Path) -> None:
    """One way with one seed, in this process; what was found goes to a file."""
    way, start = WAYS[name], open_model(resolve(args.start))
    learn = read_examples("classify", args.data / "train.tsv").examples[: args.examples]
    dev = read_examples("classify", args.data / "dev.tsv").examples[: args.dev]
    options, rate = (
        FinetuneSettings(epochs=args.epochs, batch_size=32, device="cpu"),
        way.times * preset_learning_rate(start.config),
    )
    steps = max(1, round(args.epochs * -(-len(learn) // options.batch_size)))
    settings = loop_settings(options, steps, rate, seed, math.ceil(args.epochs))
    work = Adapting(way, make_task("classify", learn), start, learn, dev, settings, options.max_length)
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(work, settings, folder)
        memory = resident_bytes("VmHWM")  # before anything is quantised
        if outcome.model is None:
            sys.exit("stopped")
        size = artifact_growth(work, outcome.model, [example.text for example in learn[:100]])
    record = {
        "accuracy": outcome.metrics["accuracy"], "seconds": outcome.state.seconds, "memory": memory, "rate": rate, "backoff": outcome.state.backoff,
        "collapsed": bool(no_learning_reason(work)), "trained": sum(p.numel() for p in trained_parameters(work.model).values()), "bytes": size, "dev": len(dev),
    }  # fmt: skip
    target.write_text(json.dumps(record), encoding="utf-8")
    print(name, seed, json.dumps(record), flush=True)


def main() -> None:
    """Every way with every seed, then the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--examples", type=int, default=6000)
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--start", default=DEFAULT, help="model to begin with")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} examples; nothing is kept")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    args.dev = QUICK if args.quick else None
    args.examples = QUICK if args.quick else args.examples
    with tempfile.TemporaryDirectory() as folder:
        files = {
            (name, seed): Path(folder) / f"{i}-{seed}.json" for seed in range(args.seeds) for i, name in enumerate(WAYS)
        }
        failed = run_jobs(run_variant, [(name, seed, args, path) for (name, seed), path in files.items()], jobs=1)
        if failed:
            sys.exit(f"nothing is kept, since these did not end well: {', '.join(failed)}")
        records = {key: json.loads(path.read_text(encoding="utf-8")) for key, path in files.items()}
    if args.quick:
        return
    settings = {
        name: {**asdict(way), "runs": [run for (of, _), run in records.items() if of == name]}
        for name, way in WAYS.items()
    }
    facts = {"data": args.data.resolve().name, "start": args.start, "examples": args.examples, "epochs": args.epochs}
    result = {"machine": machine(int(os.environ["OMP_NUM_THREADS"])), "versions": versions(), **facts, "ways": settings}
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
