"""The settings of the server, each with the sentence that documents it, here and in `--help`.

In: flags, or variables named ALBERTKIT_SERVE_ and the field. Out: `ServeSettings`, frozen and checked, and `ApiKeys`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from albertkit.errors import AlbertkitError
from albertkit.settings import setting

PREFIX = "ALBERTKIT_SERVE_"
LOCAL = ("127.0.0.1", "::1", "localhost")
MEGABYTE = 2**20


@dataclass(frozen=True)
class ServeSettings:
    """How to serve."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for every network.")
    port: int = setting(8080, "Port to listen on; 0 takes a free one.")
    workers: int = setting(1, "Processes that share the port, and with one thread each the model's memory.")
    threads: int | None = setting(None, "Processors that each worker computes on [default: all, shared out].")
    bits: int | None = setting(None, "Quantise float models on opening: 8 or 4.")
    token_budget: int = setting(1024, "Tokens that are computed together; texts of all clients share a batch.")
    deadline: float = setting(30.0, "Seconds to an answer; a request that would take longer is refused at once.")
    max_texts: int = setting(1024, "Texts in one request.")
    max_tokens: int = setting(200_000, "Tokens in one request.")
    max_bytes: int = setting(4 * MEGABYTE, "Bytes in the body of one request.")
    max_held: int = setting(64 * MEGABYTE, "Bytes of all requests at work together; beyond it they are refused.")
    max_connections: int = setting(4096, "Open connections for each worker; beyond it they are refused.")
    patience: float = setting(20.0, "Seconds a client may take to send a request, or to read on in an answer.")
    keep_alive: float = setting(75.0, "Seconds an idle connection stays open.")
    drain: float = setting(30.0, "Seconds that open requests have to finish after SIGTERM.")
    cache: float = setting(0.0, "Megabytes for the vectors of repeated texts; 0 keeps none.")
    cors: str | None = setting(None, "Origins whose pages may call the server, with commas between [default: none].")
    hosts: str | None = setting(
        None, "Names the server may be called by, with commas between; * for any [default: local ones, if it is local]."
    )
    keys_file: str | None = setting(None, "File with API keys, one a line; clients must then send one.")
    admin_key_file: str | None = setting(None, "File with the key that /admin/reload needs.")
    access_log: bool = setting(True, "Log one line for each request; texts are never logged.")
    page: bool = setting(True, "Serve the page at /.")

    def __post_init__(self) -> None:
        counts = ("workers", "token_budget", "max_texts", "max_tokens", "max_bytes", "max_held", "max_connections")
        for name in (*counts, "deadline", "patience", "keep_alive", "drain"):
            if not 0 < getattr(self, name) < 1e12:
                raise AlbertkitError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 0 <= self.port < 65536:
            raise AlbertkitError(f"port is {self.port}; choose 1 to 65535, or 0 for a free one")
        if not 0 <= self.cache < 1e6:
            raise AlbertkitError(f"cache is {self.cache}; give megabytes, 0 for none")
        if self.bits not in (None, 4, 8):
            raise AlbertkitError(f"bits is {self.bits}; choose 8 or 4")
        if self.workers > 256 or (self.threads is not None and not 1 <= self.threads <= 1024):
            raise AlbertkitError(f"{self.workers} workers with {self.threads} threads; choose 1 to 256, and 1 to 1024")
        if self.max_held < self.max_bytes:
            raise AlbertkitError(f"max_held is {self.max_held}, below max_bytes, {self.max_bytes}; raise it")

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """Names that a Host header may hold; None for any.

        A local server that answered to any name could be read by a foreign web page whose name is made to point here.
        """
        names = [name.lower() for name in split_list(self.hosts or "")]
        if "*" in names or (not names and self.host not in LOCAL):
            return None
        return frozenset([*names, *LOCAL, self.host])


@dataclass(frozen=True)
class ApiKeys:
    """Hashes of the keys that are accepted. Keys come from the environment or from files, not from the command line, which others can read."""

    users: tuple[bytes, ...] = ()
    admin: bytes | None = None

    @classmethod
    def read(cls, settings: ServeSettings) -> ApiKeys:
        """From ALBERTKIT_SERVE_KEYS and ALBERTKIT_SERVE_ADMIN_KEY, and the files of the settings."""
        users = split_list(os.environ.get(f"{PREFIX}KEYS", "")) + from_file(settings.keys_file)
        admins = split_list(os.environ.get(f"{PREFIX}ADMIN_KEY", "")) + from_file(settings.admin_key_file)
        if len(admins) > 1:
            raise AlbertkitError(f"{len(admins)} admin keys were given; there is one")
        if settings.keys_file is not None and not users:
            raise AlbertkitError(f"{settings.keys_file} holds no key; write one a line")
        return cls(tuple(hash_key(key) for key in users), hash_key(admins[0]) if admins else None)

    def user(self, header: bytes) -> bool:
        """Whether an Authorization header holds a key; always, where none is needed."""
        return not self.users or matches(header, (*self.users, *([self.admin] if self.admin else [])))

    def is_admin(self, header: bytes) -> bool:
        """Whether it holds the admin key."""
        return self.admin is not None and matches(header, (self.admin,))


def matches(header: bytes, hashes: Iterable[bytes]) -> bool:
    """Compare with every key in the same time, whatever is right or wrong about it."""
    kind, _, value = header.partition(b" ")
    given = hashlib.sha256(value.strip() if kind.lower() == b"bearer" else b"").digest()
    found = False
    for known in hashes:
        found |= hmac.compare_digest(given, known)
    return found


def hash_key(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def split_list(text: str) -> list[str]:
    """What stands between commas and white space."""
    return [part for part in re.split(r"[,\s]+", text) if part]


def from_file(path: str | None) -> list[str]:
    """The lines of a file; empty ones and those that begin with # do not count."""
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
