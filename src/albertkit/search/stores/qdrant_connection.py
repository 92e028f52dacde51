"""Connections to Qdrant: a server, or a folder that the client reads and writes itself (its local mode).

In: a `StoreAddress`. Out: a `Connection`, and errors as sentences. Before this file: `store_address.py`; after it:
`qdrant_collection.py`. A place that begins with `/` or `.` is a folder, every other one is a server.

A folder admits one program, so all indexes of this program share one connection to it. The client stores points as
pickles, which can contain code. So `check_folder` reads them with the classes of points only, before the client does.
It does not help against a program that changes the folder at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import pickle
import re
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from albertkit.errors import AlbertkitError, check_choice, check_keys, need
from albertkit.file_io import read_json
from albertkit.search.store_address import StoreAddress

PURPOSE = "an index in Qdrant"
OLDEST = (1, 16)  # version of a server that stores metadata of collections
TIMEOUT = 60  # seconds to wait for an answer
KEY_VARIABLE = "QDRANT_API_KEY"
OPTIONS = ("https", "api_key")
POINTS_TABLE = "CREATE TABLE points (id TEXT PRIMARY KEY, point BLOB)"  # and nothing else is in a file of the client
POINTS = {("qdrant_client.http.models.models", name) for name in ("PointStruct", "SparseVector")}
MESSAGE = 300  # characters of an error of Qdrant
RERUN = "then rerun the command to resume."
REMEDIES = {  # status of a response
    401: f"Check the key: api_key in the address, or {KEY_VARIABLE}.",
    403: f"Use a key that may do this: api_key in the address, or {KEY_VARIABLE}.",
    404: "Check the host, the port and the path of the address.",
    413: "A text is too long for the server. Index by lines or paragraphs (--split).",
    429: f"Wait a while, {RERUN}",
}
_this_computer = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/|$)")
_folder = re.compile(r"[/.]|[A-Za-z]:[/\\]")


@dataclass
class Connection:
    """A client with its lock. `folder` is empty for a server."""

    client: Any
    folder: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)
    users: int = 1


_folders: dict[str, Connection] = {}
_folders_lock = threading.Lock()


def folder_of(address: StoreAddress) -> Path | None:
    """The folder of an address; None for a server.

    >>> from albertkit.search.store_address import parse_address
    >>> str(folder_of(parse_address("qdrant://./notes"))), folder_of(parse_address("qdrant://notes:6333"))
    ('notes', None)
    """
    place = address.location.partition("?")[0]
    return Path(place) if _folder.match(place) else None


def with_key(address: StoreAddress) -> StoreAddress:
    """The address with the key of the environment among its secrets, so that no message contains it."""
    key = os.environ.get(KEY_VARIABLE, "")
    return replace(address, secrets=(*address.secrets, key)) if key else address


def connect(address: StoreAddress) -> Connection:
    """A connection to the server or to the folder of an address."""
    qdrant = need("qdrant_client", "qdrant", PURPOSE)
    place, _, query = address.location.partition("?")
    options, folder = dict(parse_qsl(query, keep_blank_values=True)), folder_of(address)
    check_keys("option", options, () if folder else OPTIONS, f" of {address.name}")
    if folder is not None:
        return _connect_folder(qdrant, str(folder.resolve()))
    if "@" in place:
        raise AlbertkitError(
            f"the address qdrant://… has a @, but Qdrant has no users. Pass a key as ?api_key=KEY or in {KEY_VARIABLE}."
        )
    check_choice("https", options.get("https", "false"), ("true", "false"))
    scheme = "https" if options.get("https") == "true" else "http"
    key = options.get("api_key") or os.environ.get(KEY_VARIABLE, "")
    if key and scheme == "http" and not _this_computer.match(place):
        warnings.warn(f"{address.name} sends the key without encryption. Add https=true to the address.", stacklevel=2)
    try:
        client = qdrant.QdrantClient(
            url=f"{scheme}://{place}",
            headers={"api-key": key} if key else None,
            timeout=TIMEOUT,
            check_compatibility=False,
        )
    except ValueError as error:  # a port that is no number, and the like
        raise AlbertkitError(f"{address.name} is not an address ({error}). Write qdrant://HOST:PORT.") from None
    try:
        _check_version(client.info().version, address)
    except BaseException:
        client.close()
        raise
    return Connection(client)


def _check_version(version: str, address: StoreAddress) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise AlbertkitError(
            f"{address.name} is a server of Qdrant {version}, but {OLDEST[0]}.{OLDEST[1]} is needed. Update the server."
        )


def _connect_folder(qdrant: Any, folder: str) -> Connection:
    with _folders_lock:
        shared = _folders.get(folder)
        if shared is not None:
            shared.users += 1
            return shared
        check_folder(Path(folder))
        try:
            client = qdrant.QdrantClient(path=folder, force_disable_check_same_thread=True)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"its files are damaged: {error}") from None
        _folders[folder] = Connection(client, folder)
        return _folders[folder]


def disconnect(connection: Connection) -> None:
    """Close a connection, unless another index uses it."""
    with _folders_lock:
        connection.users -= 1
        if not connection.users:
            _folders.pop(connection.folder, None)
            connection.client.close()


@atexit.register
def _close_folders() -> None:
    for connection in _folders.values():
        connection.client.close()


class PointReader(pickle.Unpickler):
    """Reads pickles of points, and refuses every other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in POINTS:
            raise AlbertkitError(f"it contains {module}.{name}")
        return super().find_class(module, name)


