"""The settings of the server and its API keys. The text of each setting is also its `--help`.

In: flags, or variables ALBERTKIT_SERVE_FIELD. Out: validated `ServeSettings`, and `ApiKeys`. `server.py` uses them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from albertkit.errors import AlbertkitError
from albertkit.options import setting

PREFIX = "ALBERTKIT_SERVE_"
PARENT_VARIABLE = f"{PREFIX}PARENT"  # set in workers: the process that forwards a reload to all
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # set with several workers: the folder in which they share metrics
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
MEGABYTE = 2**20
COUNTS = (
    "token_budget",
    "max_texts",
    "max_tokens",
    "max_characters",
    "max_bytes",
    "max_response_bytes",
    "max_pending_bytes",
    "max_connections",
    "max_client_connections",
)
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
    device: str = setting("cpu", "cpu, or cuda to run on a GPU with torch.")
    bits: int | None = setting(None, "Quantize float models when they are opened: 8 or 4.")
    token_budget: int = setting(1024, "Maximum tokens per batch. Texts of all clients share a batch.")
    deadline: float = setting(30.0, "Maximum seconds per request; a request that would take longer is rejected.")
    max_texts: int = setting(1024, "Maximum texts per request.")
    max_tokens: int = setting(200_000, "Maximum tokens per request.")
    max_characters: int = setting(100_000, "Maximum characters per text.")
    max_bytes: int = setting(4 * MEGABYTE, "Maximum bytes in the body of a request.")
    max_response_bytes: int = setting(16 * MEGABYTE, "Maximum bytes of a response; a larger one is not computed.")
    max_pending_bytes: int = setting(
        64 * MEGABYTE, "Maximum bytes of all open requests and their responses; others are rejected."
    )
    max_connections: int = setting(4096, "Maximum open connections per worker; beyond it the oldest idle one closes.")
    max_client_connections: int = setting(1024, "The same for one client address. Behind a proxy, set it higher.")
    client_timeout: float = setting(20.0, "Seconds in which a client must send a request or read more of a response.")
    keep_alive: float = setting(75.0, "Seconds an idle connection stays open.")
    shutdown_timeout: float = setting(30.0, "Seconds for open requests to finish after SIGTERM.")
    cors_origins: str | None = setting(
        None, "Origins whose pages may call the server, separated by commas [default: none]."
    )
    hosts: str | None = setting(
        None,
        "Allowed host names beside localhost, separated by commas; * for any. A server for other machines also answers "
        "to IP addresses.",
    )
    auth: bool = setting(True, "Require API keys if other machines can reach the server.")
    keys_file: str | None = setting(None, "File with API keys, one per line. Clients must send one of them.")
    admin_key_file: str | None = setting(None, "File with the key for /admin/reload.")
    access_log: bool = setting(True, "Log one line per request; texts are never logged.")
    page: bool = setting(True, "Serve the page at /.")
    otel: bool | None = setting(
        None, "Export traces and metrics by OTLP [default: if OTEL_EXPORTER_OTLP_ENDPOINT is set]."
    )

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise AlbertkitError(f"{name}={value} is not valid; choose {low:g} to {high:g}")
        if self.bits not in (None, 4, 8):
            raise AlbertkitError(f"bits={self.bits} is not valid; choose 8 or 4")
        if self.workers > 1 and self.threads not in (None, 1):
            raise AlbertkitError(f"threads={self.threads} is not valid: workers have one thread each. Omit it.")
        if self.workers > 1 and self.device != "cpu":
            raise AlbertkitError(
                f"workers={self.workers} is not available with device={self.device!r}: several processes cannot share "
                "a GPU's model. Omit workers or device."
            )
        for name in ("max_bytes", "max_response_bytes"):
            if self.max_pending_bytes < getattr(self, name):
                raise AlbertkitError(
                    f"max_pending_bytes={self.max_pending_bytes} is below {name}={getattr(self, name)}. Increase it."
                )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        address = parse_address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    def allows_host(self, name: str) -> bool:
        """Whether requests may have this name in their Host header.

        If the server answered to any name, a web page whose name resolves to its address could read it. An IP address
        is safe, because no page can choose it; the addresses of a server for other machines are not known.
        """
        return (
            name in self._allowed_hosts
            or "*" in self._allowed_hosts
            or (not self.is_local and parse_address(name) is not None)
        )

    @cached_property
    def _allowed_hosts(self) -> frozenset[str]:
        return frozenset([*split_list((self.hosts or "").lower()), *LOCAL_HOSTS, self.host.lower()])

    @cached_property
    def allowed_origins(self) -> frozenset[str]:
        """Origins whose pages may call the server, beside its own."""
        return frozenset(split_list(self.cors_origins or ""))


@dataclass(frozen=True)
class ApiKeys:
    """Hashes of the accepted keys. Keys come from the environment or files: other users can read command lines."""

    users: tuple[bytes, ...] = ()
    admin: bytes | None = None

    @classmethod
    def read(cls, settings: ServeSettings) -> ApiKeys:
        """From ALBERTKIT_SERVE_KEYS and ALBERTKIT_SERVE_ADMIN_KEY, and the files of the settings."""
        users = read_variable(f"{PREFIX}KEYS") + read_keys(settings.keys_file)
        admins = read_variable(f"{PREFIX}ADMIN_KEY") + read_keys(settings.admin_key_file)
        if len(admins) > 1:
            raise AlbertkitError(f"{len(admins)} admin keys were set: the server accepts one. Set one.")
        if users and not settings.auth:
            raise AlbertkitError("--no-auth was passed, but API keys are set. Omit --no-auth, or remove the keys.")
        if not users and settings.auth and not settings.is_local:
            raise AlbertkitError(
                f"host={settings.host!r} is reachable from other machines, but no API key is set. Set {PREFIX}KEYS or "
                "--keys-file, or pass --no-auth to answer everybody."
            )
        return cls(tuple(hash_key(key) for key in users), hash_key(admins[0]) if admins else None)

    def is_user(self, header: bytes) -> bool:
        """Whether an Authorization header has a valid key; always if no keys are set."""
        return not self.users or has_valid_key(header, (*self.users, *([self.admin] if self.admin else [])))

    def is_admin(self, header: bytes) -> bool:
        """Whether it has the admin key."""
        return self.admin is not None and has_valid_key(header, (self.admin,))


def has_valid_key(header: bytes, hashes: Iterable[bytes]) -> bool:
    """Compare with every key in constant time."""
    scheme, _, value = header.partition(b" ")
    digest = hashlib.sha256(value.strip() if scheme.lower() == b"bearer" else b"").digest()
    return sum(hmac.compare_digest(digest, known) for known in hashes) > 0


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def split_list(text: str) -> list[str]:
    """The parts between commas and white space."""
    return [part for part in re.split(r"[,\s]+", text) if part]


def parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A name that is an IP address; else None."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def read_variable(name: str) -> list[str]:
    """The keys in an environment variable. One that is set and has no key is a mistake, such as an empty secret."""
    value = os.environ.get(name)
    keys = split_list(value or "")
    if value is not None and not keys:
        raise AlbertkitError(f"{name} is set but contains no key. Set keys separated by commas, or unset it.")
    return keys


def read_keys(path: str | None) -> list[str]:
    """The keys in a file: its lines, without empty lines and lines that start with #."""
    if path is None:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise AlbertkitError(f"{path} contains no key. Write one key per line.")
    return keys
