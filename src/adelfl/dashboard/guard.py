"""Access control: host name, token and origin of requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "adelfl-dashboard"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def host_name(header: str) -> str:
    """Return the host name of a Host header, without its port."""
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
    return name.strip("[]").lower()


class Guard:
    """Wraps the app: refuses requests, or adds security headers to their responses.

    Parameters
    ----------
    app : callable
        The wrapped app.
    hosts : frozenset of str or None
        Host names that a request may use; None for all. On a loopback address this prevents DNS rebinding.
    token : str or None
        Secret that a viewer needs; None for none.
    """

    def __init__(self, app: App, hosts: frozenset[str] | None, token: str | None) -> None:
        self.app, self.hosts = app, hosts
        self._key = None if token is None else _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        new = dict(HEADERS)
        refusal = self._refusal(scope, headers, new)

        async def with_headers(message: Scope) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message.get("headers", ()) if k.decode("latin-1").lower() not in new]
                message["headers"] = [*kept, *((k.encode(), v.encode()) for k, v in new.items())]
            await send(message)

        if refusal is None:
            await self.app(scope, receive, with_headers)
            return
        status, sentence = refusal
        body = json.dumps({"error": sentence}).encode()
        start = {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        await with_headers(start)
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope, headers: dict[str, str], new: dict[str, str]) -> tuple[int, str] | None:
        if self.hosts is not None and host_name(headers.get("host", "")) not in self.hosts:
            return 421, "this dashboard answers to its own address only; open the one that adelfl dashboard printed"
        page = scope["path"] == "/"
        if not page and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other pages are refused"
        if self._key is None or self._knows(headers):
            return None
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if page and compare_digest(_digest(given), self._key):
            new["set-cookie"] = f"{COOKIE}={self._key}; HttpOnly; SameSite=Strict; Path=/"
            return None
        return 401, (
            "a token is needed; open the address that adelfl dashboard printed with ?token= in it, or add ?token= and "
            "the token that it was started with (--token or ADELFL_DASHBOARD_TOKEN)"
        )

    def _knows(self, headers: dict[str, str]) -> bool:
        assert self._key is not None
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and compare_digest(_digest(given.strip()), self._key):
            return True
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return kept is not None and compare_digest(kept.value.encode("utf-8", "replace"), self._key.encode())
