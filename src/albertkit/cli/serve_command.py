"""The verb `serve`. As in `cli/entry_point.py`: arguments → calls → printed results, imports when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from albertkit.cli.pretrain_commands import of, options
from albertkit.errors import need
from albertkit.serve.serve_settings import PREFIX, ServeSettings


@click.command(epilog="Example:  albertkit serve sentiment=runs/sentiment my-albert --port 8080")
@click.argument("folders", nargs=-1, envvar=f"{PREFIX}MODELS")
@click.option(
    "--index", "indexes", multiple=True, type=click.Path(path_type=Path), help="Serve this index at /search. May be repeated."
)  # fmt: skip
@options(ServeSettings, environment=PREFIX)
def serve(folders: tuple[str, ...], indexes: tuple[Path, ...], **given: Any) -> None:
    """Serve the models in FOLDERS, or the built-in one, over HTTP.

    A folder may be given a name: NAME=FOLDER. OpenAI's and text-embeddings-inference's clients work; /docs shows every
    endpoint, / is a page to try them. Every option is also a variable ALBERTKIT_SERVE_OPTION, and FOLDERS
    ALBERTKIT_SERVE_MODELS; API keys come from ALBERTKIT_SERVE_KEYS or --keys-file. SIGHUP opens models again that have
    changed on disk; SIGTERM finishes what was begun.
    """
    for module in ("httptools", "msgspec", "orjson", "starlette", "uvicorn"):
        need(module, "serve", "serving")
    from albertkit.serve import server as run

    settings: ServeSettings = of(ServeSettings, given)
    plan = run.Plan(list(folders), settings, list(indexes))
    run.serve(plan, told=lambda address: click.echo(f"serving on {address}"))
