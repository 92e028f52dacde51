"""Checks that protect users of web browsers: host names, origins, and what pages may load.

In: an ASGI app. Out: one that refuses requests of unknown hosts and of other sites' pages, and sends a content security
policy with every response. Before: `app.py` makes the app; next: `server.py` runs it.
"""

from __future__ import annotations

import base64
import hashlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from albertkit.serve.middleware import error_response
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import ServeSettings

POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self' {styles}; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
WORKER = "/web/worker.js"  # runs WebAssembly; a worker has the policy of its script


def protect(app: ASGIApp, settings: ServeSettings, *inline_styles: str) -> ASGIApp:
    """An app with all checks. inline_styles: contents of <style> elements that pages may have."""
    hashes = (base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() for style in inline_styles)
    styles = " ".join(f"'sha256-{sha256}'" for sha256 in hashes)
    policy, worker_policy = (
        POLICY.format(styles=styles, scripts=more).encode() for more in ("", " 'wasm-unsafe-eval'")
    )
    security_headers = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return

        own_policy = (b"content-security-policy", worker_policy if scope["path"].endswith(WORKER) else policy)

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], own_policy, *security_headers]}
            await send(message)

        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            check_host(headers, settings)
            check_origin(headers, settings)
        except HttpError as error:
            await error_response(scope["path"], error)(scope, receive, send_secured)
            return
        await app(scope, receive, send_secured)

    return respond


def check_host(headers: dict[bytes, str], settings: ServeSettings) -> None:
    """Refuse a request to a name that is not the server's, as of a page whose name resolves to this address."""
    host = headers.get(b"host", "").lower()
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if not settings.allows_host(name):
        raise HttpError(421, f"host name {name[:100]!r} is not allowed; allow it with --hosts")


def check_origin(headers: dict[bytes, str], settings: ServeSettings) -> None:
    """Refuse a request of another site's page. Browsers send Origin with these; other clients need not."""
    origin, allowed = headers.get(b"origin"), settings.allowed_origins
    if origin is None or origin in allowed or "*" in allowed:
        return
    is_same = headers.get(b"sec-fetch-site") == "same-origin"  # a page cannot set it; a proxy may change the host
    if is_same or origin.partition("://")[2] == headers.get(b"host", ""):
        return
    raise HttpError(403, f"pages of {origin[:100]!r} may not call this server; allow them with --cors-origins")
