"""Search commands: index, search, cluster.

In: arguments. Out: printed results of `search/`.
"""

from __future__ import annotations

from dataclasses import replace
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
RERANKED = 50  # hits that `--rerank` ranks again
index_model_option = cli.option(
    "-m",
    "--model",
    help="Model folder or name; small-en-zh reads English and Chinese  [default: the index's model, or the built-in "
    "English model]",
)


@cli.command("albertkit index notes/ faq.jsonl --text-column question -o notes.idx")
@cli.path_argument("files", nargs=-1)
@cli.option(
    "-o",
    "--output",
    required=True,
    type=cli.IndexType(),
    help="The index, new or to update: a file, or a table in pgvector://USER@HOST/DATABASE?table=NAME, "
    "lancedb://FOLDER?table=NAME or qdrant://HOST:PORT?table=NAME.",
)
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
    output: Path | str,
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
    is_update = not force and Index.exists(output)
    embedder = open_embedder(model, output if is_update else None) if files else None
    if embedder is None or is_update:
        opened = Index.open(output, embedder)
    elif force:
        opened = Index.create(output, embedder, overwrite=True, model_path=stored_model_path(model))
    else:
        opened = Index.open_or_create(output, embedder, model_path=stored_model_path(model))
    with opened:
        deleted = sum(opened.delete([name]) or opened.delete_source(name) for name in delete)
        changed = 0
        if files:
            records = records_from(files, options["text_column"], options["split"], options["id_column"])
            try:
                changed = opened.add(track_progress(records, "texts"), max_unknown=options["max_unknown"])
                if opened.is_new and not changed:
                    raise AlbertkitError("The files contain no texts. Name files with texts to index.")
            except AlbertkitError:
                if opened.is_new and not len(opened):
                    opened.drop()  # another model can then create it
                raise
            deleted += 0 if options["keep"] else opened.delete_unseen(files)
        total = len(opened)
    print_result(
        as_json,
        {"index": str(opened.path), "changed": changed, "deleted": deleted, "total": total},
        f"{opened.path}: {total:,} texts, {changed:,} new or changed, {deleted:,} deleted",
    )


@cli.command('albertkit search notes.idx "how do I get my money back?"')
@click.argument("index", type=cli.IndexType())
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
@cli.option("--exact", is_flag=True, help="Compute the cosine of every text, not only of the likely ones.")
@cli.option("--rerank", type=click.Choice(["maxsim"]), help="Rank the 50 best again by the vectors of their tokens.")
@cli.json_option
def search(
    index: Path | str,
    texts: cli.TextInput,
    model: str | None,
    k: int,
    mode: str,
    as_json: bool,
    **options: cli.OptionValue,
) -> None:
    """Search INDEX for TEXTS, or for each line of --file or stdin, by meaning and by keywords.

    INDEX is a file, or the address of a table in a vector store.

    Each result shows the cosine similarity with the query, what matched (meaning, words or both) and the text. Keyword
    search needs no model and shows the BM25 score instead.

    A text without words of the query is a result only if its cosine is above --min-score. By default, the cosine must
    be higher than nonsense reaches with this model and this text.
    """
    from albertkit.search.index import Index

    queries, is_reranked = list(texts.rows()), options["rerank"] is not None
    if is_reranked and mode == "keyword":
        raise AlbertkitError("--rerank is not available with --mode keyword, whose hits have no cosine. Omit one.")
    embedder = None if mode == "keyword" else open_embedder(model, index)
    limit = max(k, RERANKED) if is_reranked else k
    with Index.open(index, embedder) as opened:
        results = opened.search_results(queries, limit, mode, min_score=options["min_score"], exact=options["exact"])
    if is_reranked:
        results = [rerank(embedder, *pair, k) for pair in zip(queries, results, strict=True)]
    for query, result in zip(queries, results, strict=True):
        title = [style(query, bold=True)] if len(queries) > 1 else []
        lines = [
            f"{hit.score:6.3f}  {hit.matched:8}  {shorten(hit.text, 90)}  {style(hit.id, dim=True)}"
            for hit in result.hits
        ]
        print_result(as_json, {"query": query, **to_json(result)}, *title, *lines)
        if not as_json and (not result.hits or (result.left_out and len(result.hits) < k)):
            echo_line(describe_left_out(result))


def rerank(embedder: Embedder | None, query: str, result: SearchResult, k: int) -> SearchResult:
    """The k best hits by cosine plus MaxSim."""
    from albertkit.albert import Albert
    from albertkit.search.late_interaction import rerank_hits

    if not isinstance(embedder, Albert):
        raise AlbertkitError("--rerank is not available in the shared space: it needs one model. Omit it.")
    return replace(result, hits=rerank_hits(embedder, query, result.hits)[:k])


def describe_left_out(result: SearchResult) -> str:
    """Whether there are texts below the limit, and how to see them."""
    subject, texts = ("no further results", "other texts") if result.hits else ("no results", "the texts")
    if not result.left_out:
        return subject
    return f"{subject}: {texts} are not similar enough to the query. Show all with  --min-score -1"


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

    from albertkit.runtime.embed import report_untrained_vectors
    from albertkit.search.cluster import cluster as cluster_vectors
    from albertkit.search.index_records import records_from

    records = list(records_from([file], text_column))
    if not records:
        raise AlbertkitError(f"{file} contains no text. Name a file with one text per line.")
    embedder = open_embedder(model)
    report_untrained_vectors(embedder)
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


def open_embedder(model: str | Path | None, index: Path | str | None = None) -> Embedder:
    """The model of the vectors, at the depth of the index: `model`, else the index's model, else the built-in model."""
    from albertkit.albert import Albert
    from albertkit.builtin import is_shared_space
    from albertkit.runtime.runtime_model import named_depth
    from albertkit.search.shared_space import SharedSpace

    depth, name = None, ""
    if index is not None:
        from albertkit.builtin import BUILTINS, MODELS, SHARED_SPACE
        from albertkit.search.index import Index

        with Index.open(index, None) as opened:
            name, depth = opened.model, named_depth(opened.model)
            if model is None and opened.model.startswith(f"{SHARED_SPACE}+"):
                return SharedSpace(depth=depth)
            path = opened.model_path
            folder = MODELS / path if path in BUILTINS else Path(path) if path else None
            if model is None and folder is not None and not folder.exists():
                raise AlbertkitError(
                    f"{opened.path} was made with model {opened.model}, which is no longer at {path}. "
                    "Name its folder with -m."
                )
            model = model or folder
    if is_shared_space(model):
        return SharedSpace(depth=depth)
    albert = Albert(model)
    return Albert(model, depth=depth) if depth and albert.name != name == albert.name_at(depth) else albert


def stored_model_path(model: str | None) -> str:
    """The path of the model that is stored in an index: an absolute path, or the name of a built-in model."""
    from albertkit.builtin import MODELS, is_shared_space, resolve

    if is_shared_space(model):
        return str(model)
    folder = resolve(model)
    return folder.name if folder.parent == MODELS else str(folder.absolute())
