"""The verbs of search: index, search, cluster. As in `cli/entry_point.py`: arguments → calls → printed results, imports when they run."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.search.index import Embedder

model_option = click.option(
    "-m",
    "--model",
    type=str,
    help="Model that makes the vectors, a folder or a name  [default: the built-in English model]",
)
path = click.Path(path_type=Path)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")
known_model = click.option(
    "-m",
    "--model",
    type=str,
    help="Model, a folder or a name  [default: the one the index was made with, else the built-in English model]",
)


@click.command(epilog="Example:  albertkit index notes/ faq.jsonl --field question -o notes.idx")
@click.argument("files", nargs=-1, type=path)
@click.option("-o", "--output", type=path, required=True, help="The index: a new file, or one that is added to.")
@known_model
@click.option("--field", help="Read every file as JSONL and index this field  [default for .jsonl: text]")
@click.option("--id-field", help="JSONL field that names a record  [default: file:line]")
@click.option("--split", default="lines", show_default=True, help="What one record is: lines, paragraphs or file.")
@click.option("--delete", multiple=True, help="Delete this id, or all records of this file. May be repeated.")
@click.option("--keep", is_flag=True, help="Keep records of FILES that are no longer in them.")
@click.option("--batch", default=512, show_default=True, type=click.IntRange(1, 100_000), help="Records a transaction.")
@click.option("--force", is_flag=True, help="Start a new index in place of the one that is there.")
@as_json
def index(
    files: tuple[Path, ...],
    output: Path,
    model: str | None,
    field: str | None,
    id_field: str | None,
    split: str,
    delete: tuple[str, ...],
    keep: bool,
    batch: int,
    force: bool,
    as_json: bool,
) -> None:
    """Index FILES for search: lines or paragraphs of text files, fields of JSONL files, folders of both.

    Run it again after FILES changed: only new and changed texts are embedded, and what left a file leaves the index.
    Stopped or killed, the same command goes on where it was.
    """
    from albertkit.search.index import Index, records_from

    if not files and not delete:
        raise AlbertkitError("no file was given; name files or folders to index, or ids to --delete")
    for file in files:
        if not file.exists():
            raise AlbertkitError(f"{file} does not exist; name files or folders to index")
    there = output.exists() and not force
    embedder = open_embedder(model, output if there else None) if files else None
    if embedder is None or there:
        held = Index.open(output, embedder)
    else:
        held = Index.create(output, embedder, overwrite=force, place=place_of(model))
    with held:
        gone = sum(held.delete([name]) or held.delete_source(name) for name in delete)
        changed = 0
        if files:
            with progress("index", "texts") as step:
                changed = held.add(records_from(files, field, split, id_field), batch=batch, progress=step)
            gone += 0 if keep else held.delete_unseen(files)
        total = len(held)
    if as_json:
        click.echo(json.dumps({"index": str(output), "changed": changed, "deleted": gone, "total": total}))
    else:
        click.echo(f"{output}: {total:,} texts, {changed:,} new or changed, {gone:,} deleted")


@click.command(epilog='Example:  albertkit search notes.idx "how do I get my money back?"')
@click.argument("index", type=path)
@click.argument("queries", nargs=-1)
@known_model
@click.option("-k", "count", default=10, show_default=True, help="Results for each query.")
@click.option("--mode", default="hybrid", show_default=True, help="vector (by meaning), keyword (by words) or hybrid.")
@as_json
def search(index: Path, queries: tuple[str, ...], model: str | None, count: int, mode: str, as_json: bool) -> None:
    """Find the texts of INDEX that fit QUERIES best, by meaning and by words.

    Without QUERIES, each line of stdin is one. Keyword search needs no model.
    """
    from albertkit.cli.entry_point import read_texts
    from albertkit.search.index import Index

    texts = list(read_texts(queries, None))
    embedder = None if mode == "keyword" else open_embedder(model, index)
    with Index.open(index, embedder) as held:
        found = held.search_many(texts, count, mode)
    for query, hits in zip(texts, found, strict=True):
        if as_json:
            click.echo(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
            continue
        if len(texts) > 1:
            click.echo(click.style(query, bold=True))
        for hit in hits:
            click.echo(f"{hit.score:7.4f}  {shorten(hit.text, 90)}  {click.style(hit.id, dim=True)}")
        if not hits:
            click.echo("nothing was found", err=True)


@click.command(epilog="Example:  albertkit cluster reviews.txt -k 12")
@click.argument("file", type=path)
@model_option
@click.option(
    "-k", "count", type=click.IntRange(min=1), help="Clusters  [default: the root of half the texts, up to 100]"
)
@click.option("--field", help="Read FILE as JSONL and group this field.")
@click.option("--members", default=3, show_default=True, type=click.IntRange(min=0), help="Other texts shown of each.")
@click.option("--seed", default=0, show_default=True, help="Another seed may find other groups.")
@as_json
def cluster(
    file: Path, model: str | None, count: int | None, field: str | None, members: int, seed: int, as_json: bool
) -> None:
    """Group the lines of FILE by meaning and name each group by its most central text.

    With --json there is one line for each cluster, with all its texts, the most central first.
    """
    import numpy as np

    from albertkit.search.index import cluster as group
    from albertkit.search.index import records_from

    records = list(records_from([file], field))
    if not records:
        raise AlbertkitError(f"{file} holds no text; give a file with one text a line")
    embedder = open_embedder(model)
    rows = []
    with progress("embed", "texts", len(records)) as step:
        for start in range(0, len(records), 512):
            part = [record.text for record in records[start : start + 512]]
            rows.append(embedder.embed(part))
            step(len(part))
    found = group(np.concatenate(rows), count, seed)
    for number, size in enumerate(found.sizes.tolist()):
        near = found.members(number).tolist()
        name = records[near[0]].text
        if as_json:
            texts = [{"line": records[i].line, "text": records[i].text} for i in near]
            click.echo(json.dumps({"size": size, "central": name, "texts": texts}, ensure_ascii=False))
            continue
        click.echo(f"{size:6,}  " + click.style(shorten(name, 100), bold=True))
        for i in near[1 : 1 + members]:
            click.echo(f"        {shorten(records[i].text, 100)}")


# What the verbs share --------------------------------------------------------------------------------------------


def open_embedder(model: str | Path | None, index: Path | None = None) -> Embedder:
    """The model that makes the vectors: the one named, or the one an index was made with, or the built-in one."""
    if index is not None:
        from albertkit.builtin import BUILTINS, MODELS
        from albertkit.search.index import Index

        with Index.open(index, None) as held:
            place = MODELS / held.place if held.place in BUILTINS else Path(held.place) if held.place else None
            if model is None and place is not None and not place.exists():
                gone = f"{held.model}, which is no longer at {held.place}"
                raise AlbertkitError(f"{index} was made with model {gone}; name its folder (-m)")
            model = model or place
    return load(model)


def place_of(model: str | None) -> str:
    """What an index remembers of where its model lay: a path that holds everywhere, or the name of a built-in model."""
    from albertkit.builtin import MODELS, resolve

    folder = resolve(model)
    return folder.name if folder.parent == MODELS else str(folder.absolute())


def load(model: str | Path | None) -> Embedder:
    """The one place that knows the runtime's class."""
    from albertkit.albert import Albert

    return Albert(model)


@contextlib.contextmanager
def progress(title: str, unit: str, total: int | None = None) -> Iterator[Callable[[int], object]]:
    """A bar on stderr where that is a terminal, else nothing."""
    from tqdm import tqdm

    with tqdm(desc=title, unit=f" {unit}", total=total, disable=not sys.stderr.isatty(), leave=False) as bar:
        yield bar.update


def shorten(text: str, width: int) -> str:
    """A text on one line, cut with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
