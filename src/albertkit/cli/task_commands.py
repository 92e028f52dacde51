"""The verbs of the tasks: `finetune` and `evaluate`, and those that use a fine-tuned model.

In: arguments. Out: calls into `train/finetune.py` and `albert.py`, printed. With `cli/entry_point.py` and its other parts, the only
files that print.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from albertkit.cli.bulk_options import bulk_options, run_bulk
from albertkit.cli.pretrain_commands import of, options
from albertkit.errors import AlbertkitError, need
from albertkit.settings import setting
from albertkit.train.train_settings import FinetuneSettings

if TYPE_CHECKING:
    from albertkit.albert import Albert
    from albertkit.tasks.examples import DialogueTurn

folder = click.Path(path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
depth = click.option("--depth", type=click.IntRange(1, 1024), help="Layers to apply  [default: the model's]")
leave = click.option(
    "--early-exit",
    help="Leave early: 99% agrees with the full depth on 99 % of texts (see calibrate); or entropy:0.1, patience:2.",
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read labelled files; the same fields as `tasks.files.ReadOptions`."""

    text_column: str | None = setting(None, "Column of the text: its name, or its number from 1.")
    pair_column: str | None = setting(None, "Column of the second text.")
    label_column: str | None = setting(None, "Column of the label.")
    header: str = setting("auto", "Whether the first row names the columns: auto, yes, no.")
    format: str = setting("auto", "csv, tsv, jsonl, json, parquet or columns.")
    separator: str | None = setting(None, "What stands between several labels of one text, such as |.")
    kind: str = setting("auto", "What labels are: single, multi, regression.")
    split: str | None = setting(None, "Part of a file that holds several: train, dev, test.")
    skip_bad: bool = setting(False, "Pass over bad rows and count them, instead of stopping.")


