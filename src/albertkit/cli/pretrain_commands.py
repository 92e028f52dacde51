"""The verb that makes a model from text: `pretrain` (`distill` stands in `cli/distill_commands.py`). Options come from the settings' own fields, so that each is explained once.

In: arguments. Out: calls into `train/`. With `cli/entry_point.py` and its other parts, the only files that print.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from albertkit.errors import AlbertkitError, need
from albertkit.train.train_settings import PretrainSettings, TrainSettings

folder = click.Path(path_type=Path)
DEFAULT_MINUTES = 10.0


def options(*kinds: type, environment: str = "") -> Callable[[Any], Any]:
    """One option for each field of some dataclasses that is explained, in their order; with `environment`, a variable that begins so too."""

    def add(command: Any) -> Any:
        fields = [field for kind in kinds for field in dataclasses.fields(kind) if "help" in field.metadata]
        for field in reversed(fields):
            name = f"--{field.name.replace('_', '-')}"
            about: dict[str, Any] = {"help": field.metadata["help"], "default": field.default}
            kind = str(field.type)
            if kind == "bool":
                name = f"{name}/--no-{field.name.replace('_', '-')}"
            else:
                about["type"] = {"int": int, "float": float, "str": str}[kind.removesuffix(" | None")]
            about["show_default"] = field.default not in (None, True, False)
            if environment:
                about["envvar"] = f"{environment}{field.name.upper()}"
            command = click.option(name, field.name, **about)(command)
        return command

    return add


def of(kind: type, given: dict[str, Any]) -> Any:
    """Take a dataclass's fields out of the arguments."""
    return kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind) if field.name in given})


@click.command(epilog="Example:  albertkit pretrain shards -o run --shape small --minutes 30")
@click.argument("shards", type=folder)
@click.option("-o", "--out", type=folder, required=True, help="Folder for checkpoints, metrics and the model.")
@click.option("--shape", default="small", show_default=True, help="A preset, or a folder or JSON file with a config.")
@click.option(
    "--option", "extras", multiple=True, metavar="NAME=VALUE", help="An option beyond ALBERT; see docs/options.md."
)
@click.option("--start", type=folder, help="Begin with this model's weights instead of fresh ones.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --out, if there is one.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@options(TrainSettings, PretrainSettings)
def pretrain(
    shards: Path,
    out: Path,
    shape: str,
    extras: tuple[str, ...],
    start: Path | None,
    resume: bool,
    dry_run: bool,
    **given: Any,
) -> None:
    """Pre-train a model on SHARDS, the folder that `albertkit corpus` made.

    The budget is one of --steps, --tokens and --minutes (default: 10 minutes). On several GPUs or machines:
    torchrun --nproc-per-node 8 -m albertkit pretrain SHARDS -o RUN --minutes 60 --resume

    --option switches on what other descriptions of ALBERT add to it, as often as needed:
    --option low_rank=32 --option gru=true --option window=64 --option global_every=3

    --out then holds checkpoints/, metrics.jsonl, tensorboard/, loss.png, and the finished model in model/.
    Ctrl-C saves; the same command with --resume goes on, and ends with the same weights as if nothing had happened
    (to the bit on a CPU; a budget in minutes follows the clock).
    """
    need("torch", "train", "pre-training")
    if all(given[name] is None for name in ("steps", "tokens", "minutes")):
        given["minutes"] = DEFAULT_MINUTES
        click.echo(f"no budget given: training for {DEFAULT_MINUTES:g} minutes", err=True)
    settings, goals = of(TrainSettings, given), of(PretrainSettings, given)
    from albertkit.artifact import read_artifact
    from albertkit.train.loop import train
    from albertkit.train.pretrain import PretrainTask, describe

    before = read_artifact(start) if start else None
    if before and extras:
        raise AlbertkitError(
            "--option and --start were both given; a model keeps the options it began with, so leave one away"
        )
    config = before.config if before else shape_of(shape, extras)
    work = PretrainTask(shards, config, settings, goals, before)
    if dry_run:
        for name, value in describe(work).items():
            click.echo(f"{name:24} {f'{value:,}' if isinstance(value, int) else value}")
        return
    from tqdm import tqdm

    outcome = train(
        work, settings, out, resume=resume, log=lambda text: tqdm.write(text, file=sys.stderr), progress_bar=True
    )
    if outcome.model is not None and os.environ.get("RANK", "0") == "0":
        click.echo(json.dumps({"model": str(outcome.model), "tokens": outcome.state.tokens, **outcome.metrics}))


def shape_of(shape: str, extras: Sequence[str] = ()) -> Any:
    """A config by preset name, or from a model folder or a JSON file; with options such as low_rank=32."""
    from albertkit.options import given_options

    config = _plain_shape(shape)
    return config.replace(options=given_options(extras, config.options)) if extras else config


def _plain_shape(shape: str) -> Any:
    from albertkit.artifact import read_json
    from albertkit.config import AlbertConfig, preset

    path = Path(shape)
    if path.is_dir():
        return AlbertConfig.from_dict(read_json(path / "config.json"))
    if path.suffix == ".json":
        return AlbertConfig.from_dict(read_json(path))
    try:
        return preset(shape)
    except AlbertkitError as error:
        raise AlbertkitError(f"{error}; or give a folder or a .json file") from None
