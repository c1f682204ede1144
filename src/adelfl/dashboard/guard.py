"""Access control: host name, token and origin of requests."""

from __future__ import annotations

import hashlib
from secrets import compare_digest

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    app : ASGIApp
        The wrapped app.
    hosts : frozenset of str or None
        Host names that a request may use; None for all. On a loopback address this prevents DNS rebinding.
    token : str or None
        Secret that a viewer needs; None for none.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, token: str | None) -> None:
        self.app, self.hosts = app, hosts
        self._key = None if token is None else _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        new = dict(HEADERS)
        refusal = self._refusal(Request(scope), new)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(new)
            await send(message)

        app = self.app if refusal is None else JSONResponse({"error": refusal[1]}, refusal[0])
        await app(scope, receive, with_headers)

    def _refusal(self, request: Request, new: dict[str, str]) -> tuple[int, str] | None:
        if self.hosts is not None and host_name(request.headers.get("host", "")) not in self.hosts:
            return 421, "this dashboard answers to its own address only; open the one that adelfl dashboard printed"
        page = request.scope["path"] == "/"
        if not page and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other pages are refused"
        if self._key is None:
            return None
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(COOKIE, "").encode("utf-8", "replace")
        if compare_digest(cookie, self._key.encode()) or (kind.lower() == "bearer" and self._is_token(bearer.strip())):
            return None
        if page and self._is_token(request.query_params.get("token", "")):
            new["set-cookie"] = f"{COOKIE}={self._key}; HttpOnly; SameSite=Strict; Path=/"
            return None
        return 401, (
            "a token is needed; open the address that adelfl dashboard printed with ?token= in it, or add ?token= and "
            "the token that it was started with (--token or ADELFL_DASHBOARD_TOKEN)"
        )

    def _is_token(self, text: str) -> bool:
        return self._key is not None and compare_digest(_digest(text), self._key)
