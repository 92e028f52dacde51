"""Write what is generated in docs/: run by `make docs`, checked by a test.

`PAGES` are whole files: the command line, the Python API, the files of the built-in models. `TABLES` are tables inside
pages that are written by hand: a page contains `<!-- table: NAME -->` and `<!-- /table -->`, and the text between them is
replaced by what the function NAME returns. The functions are in `docs/tables/`, one module per page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from albertkit.builtin import BUILTINS

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import api_page
import benchmarks_page
import cli_page
from tables import artifact, benchmarks, compression, data_size, elastic, http_api, ideas, models, stores, tasks, web

DOCS = Path(__file__).parent
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- /table -->)", re.S)


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page.page,
    "reference/api.md": api_page.page,
    **{f"../src/albertkit/models/{name}/albertkit.json": partial(models.meta_text, name) for name in BUILTINS},
    **{f"../src/albertkit/models/{name}/README.md": partial(models.card, name) for name in BUILTINS},
}
TABLES: dict[str, Callable[[], str]] = {
    **artifact.TABLES,
    **benchmarks.TABLES,
    **models.TABLES,
    **tasks.TABLES,
    **data_size.TABLES,
    **compression.TABLES,
    **elastic.TABLES,
    **ideas.TABLES,
    **http_api.TABLES,
    **web.TABLES,
    **stores.TABLES,
}


def fill(text: str) -> str:
    """A page with its tables as they are now. A name that is not in `TABLES` is an error."""
    return MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", text)


def marked_pages() -> list[Path]:
    """The pages that contain a table."""
    return [path for path in sorted(DOCS.rglob("*.md")) if MARKED.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    report = benchmarks_page.load()
    elastic.picture()
    if report is not None:
        benchmarks_page.picture(report)
        for name in benchmarks_page.README_WORDS:
            readme = DOCS.parent / name
            text = readme.read_text(encoding="utf-8")
            readme.write_text(benchmarks_page.readme(text, report, name), encoding="utf-8")
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
    for path in marked_pages():
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path in [*(DOCS / name for name in PAGES), *marked_pages()]:
        print(path.resolve().relative_to(DOCS.parent.resolve()))


if __name__ == "__main__":
    main()