@dataclasses.dataclass(frozen=True)
class Details:
    """What only some tasks know; None leaves it to the task."""

    loss: str | None = setting(
        None,
        "match: cosent (scores or classes), contrastive (classes) or mnrl (pairs that belong together)"
        "  [default: cosent, or mnrl without labels].",
    )
    stride: int | None = setting(None, "answer: tokens that two windows of a long context share  [default: 128].")
    n_best: int | None = setting(None, "answer: answers kept for each question  [default: 20].")

    def settings(self, task: str) -> dict[str, Any]:
        """Those that were given, if the task knows them."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        odd = next((name for name in given if task != ("match" if name == "loss" else "answer")), None)
        if odd:
            raise AlbertkitError(f"--{odd.replace('_', '-')} means nothing to {task}; leave it away")
        return given


def read_files(task: str, paths: dict[str, Path], reading: Reading) -> dict[str, list[Any]]:
    """The examples of each file; notes go to stderr."""
    from albertkit.tasks.readers.read_examples import ReadOptions
    from albertkit.train.finetune import examples_of

    return examples_of(task, paths, ReadOptions(**dataclasses.asdict(reading)), lambda text: click.echo(text, err=True))


@click.command(epilog="Example:  albertkit finetune classify train.tsv --dev dev.tsv -o sentiment")
@click.argument(
    "task", type=click.Choice(["classify", "tag", "answer", "choose", "match", "intent", "dialogue", "generate"])
)
@click.argument("train", type=folder)
@click.option("--dev", type=folder, help="Held-out examples; without, one in ten of TRAIN.")
@click.option("-o", "--out", type=folder, required=True, help="Folder for runs, report and model.")
@click.option(
    "--start", type=folder, help="Model to start from, a folder or a name  [default: a built-in English model]"
)
@options(FinetuneSettings, Details, Reading)
def finetune(task: str, train: Path, dev: Path | None, out: Path, start: Path | None, **given: Any) -> None:
    """Teach a model a TASK from the examples in TRAIN.

    \b
    classify   texts or pairs with classes, several classes, or numbers (csv, tsv, jsonl, parquet)
    tag        words with labels (CoNLL columns, CLUENER, jsonl)
    answer     SQuAD and CMRC questions
    choose     RACE questions
    match      pairs with scores or classes, or pairs alone, to vectors for search
    intent     intents and slots (ATIS and SNIPS folders), or intents alone (CLINC150, tables)
    dialogue   WOZ turns, to the state after each
    generate   a source and what to write from it (csv, tsv, jsonl, parquet with columns source, target)

    --out then holds model/, report.md and runs/. The same command goes on where it was stopped.
    """
    opts, reading = of(FinetuneSettings, given), of(Reading, given)
    settings = of(Details, given).settings(task)
    from albertkit.train.finetune import learn, need_for

    need_for(opts)
    from tqdm import tqdm

    data = read_files(task, {"train": train, **({"dev": dev} if dev else {})}, reading)
    log = partial(tqdm.write, file=sys.stderr)
    done = learn(task, data, out, start, opts, log, progress_bar=True, **settings)
    click.echo(json.dumps({"model": str(done.model), **done.metrics}))


@click.command(epilog="Example:  albertkit evaluate sentiment test.tsv")
@click.argument("model", type=folder)
@click.argument("test", type=folder)
@click.option("--bits", type=click.Choice(["8", "4"]), help="Quantise on opening.")
@depth
@leave
@options(Reading)
@as_json
def evaluate(
    model: Path, test: Path, bits: str | None, depth: int | None, early_exit: str | None, as_json: bool, **given: Any
) -> None:
    """Measure a fine-tuned MODEL on the examples in TEST, on the torch-free runtime."""
    from albertkit.albert import Albert
    from albertkit.runtime.predict import predict

    albert = Albert(model, bits=int(bits) if bits else None)
    task = albert.meta.task
    from albertkit.tasks import TASKS
    from albertkit.tasks.readers.read_examples import check_known_labels

    if task not in TASKS:
        raise AlbertkitError(f"{model} was made for {task!r}; fine-tune it for a task before it is evaluated")
    if task == "generate":  # before the work, not after it
        need("rouge_score", "generate", "measuring written texts")
        need("sacrebleu", "generate", "measuring written texts")
    reading = of(Reading, given)
    if task == "classify" and reading.kind == "auto" and reading.separator is None:
        reading = dataclasses.replace(reading, kind=albert.task.kind)
    examples = read_files(task, {"test": test}, reading)["test"]
    for text in check_known_labels(albert.task, examples):
        click.echo(text, err=True)
    results = predict(albert, examples, task, depth, early_exit)
    metrics = albert.task.measure(results, examples)
    if early_exit is not None and results:
        metrics["mean_depth"] = sum(result.depth for result in results) / len(results)
        metrics["times_fewer_layers"] = (depth or albert.depth) / metrics["mean_depth"]
    if as_json:
        click.echo(json.dumps({"examples": len(examples), **metrics}))
        return
    click.echo(f"{len(examples):,} examples")
    for name, value in metrics.items():
        click.echo(f"  {name:24} {value:.4f}")
    tell(albert, (), depth, early_exit)


def plain(result: Any) -> Any:
    """A result as JSON."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        found = {k: plain(v) for k, v in dataclasses.asdict(result).items()}
        depth = getattr(result, "depth", None)
        return found if depth is None else {**found, "depth": depth}
    if isinstance(result, tuple | list):
        return [plain(v) for v in result]
    if isinstance(result, frozenset):
        return sorted(result)
    if isinstance(result, dict):
        return {k: plain(v) for k, v in result.items()}
    return result


def lines(texts: Iterable[str]) -> list[str]:
    """The texts given, or each line of stdin."""
    from albertkit.cli.entry_point import read_lines

    return list(texts) or list(read_lines(None))


@click.command(epilog="Example:  albertkit classify sentiment 'what a lovely film'")
@click.argument("model", type=folder)
@click.argument("texts", nargs=-1)
@click.option("--pair", help="The second text of each pair.")
@depth
@leave
@as_json
@bulk_options
def classify(
    model: Path,
    texts: tuple[str, ...],
    pair: str | None,
    depth: int | None,
    early_exit: str | None,
    as_json: bool,
    **bulk: Any,
) -> None:
    """Say what class TEXTS (or the lines of stdin) have, with the probability.

    With --engine, many files in several processes:  albertkit classify sentiment --engine local 'texts/*.jsonl' --out labels
    """
    from albertkit.albert import Albert

    if run_bulk("classify", texts, model, {"pair": pair, "depth": depth, "early_exit": early_exit}, bulk):
        return
    given = lines(texts)
    albert = Albert(model)
    results = albert.classify(given, [pair] * len(given) if pair else None, depth=depth, early_exit=early_exit)
    for text, found in zip(given, results, strict=True):
        if as_json:
            click.echo(json.dumps({"text": text, **plain(found)}, ensure_ascii=False))
        else:
            label = ", ".join(found.label) if isinstance(found.label, tuple) else found.label
            shown = f"{label:.4f}" if isinstance(label, float) else f"{label}\t{found.probability:.1%}"
            click.echo(f"{shown}\t{text}")
    tell(albert, results, depth, early_exit)