def check_folder(folder: Path) -> None:
    """Raise if a folder is one of a server, or if a pickle in it contains more than points."""
    if (folder / "raft_state.json").exists():
        raise AlbertkitError(
            f"qdrant://{folder} is the folder of a Qdrant server. Pass the server's address: qdrant://HOST:PORT."
        )
    if (folder / "meta.json").exists():
        _check_names(folder / "meta.json")
    for path in sorted((folder / "collection").glob("*/storage.*")):
        try:
            _check_points(path)
        except Exception as error:  # a pickle can raise anything
            raise AlbertkitError(
                f"{path} contains something other than points ({str(error)[:MESSAGE]}), so it was not opened. Delete "
                "its folder and index the files again."
            ) from None


def _check_names(path: Path) -> None:
    """Raise if the client would read a collection elsewhere than in `collection/NAME`, where the points are checked."""
    collections = read_json(path).get("collections")
    for name in collections if isinstance(collections, dict) else ():
        if name in ("", ".", "..") or re.search(r"[/\\:]", name):
            raise AlbertkitError(
                f"{path} contains the collection {name!r:.80}, but names are without / and :, so it was not opened. "
                "Delete its folder and index the files again."
            )


def _check_points(path: Path) -> None:
    if not path.name.startswith("storage.sqlite"):  # old clients read pickles from storage.dbm
        raise AlbertkitError("files of an old client")
    if path.suffix != ".sqlite":  # sqlite's journal
        return
    with contextlib.closing(sqlite3.connect(path)) as sql:
        schema = {row[0] for row in sql.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if schema - {POINTS_TABLE}:  # a view could return other points to the client
            raise AlbertkitError("another table")
        for (data,) in sql.execute("SELECT point FROM points") if schema else ():
            PointReader(io.BytesIO(data)).load()


def speed_up(connection: Connection, table: str) -> None:
    """Let the client wait for the disk once in a while, not for each point. A crash leaves a valid file either way."""
    if not connection.folder:
        return
    collections = getattr(getattr(connection.client, "_client", None), "collections", {})
    sql = getattr(getattr(collections.get(table), "storage", None), "storage", None)
    if isinstance(sql, sqlite3.Connection):
        with contextlib.suppress(sqlite3.Error):
            sql.execute("PRAGMA journal_mode = WAL")
            sql.execute("PRAGMA synchronous = NORMAL")


@contextlib.contextmanager
def plain_errors(address: StoreAddress) -> Iterator[None]:
    """Raise the errors of Qdrant as `AlbertkitError`."""
    errors = need("qdrant_client.http.exceptions", "qdrant", PURPOSE)
    limits = need("qdrant_client.common.client_exceptions", "qdrant", PURPOSE)
    try:
        yield
    except AlbertkitError:
        raise
    except errors.UnexpectedResponse as error:
        remedy = REMEDIES.get(error.status_code, f"Check the server and its log, {RERUN}")
        raise _error(address, _server_message(error), remedy) from None
    except errors.ResponseHandlingException as error:
        raise _error(address, *_explain(address, error.source)) from None
    except limits.QdrantException as error:
        raise _error(address, str(error), REMEDIES[429]) from None
    except (AssertionError, RuntimeError, ValueError, LookupError, OSError, sqlite3.Error) as error:
        if "already accessed" in str(error):
            raise AlbertkitError(
                f"{address.name} is open in another program, and a folder of Qdrant admits one. Wait until it is done, "
                "or use a server."
            ) from None
        if folder_of(address) is None and isinstance(error, ValueError):  # a response that is not JSON
            raise _error(address, "no Qdrant server answered", REMEDIES[404]) from None
        raise _error(address, str(error) or type(error).__name__, f"Check its folder and its disk, {RERUN}") from None


def _error(address: StoreAddress, message: str, remedy: str) -> AlbertkitError:
    message = address.hide_secrets(" ".join(message.split())[:MESSAGE])
    return AlbertkitError(f"{address.name} cannot be used ({message}). {remedy}")


def _server_message(error: Any) -> str:
    try:
        return str(json.loads(error.content)["status"]["error"])
    except (ValueError, LookupError, TypeError):
        return f"status {error.status_code} {error.reason_phrase}"


def _explain(address: StoreAddress, source: Exception) -> tuple[str, str]:
    """What happened instead of a response, and the remedy."""
    kind, message = type(source).__name__, str(source)
    if "Timeout" in kind:
        return f"no answer in {TIMEOUT} seconds", f"Check the server, {RERUN}"
    if kind in ("ConnectError", "RemoteProtocolError", "ReadError") and "https=true" in address.location:
        return message, "Check the host, the port and the server's certificate, or omit https=true if it uses no TLS."
    if kind == "ConnectError":
        folder = "" if ":" in address.location else " A folder is written as qdrant://./FOLDER."
        return message, f"Start the server, or check the host and the port of the address.{folder}"
    if kind in ("RemoteProtocolError", "ReadError"):
        return message, "Add https=true to the address if the server uses TLS."
    if kind in ("ValidationError", "InvalidURL", "UnsupportedProtocol"):
        return "no Qdrant server answered", REMEDIES[404]
    return message or kind, f"Check the server, {RERUN}"
