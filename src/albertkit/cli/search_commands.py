"""Search commands: index, search, cluster.

In: arguments. Out: printed results of `search/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from albertkit.cli import arguments as cli
from albertkit.cli.console import echo_line, print_result, shorten, style, to_json, track_progress
from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.search.index import Embedder
    from albertkit.search.index_records import SearchResult

EMBED_BATCH = 512
index_model_option = cli.option(
    "-m",
    "--model",
    help="Model folder or name; small-en-zh reads English and Chinese  [default: the index's model, or the built-in "
    "English model]",
)


@cli.command("albertkit index notes/ faq.jsonl --text-column question -o notes.idx")
@cli.path_argument("files", nargs=-1)
@cli.path_option("-o", "--output", required=True, help="The index: a new file, or one to update.")
@index_model_option
@cli.text_column_option
@cli.option("--id-column", help="Column or JSON field with the id of a record  [default: file:line]")
@cli.option(
    "--split",
    type=click.Choice(["lines", "paragraphs", "file"]),
    default="lines",
    help="Unit of a record in a text file.",
)
@cli.option("--delete", multiple=True, help="Delete this id, or all records of this file. Repeatable.")
@cli.option("--max-unknown", default=0.1, help="Largest share of texts that the model cannot read; 1 accepts all.")
@cli.option("--keep", is_flag=True, help="Keep records that FILES no longer contain.")
@cli.force_option
@cli.json_option
def index(
    files: tuple[Path, ...],
    output: Path,
    model: str | None,
    delete: tuple[str, ...],
    force: bool,
    as_json: bool,
    **options: cli.OptionValue,
) -> None:
    """Index FILES for search: lines or paragraphs of text files, rows of tables and JSONL files, or folders of these.

    Rerun the command after FILES changed. It embeds only new and changed texts, and deletes records that FILES no
    longer contain. If the command is interrupted, rerun it to resume.
    """
    from albertkit.search.index import Index
    from albertkit.search.index_records import records_from

    if not files and not delete:
        raise AlbertkitError("No file was passed. Name files or folders to index, or ids to --delete.")
    for file in files:
        if not file.exists():
            raise AlbertkitError(f"{file} does not exist. Name existing files or folders to index.")
    is_update = output.exists() and not force
    embedder = open_embedder(model, output if is_update else None) if files else None
    if embedder is None or is_update:
        opened = Index.open(output, embedder)
    elif force:
        opened = Index.create(output, embedder, overwrite=True, place=model_place(model))
    else:
        opened = Index.open_or_create(output, embedder, place=model_place(model))
    with opened:
        deleted = sum(opened.delete([name]) or opened.delete_source(name) for name in delete)
        changed = 0
        if files:
            records = records_from(files, options["text_column"], options["split"], options["id_column"])
            try:
                changed = opened.add(track_progress(records, "texts"), max_unknown=options["max_unknown"])
            except AlbertkitError:
                if opened.is_new and not len(opened):
                    output.unlink(missing_ok=True)  # another model can then create it
                raise
            deleted += 0 if options["keep"] else opened.delete_unseen(files)
        total = len(opened)
    print_result(
        as_json,
        {"index": str(output), "changed": changed, "deleted": deleted, "total": total},
        f"{output}: {total:,} texts, {changed:,} new or changed, {deleted:,} deleted",
    )


@cli.command('albertkit search notes.idx "how do I get my money back?"')
@cli.path_argument("index")
@cli.text_input
@index_model_option
@cli.option("-k", default=10, type=click.IntRange(1, 10_000), help="Results per query.")
@cli.option(
    "--mode",
    type=click.Choice(["hybrid", "vector", "keyword"]),
    default="hybrid",
    help="Search by meaning, by keywords, or both.",
)
@cli.option(
    "--min-score",
    type=click.FloatRange(-1, 1),
    help="Lowest cosine of a result by meaning; -1 shows all  [default: what nonsense does not reach]",
)
@cli.json_option
def search(
    index: Path,
    texts: cli.TextInput,
    model: str | None,
    k: int,
    mode: str,
    min_score: float | None,
    as_json: bool,
) -> None:
    """Search INDEX for TEXTS, or for each line of --file or stdin, by meaning and by keywords.

    Each result shows the cosine similarity with the query, what matched (meaning, words or both) and the text. Keyword
    search needs no model and shows the BM25 score instead.

    A text without words of the query is a result only if its cosine is above --min-score. By default, the cosine must
    be higher than nonsense reaches with this model and this text.
    """
    from albertkit.search.index import Index

    queries = list(texts)
    embedder = None if mode == "keyword" else open_embedder(model, index)
    with Index.open(index, embedder) as opened:
        results = opened.search_results(queries, k, mode, min_score=min_score)
    for query, result in zip(queries, results, strict=True):
        title = [style(query, bold=True)] if len(queries) > 1 else []
        lines = [
            f"{hit.score:6.3f}  {hit.matched:8}  {shorten(hit.text, 90)}  {style(hit.id, dim=True)}"
            for hit in result.hits
        ]
        print_result(as_json, {"query": query, **to_json(result)}, *title, *lines)
        if not as_json and (result.left_out or not result.hits):
            echo_line(describe_left_out(result))


def describe_left_out(result: SearchResult) -> str:
    """The number of texts below the limit, and how to see them."""
    found = "no further results" if result.hits else "no results"
    if not result.left_out:
        return found
    texts = "1 text is" if result.left_out == 1 else f"{result.left_out:,} texts are"
    return f"{found}: {texts} not similar enough to the query. Show all with  --min-score -1"


@cli.command("albertkit cluster reviews.txt -k 12")
@cli.path_argument("file")
@cli.option("-m", "--model", help=f"Model folder or name.  {cli.DEFAULT_MODEL}")
@cli.option("-k", type=click.IntRange(min=1), help="Number of clusters  [default: sqrt(texts / 2), up to 100]")
@cli.text_column_option
@cli.option("--members", default=3, type=click.IntRange(min=0), help="Other texts shown per cluster.")
@cli.advanced_option("--seed", default=0, help="Random seed of the initial centroids.")
@cli.json_option
def cluster(
    file: Path, model: str | None, k: int | None, text_column: str | None, members: int, seed: int, as_json: bool
) -> None:
    """Group the texts of FILE by meaning and name each cluster by its most central text.

    With --json, print one line per cluster with all its texts, the most central first.
    """
    import numpy as np

    from albertkit.search.cluster import cluster as cluster_vectors
    from albertkit.search.index_records import records_from

    records = list(records_from([file], text_column))
    if not records:
        raise AlbertkitError(f"{file} contains no text. Name a file with one text per line.")
    embedder = open_embedder(model)
    vectors = []
    for start in track_progress(range(0, len(records), EMBED_BATCH), "batches"):
        vectors.append(embedder.embed([record.text for record in records[start : start + EMBED_BATCH]]))
    clusters = cluster_vectors(np.concatenate(vectors), k, seed)
    for number, size in enumerate(clusters.sizes.tolist()):
        nearest = [records[i] for i in clusters.members(number).tolist()]
        texts = [{"line": record.line, "text": record.text} for record in nearest]
        title = f"{size:6,}  " + style(shorten(nearest[0].text, 100), bold=True)
        others = (f"        {shorten(record.text, 100)}" for record in nearest[1 : 1 + members])
        print_result(as_json, {"size": size, "central": nearest[0].text, "texts": texts}, title, *others)


def open_embedder(model: str | Path | None, index: Path | None = None) -> Embedder:
    """The model that computes the vectors: `model`, else the index's model, else the built-in model."""
    from albertkit.albert import Albert
    from albertkit.search.shared_space import SHARED_SPACE, SharedSpace

    if index is not None:
        from albertkit.builtin import BUILTINS, MODELS
        from albertkit.search.index import Index

        with Index.open(index, None) as opened:
            if model is None and opened.model.startswith(f"{SHARED_SPACE}+"):
                return SharedSpace()
            place = MODELS / opened.place if opened.place in BUILTINS else Path(opened.place) if opened.place else None
            if model is None and place is not None and not place.exists():
                raise AlbertkitError(
                    f"{index} was made with model {opened.model}, which is no longer at {opened.place}. "
                    "Name its folder with -m."
                )
            model = model or place
    return SharedSpace() if is_shared_space(model) else Albert(model)


def is_shared_space(model: str | Path | None) -> bool:
    """Whether both built-in models are meant; an existing folder of this name goes first."""
    from albertkit.search.shared_space import SHARED_SPACE

    return model == SHARED_SPACE and not Path(SHARED_SPACE).exists()


def model_place(model: str | None) -> str:
    """The place of the model that is stored in an index: an absolute path, or the name of a built-in model."""
    from albertkit.builtin import MODELS, resolve

    if is_shared_space(model):
        return str(model)
    folder = resolve(model)
    return folder.name if folder.parent == MODELS else str(folder.absolute())
