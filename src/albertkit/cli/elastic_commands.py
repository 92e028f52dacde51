"""The verbs of elastic depth: `elastic` trains every depth of a model, `calibrate` finds when texts may leave early.

In: arguments. Out: calls into `train/` and `runtime/calibration.py`, printed. With `cli/entry_point.py` and its other parts, the only files that print.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.pretrain_commands import DEFAULT_MINUTES, of, options
from albertkit.cli.task_commands import Reading, read_files
from albertkit.errors import AlbertkitError, need
from albertkit.tasks.splits import split_examples
from albertkit.train.train_settings import ElasticSettings

if TYPE_CHECKING:
    from albertkit.artifact import Artifact
    from albertkit.runtime.calibration import ExitCalibration

folder = click.Path(path_type=Path)
SHARES = (0.9, 0.95, 0.98, 0.99, 0.995)


@click.command(epilog="Example:  albertkit elastic sentiment train.tsv --dev dev.tsv -o sentiment-elastic")
@click.argument("model", type=folder)
@click.argument("train", type=folder)
@click.option("--dev", type=folder, help="Held-out examples; without, one in ten of TRAIN.")
@click.option("-o", "--out", type=folder, required=True, help="Folder for runs, report and model.")
@click.option(
    "--texts",
    type=folder,
    help="More texts, one a line, without labels (a tab between the two of a pair): what MODEL says of them at its full depth is learnt too.",
)
@click.option(
    "--teacher",
    type=folder,
    help="A better model for the same task, to label --texts instead of MODEL. MODEL may then be one without a task.",
)
@click.option(
    "--minutes", type=float, help="For a pre-trained model: budget in minutes  [default: 10; tasks count epochs]"
)
@options(ElasticSettings, Reading)
def elastic(
    model: Path, train: Path, dev: Path | None, out: Path, texts: Path | None, teacher: Path | None,
    minutes: float | None, **given: Any
) -> None:  # fmt: skip
    """Train MODEL, fine-tuned for any task (or pre-trained, with a --teacher), on TRAIN until every depth is a good model, with one head for all.

    Afterwards `--depth 4` applies four layers, and `--early-exit 99%` lets texts leave as soon as they are sure: held-out examples say when,
    so that they agree with the full depth 99 times in 100. --out then holds model/, report.md and runs/; the same command goes on where it was
    stopped.

    For a pre-trained model, TRAIN is the folder that `albertkit corpus` made, and masked words are learnt at every depth. Models for vectors are
    elastic as `albertkit distill` makes them; `albertkit calibrate` finds when their texts may leave.
    """
    need("torch", "train", "training")
    from tqdm import tqdm

    from albertkit.interop.convert import open_model

    def log(text: str) -> None:
        tqdm.write(text, file=sys.stderr)

    opts, reading, start = of(ElasticSettings, given), of(Reading, given), open_model(model)
    if start.meta.task == "pretrain" and teacher is None:
        if dev is not None or texts is not None or opts.epochs is not None:
            raise AlbertkitError(
                "a pre-trained model learns for --minutes; leave --dev, --texts and --epochs away, or name a fine-tuned --teacher"
            )
        words(start, train, out, opts, minutes, log)
        return
    if minutes is not None:
        raise AlbertkitError("--minutes is for masked words; a task, also that of a --teacher, is learnt for --epochs")
    if teacher is not None and texts is None:
        raise AlbertkitError("a teacher labels texts, and none were given; add --texts")
    if start.meta.task == "embed" and teacher is None:
        raise AlbertkitError(
            "a model for vectors learns depths from a teacher: albertkit distill TEACHER SHARDS --start MODEL --depths 3,6,9,12; then  albertkit calibrate  finds when texts may leave"
        )
    from albertkit.cli.entry_point import read_texts
    from albertkit.train.finetune_runs import elastic as run
    from albertkit.train.finetune_runs import knowing

    master = None if teacher is None else open_model(teacher)
    more = list(read_texts((), texts)) if texts else []
    if texts is not None and not more:
        raise AlbertkitError(f"{texts} holds no text; give a text a line")
    data = read_files(knowing(start, master).meta.task, {"train": train, **({"dev": dev} if dev else {})}, reading)
    if dev is None:
        data["train"], data["dev"] = split_examples(data["train"])
    out.mkdir(parents=True, exist_ok=True)
    done = run(start, data["train"], data["dev"], out, opts, log, progress_bar=True, texts=more, teacher=master)
    click.echo(json.dumps({"model": str(done.model), **done.metrics}))
    stored = read_exit(done.model)
    if stored is None:
        log("too few held-out examples to say when texts may leave early; run  albertkit calibrate  with more")
    else:
        promises(stored)


def words(start: Artifact, shards: Path, out: Path, opts: ElasticSettings, minutes: float | None, log: Any) -> None:
    """Masked words at every depth: pre-training goes on, with a depth drawn for every second update."""
    from albertkit.train.loop import train
    from albertkit.train.pretrain import PretrainTask
    from albertkit.train.train_settings import PretrainSettings, TrainSettings

    if not (shards / "manifest.json").is_file():
        raise AlbertkitError(
            f"the model is pre-trained, and {shards} is no corpus folder; make one with  albertkit corpus, or fine-tune first"
        )
    depths = ",".join(str(depth) for depth in range(1, start.config.num_hidden_layers))
    goals = PretrainSettings(
        lengths=str(min(128, start.config.max_position_embeddings)),
        depths=depths,
        consistency_weight=opts.consistency_weight,
    )
    settings = TrainSettings(
        minutes=minutes or DEFAULT_MINUTES, batch_size=opts.batch_size, micro_batch_size=opts.micro_batch_size, learning_rate=opts.learning_rate, seed=opts.seed,
        device=opts.device,
    )  # fmt: skip
    outcome = train(
        PretrainTask(shards, start.config, settings, goals, start),
        settings,
        out,
        resume=True,
        log=log,
        progress_bar=True,
    )
    if outcome.model is not None:
        click.echo(json.dumps({"model": str(outcome.model), **outcome.metrics}))


@click.command(epilog="Example:  albertkit calibrate sentiment-int8 dev.tsv")
@click.argument("model", type=folder)
@click.argument("dev", type=folder)
@click.option(
    "--exit-depths",
    help="Depths at which texts may leave, such as 3,6,9  [default: every one, or those of distill]",
)
@options(Reading)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def calibrate(model: Path, dev: Path, exit_depths: str | None, as_json: bool, **given: Any) -> None:
    """Find when texts may leave MODEL early and still agree with its full depth, on the held-out examples in DEV.

    For a model that gives vectors, DEV is a file with a text a line. The limits go into MODEL's albertkit.json, for `--early-exit 99%`. Run it after
    `quantize`, too.
    """
    from albertkit.artifact import model_folder, read_meta
    from albertkit.runtime.calibration import calibrate as run
    from albertkit.tasks import TASKS
    from albertkit.train.train_settings import parse_integers

    place = model_folder(model)
    task = read_meta(place)[0].task
    if task in TASKS:
        examples = read_files(task, {"dev": dev}, of(Reading, given))["dev"]
    else:
        from albertkit.cli.entry_point import read_texts

        examples = list(read_texts((), dev))
    found = run(place, examples, parse_integers("exit_depths", exit_depths) if exit_depths else None)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    else:
        promises(found)


def read_exit(model: Path) -> ExitCalibration | None:
    """What a model's folder says about leaving early."""
    from albertkit.artifact import model_folder, read_meta
    from albertkit.runtime.calibration import ExitCalibration

    stored = read_meta(model_folder(model))[0].details.get("early_exit")
    return None if stored is None else ExitCalibration.from_dict(stored)


def promises(found: ExitCalibration) -> None:
    """A line for each share of agreement that can be promised."""
    click.echo(f"{found.texts:,} held-out texts, compared with depth {found.depth}; {found.about}")
    for share in SHARES:
        risk = found.risk(share)
        if risk is None:
            click.echo(f"  --early-exit {share:.1%}  cannot be promised: too few texts, or too few agree")
            continue
        depth = next(mean for r, _, mean in found.risks if r == risk)
        click.echo(f"  --early-exit {share:.1%}  {depth:.2f} layers a text, {found.depth / depth:.2f} times fewer")


VERBS = (elastic, calibrate)
