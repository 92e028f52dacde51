"""The settings of the server and its API keys. The text of each setting is also its `--help`.

In: flags, or variables ALBERTKIT_SERVE_FIELD. Out: validated `ServeSettings`, and `ApiKeys`. `server.py` uses them.
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
from albertkit.options import setting

PREFIX = "ALBERTKIT_SERVE_"
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
MEGABYTE = 2**20
COUNTS = ("token_budget", "max_texts", "max_tokens", "max_bytes", "max_pending_bytes", "max_connections")
TIMES = ("deadline", "client_timeout", "keep_alive", "shutdown_timeout")
RANGES = {
    "port": (0, 65535),
    "workers": (1, 256),
    "threads": (1, 1024),
    **dict.fromkeys(COUNTS, (1, 1e12)),
    **dict.fromkeys(TIMES, (1e-3, 1e9)),
}


@dataclass(frozen=True)
class ServeSettings:
    """The settings of `serve`.

    >>> from albertkit import ServeSettings
    >>> ServeSettings(port=8000, workers=2).port
    8000
    """

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all networks.")
    port: int = setting(8080, "Port to listen on; 0 for a free one.")
    workers: int = setting(1, "Processes that share the port and the model's memory; several have one thread each.")
    threads: int | None = setting(None, "CPU threads [default: all cores].")
    bits: int | None = setting(None, "Quantize float models when they are opened: 8 or 4.")
    token_budget: int = setting(1024, "Maximum tokens per batch. Texts of all clients share a batch.")
    deadline: float = setting(30.0, "Maximum seconds per request; a request that would take longer is rejected.")
    max_texts: int = setting(1024, "Maximum texts per request.")
    max_tokens: int = setting(200_000, "Maximum tokens per request.")
    max_bytes: int = setting(4 * MEGABYTE, "Maximum bytes in the body of a request.")
    max_pending_bytes: int = setting(64 * MEGABYTE, "Maximum bytes of all open requests; others are rejected.")
    max_connections: int = setting(4096, "Maximum open connections per worker; further connections are rejected.")
    client_timeout: float = setting(20.0, "Seconds in which a client must send a request or read more of a response.")
    keep_alive: float = setting(75.0, "Seconds an idle connection stays open.")
    shutdown_timeout: float = setting(30.0, "Seconds for open requests to finish after SIGTERM.")
    cors_origins: str | None = setting(
        None, "Origins whose pages may call the server, separated by commas [default: none]."
    )
    hosts: str | None = setting(
        None, "Allowed host names, separated by commas; * for any [default: local names for a local server]."
    )
    keys_file: str | None = setting(None, "File with API keys, one per line. Clients must send one of them.")
    admin_key_file: str | None = setting(None, "File with the key for /admin/reload.")
    access_log: bool = setting(True, "Log one line per request; texts are never logged.")
    page: bool = setting(True, "Serve the page at /.")

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise AlbertkitError(f"{name}={value} is not valid; choose {low:g} to {high:g}")
        if self.bits not in (None, 4, 8):
            raise AlbertkitError(f"bits={self.bits} is not valid; choose 8 or 4")
        if self.workers > 1 and self.threads not in (None, 1):
            raise AlbertkitError(f"threads={self.threads} is not valid: workers have one thread each. Omit it.")
        if self.max_pending_bytes < self.max_bytes:
            raise AlbertkitError(
                f"max_pending_bytes={self.max_pending_bytes} is below max_bytes={self.max_bytes}. Increase it."
            )

    @property
    def is_local(self) -> bool:
        return self.host in LOCAL_HOSTS

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """Allowed Host headers; None for any.

        If a local server accepted any name, a web page whose name resolves to this machine could read it.
        """
        names = [name.lower() for name in split_list(self.hosts or "")]
        if "*" in names or (not names and not self.is_local):
            return None
        return frozenset([*names, *LOCAL_HOSTS, self.host])


@dataclass(frozen=True)
class ApiKeys:
    """Hashes of the accepted keys. Keys come from the environment or files: other users can read command lines."""

    users: tuple[bytes, ...] = ()
    admin: bytes | None = None

    @classmethod
    def read(cls, settings: ServeSettings) -> ApiKeys:
        """From ALBERTKIT_SERVE_KEYS and ALBERTKIT_SERVE_ADMIN_KEY, and the files of the settings."""
        users = split_list(os.environ.get(f"{PREFIX}KEYS", "")) + read_lines(settings.keys_file)
        admins = split_list(os.environ.get(f"{PREFIX}ADMIN_KEY", "")) + read_lines(settings.admin_key_file)
        if len(admins) > 1:
            raise AlbertkitError(f"{len(admins)} admin keys were set: the server accepts one. Set one.")
        if settings.keys_file is not None and not users:
            raise AlbertkitError(f"{settings.keys_file} contains no key. Write one key per line.")
        return cls(tuple(hash_key(key) for key in users), hash_key(admins[0]) if admins else None)

    def is_user(self, header: bytes) -> bool:
        """Whether an Authorization header has a valid key; always if no keys are set."""
        return not self.users or matches(header, (*self.users, *([self.admin] if self.admin else [])))

    def is_admin(self, header: bytes) -> bool:
        """Whether it has the admin key."""
        return self.admin is not None and matches(header, (self.admin,))


def matches(header: bytes, hashes: Iterable[bytes]) -> bool:
    """Compare with every key in constant time."""
    scheme, _, value = header.partition(b" ")
    digest = hashlib.sha256(value.strip() if scheme.lower() == b"bearer" else b"").digest()
    return sum(hmac.compare_digest(digest, known) for known in hashes) > 0


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def split_list(text: str) -> list[str]:
    """The parts between commas and white space."""
    return [part for part in re.split(r"[,\s]+", text) if part]


def read_lines(path: str | None) -> list[str]:
    """The lines of a file, without empty lines and lines that start with #."""
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