@click.command(epilog="Example:  albertkit tag ner 'Angela Merkel visited Paris.'")
@click.argument("model", type=folder)
@click.argument("texts", nargs=-1)
@depth
@leave
@as_json
@bulk_options
def tag(
    model: Path, texts: tuple[str, ...], depth: int | None, early_exit: str | None, as_json: bool, **bulk: Any
) -> None:
    """Find the entities in TEXTS (or the lines of stdin).

    With --engine, many files in several processes:  albertkit tag ner --engine local 'texts/*.jsonl' --out entities
    """
    from albertkit.albert import Albert

    if run_bulk("tag", texts, model, {"depth": depth, "early_exit": early_exit}, bulk):
        return
    given = lines(texts)
    albert = Albert(model)
    results = albert.tag(given, depth=depth, early_exit=early_exit)
    for text, found in zip(given, results, strict=True):
        if as_json:
            click.echo(json.dumps(plain(found), ensure_ascii=False))
        else:
            for span in found.spans:
                click.echo(f"{span.label}\t{text[span.start : span.end]}\t{span.start}:{span.end}\t{span.score:.1%}")
    tell(albert, results, depth, early_exit)


@click.command(epilog="Example:  albertkit intent atis 'flights from boston to denver on monday'")
@click.argument("model", type=folder)
@click.argument("texts", nargs=-1)
@depth
@leave
@as_json
def intent(model: Path, texts: tuple[str, ...], depth: int | None, early_exit: str | None, as_json: bool) -> None:
    """Say what TEXTS (or the lines of stdin) ask for, and the slots they fill."""
    from albertkit.albert import Albert

    given = lines(texts)
    albert = Albert(model)
    results = albert.understand(given, depth=depth, early_exit=early_exit)
    for text, found in zip(given, results, strict=True):
        if as_json:
            click.echo(json.dumps({"text": text, **plain(found)}, ensure_ascii=False))
        else:
            slots = ", ".join(f"{s.label}={text[s.start : s.end]}" for s in found.spans)
            click.echo(f"{found.intent}\t{found.probability:.1%}\t{slots}")
    tell(albert, results, depth, early_exit)


@click.command(epilog="Example:  albertkit track restaurants 'a cheap place' 'thai food, please'")
@click.argument("model", type=folder)
@click.argument("texts", nargs=-1)
@click.option("-f", "--file", type=folder, help="File with a turn a line.")
@depth
@leave
@as_json
def track(
    model: Path, texts: tuple[str, ...], file: Path | None, depth: int | None, early_exit: str | None, as_json: bool
) -> None:
    """Say what a user wants after each turn of a dialogue.

    TEXTS (or the lines of --file or of stdin) are what the user says, in order; with a tab between, what the system said before it, and what the
    user says. An empty line begins a new dialogue.

    \b
    printf 'a cheap place\\nwhich food?\\tthai, and the phone number\\n' | albertkit track restaurants
    price=cheap             –      a cheap place
    food=thai, price=cheap  phone  thai, and the phone number

    Each line of the answer, with tabs between, has the state so far, what this turn asks for, and the user's words. --json also
    has what this turn adds to the state.
    """
    from albertkit.albert import Albert
    from albertkit.cli.entry_point import read_lines

    if texts and file is not None:
        raise AlbertkitError("texts were given both as arguments and with --file; choose one")
    turns = list(dialogues(texts or read_lines(file)))
    albert = Albert(model)
    results = albert.track(turns, depth=depth, early_exit=early_exit)
    for place, (turn, found) in enumerate(zip(turns, results, strict=True)):
        if as_json:
            about = {"dialogue": int(turn.dialogue), "turn": turn.number, "system": turn.system, "user": turn.user}
            click.echo(json.dumps({**about, **plain(found)}, ensure_ascii=False))
            continue
        if place and not turn.number:
            click.echo()
        state = ", ".join(f"{slot}={value}" for slot, value in sorted(found.goal.items()))
        click.echo(f"{state or '–'}\t{', '.join(sorted(found.requests)) or '–'}\t{turn.user}")
    tell(albert, results, depth, early_exit)


