"""The address of an index in a vector store, such as `pgvector://user@host/database?table=notes`.

In: what a user passes as an index. Out: a `StoreAddress`, or None for the path of a file. After this file: `index.py`
and `stores/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode

from albertkit.errors import AlbertkitError, check_choice, check_path

STORES = ("pgvector", "lancedb", "qdrant")
TABLE = "albertkit"  # the default name of the table
_address = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_table = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_user = re.compile(r"([^/?#@:]*):(.*)@")  # the name and the password before a host
SECRETS = ("password", "sslpassword", "apikey")  # parameters that no message contains, without _ and -
HIDDEN = "***"


@dataclass(frozen=True)
class StoreAddress:
    """Where an index in a vector store is. `name` is the address for messages, without passwords."""

    store: str
    location: str = field(repr=False)
    """What the client of the store opens, without the name of the store; it may contain a password."""
    table: str
    name: str
    secrets: tuple[str, ...] = field(repr=False, default=())

    def hide_secrets(self, text: str) -> str:
        """A message without the passwords of the address."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN).replace(quote(secret, safe=""), HIDDEN)
        return text


def is_address(text: Path | str) -> bool:
    """Whether the address of a store is meant, also one that became a path.

    >>> is_address(Path("lancedb://notes")), is_address("notes.idx")
    (True, False)
    """
    return re.match(rf"({'|'.join(STORES)}):/", str(text)) is not None


def parse_address(text: Path | str) -> StoreAddress | None:
    """The address of a store; None for a path.

    >>> parse_address("pgvector://ada:secret@db/notes?table=faq").name
    'pgvector://ada:***@db/notes?table=faq'
    >>> parse_address("notes.idx")
    """
    check_path("path", text)
    if isinstance(text, Path):
        if is_address(text):
            raise AlbertkitError("the address of an index was passed as a Path, which changes it. Pass a string.")
        return None
    parts = _address.fullmatch(text)
    if parts is None:
        return None
    store, (place, _, query) = parts[1], parts[2].partition("?")
    if store in ("postgres", "postgresql"):
        raise AlbertkitError(f"{store}:// is not the address of an index. Write pgvector:// instead.")
    check_choice("the store", store, STORES)
    if "@" in query:  # otherwise messages would contain what follows a "?" of the password
        raise AlbertkitError(
            f"the address {store}://… has a @ after a ?. Write ? in a user name or password as %3F, and @ in an option "
            "as %40."
        )
    options = parse_qsl(query, keep_blank_values=True)
    table = dict(options).get("table", TABLE)
    if not _table.fullmatch(table):
        raise AlbertkitError(
            f"table={table!r} is not a table name: it has 1 to 40 letters, digits and _, and begins with no digit. "
            "Choose another one."
        )
    others = [(key, value) for key, value in options if key != "table"]
    user = _user.match(place)
    if user:  # the characters of a password that would end it are quoted
        place = f"{user[1]}:{quote(unquote(user[2]), safe='')}@{place[user.end() :]}"
    secrets = [unquote(user[2])] if user else []
    secrets += [value for key, value in others if _is_secret(key)]
    shown = [(key, HIDDEN if _is_secret(key) else value) for key, value in options]
    hidden = f"{user[1]}:{HIDDEN}@{parts[2].partition('?')[0][user.end() :]}" if user else place
    return StoreAddress(
        store,
        f"{place}?{urlencode(others, quote_via=quote)}" if others else place,
        table,
        f"{store}://{hidden}?{urlencode(shown, safe='*/')}" if shown else f"{store}://{hidden}",
        tuple(secret for secret in secrets if secret),
    )


def _is_secret(key: str) -> bool:
    """Whether the value of a parameter is a secret, also with another spelling of the parameter."""
    return key.lower().replace("_", "").replace("-", "") in SECRETS
