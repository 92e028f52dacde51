"""The files with which the page computes in the browser: albertkit.js, onnxruntime-web, and the served models.

In: requests of the page's switch "run in this browser". Out: the files that `albertkit export --web` would write, made
in memory when they are first requested. A model's files require the API key, as its endpoints do. Next: `app.py`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from functools import lru_cache
from pathlib import Path

from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from albertkit.albert import Albert
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_stored
from albertkit.interop.web_export import (
    RUNTIME_FOLDER,
    WEB,
    check_supported,
    quantize_to_int8,
    runtime_files,
    write_model,
)
from albertkit.serve.inference import RequestContext
from albertkit.serve.schemas import HttpError

PAGE_FILES = ("index.html", "demo.js", "demo.css", "service-worker.js")


async def model_file(context: RequestContext, body: None, name: str) -> Response:
    """A file of a served model for browsers, as albertkit export --web writes it: MODEL/model.json names the others."""
    model, _, file = name.rpartition("/")
    files = await asyncio.to_thread(exported_files, context.service.models[model].albert)
    if file not in files:
        raise HttpError(404, f"file {file[:100]!r} is unknown; choose one of {', '.join(files)}")
    return Response(files[file], media_type="application/octet-stream")


@lru_cache(maxsize=4)  # several MB each
def exported_files(albert: Albert) -> dict[str, bytes]:
    """The files of a model for browsers by name."""
    stored = open_stored(albert.source)
    if not albert.name.startswith(stored.identity[:16]):
        raise HttpError(
            409,
            f"the files of {albert.source} have changed since the server opened the model; a browser must compute with "
            "the same model. Reload the server (POST /admin/reload, or the signal SIGHUP).",
        )
    check_supported(stored)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(folder, quantize_to_int8(stored), albert.name)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


class ScriptFiles(StaticFiles):
    """The files of `web/` without its demo page, whose service worker would keep files beyond the next upgrade."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """The file of a path; None if there is none."""
        return ("", None) if Path(path).name.lower() in PAGE_FILES else super().lookup_path(path)


def script_routes() -> list[BaseRoute]:
    """albertkit.js and the files of onnxruntime-web, where it is installed."""
    try:
        runtime = runtime_files()
    except AlbertkitError:
        runtime = []  # the page says how to install it
    types = {".mjs": "text/javascript", ".wasm": "application/wasm"}

    def file_route(path: Path) -> Route:
        async def respond(request: object) -> Response:
            return FileResponse(path, media_type=types[path.suffix])

        return Route(f"/web/{RUNTIME_FOLDER}/{path.name}", respond, methods=["GET"])

    return [*map(file_route, runtime), Mount("/web", ScriptFiles(directory=WEB))]