def dialogues(given: Iterable[str]) -> Iterator[DialogueTurn]:
    """Turns from lines: what the user says, or system, tab, user; an empty line begins a new dialogue."""
    from albertkit.tasks.examples import DialogueTurn

    dialogue = number = 0
    for place, line in enumerate(given, 1):
        if not line.strip():
            dialogue, number = dialogue + (number > 0), 0
            continue
        system, tab, user = line.partition("\t")
        system, user = (system.strip(), user.strip()) if tab else ("", line.strip())
        if not user or "\t" in user:
            raise AlbertkitError(
                f"line {place} is {line!r:.60}; write what the user says, or what the system said, one tab, and what the user says"
            )
        yield DialogueTurn(str(dialogue), number, system, user)
        number += 1


def tell(albert: Albert, results: Sequence[Any], depth: int | None, early_exit: str | None) -> None:
    """On stderr: how deep texts went, where they may leave early; and whether the model was taught to say something there."""
    from albertkit.runtime.runtime_model import is_full_depth_only

    depths = [result.depth for result in results if result.depth is not None]
    if depths:
        mean, full = sum(depths) / len(depths), depth or albert.depth
        click.echo(f"{mean:.2f} layers a text on average, {full / mean:.2f} times fewer than {full}", err=True)
    shallow = depth is not None and depth != albert.depth
    if (shallow or (early_exit is not None and ":" in early_exit)) and is_full_depth_only(albert.meta.made):
        click.echo(
            "this model was fine-tuned at its full depth alone, so what it says before may be anything; make every depth good with  albertkit elastic",
            err=True,
        )


def whole(context: Path | None) -> str:
    """A file's text, or all of stdin."""
    try:
        return context.read_text("utf-8") if context else io.TextIOWrapper(sys.stdin.buffer, "utf-8").read()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{context or 'stdin'} cannot be read as text: {error}") from None


@click.command(epilog="Example:  albertkit answer qa 'Who wrote it?' --context book.txt")
@click.argument("model", type=folder)
@click.argument("question")
@click.option("--context", type=folder, help="File with the text to read; without, stdin.")
@depth
@leave
@as_json
def answer(
    model: Path, question: str, context: Path | None, depth: int | None, early_exit: str | None, as_json: bool
) -> None:
    """Answer QUESTION with words of a text of any length."""
    from albertkit.albert import Albert

    text = whole(context)
    albert = Albert(model)
    found = albert.answer(question, text, depth=depth, early_exit=early_exit)
    if as_json:
        click.echo(json.dumps(plain(found), ensure_ascii=False))
    else:
        click.echo(f"{found.text}\t{found.probability:.1%}\t{found.start}:{found.end}" if found.text else "no answer")
    tell(albert, [found], depth, early_exit)


@click.command(epilog="Example:  albertkit choose race 'What is it about?' rain sun snow --context story.txt")
@click.argument("model", type=folder)
@click.argument("question")
@click.argument("choices", nargs=-1, required=True)
@click.option("--context", type=folder, help="File with the text to read; without, stdin.")
@depth
@leave
@as_json
def choose(
    model: Path,
    question: str,
    choices: tuple[str, ...],
    context: Path | None,
    depth: int | None,
    early_exit: str | None,
    as_json: bool,
) -> None:
    """Pick the right one of CHOICES for QUESTION about a text."""
    from albertkit.albert import Albert

    text = whole(context)
    albert = Albert(model)
    found = albert.choose(text, question, choices, depth=depth, early_exit=early_exit)
    if as_json:
        click.echo(json.dumps(plain(found), ensure_ascii=False))
    else:
        for text, probability in zip(choices, found.probabilities, strict=True):
            click.echo(f"{'→' if text == found.text else ' '} {probability:.1%}\t{text}")
    tell(albert, [found], depth, early_exit)


VERBS = (finetune, evaluate, classify, tag, intent, track, answer, choose)
