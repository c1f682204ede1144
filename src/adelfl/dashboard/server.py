"""The dashboard's server: one page, a few read-only endpoints, one stream of events per viewer."""

from __future__ import annotations

import asyncio
import mimetypes
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from secrets import compare_digest
from typing import Any

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic_core import to_json
from starlette.middleware.trustedhost import TrustedHostMiddleware

from adelfl.dashboard.run_index import Card, RunIndex, Tail

_COOKIE = "adelfl-dashboard"
_POLL = 0.5  # seconds between reads of the files


async def _until_next_poll() -> bool:
    await asyncio.sleep(_POLL)
    return True


def _json(value: object, status: int = 200) -> Response:
    """Return JSON for browsers, with null in place of NaN and infinity."""
    return Response(to_json(value, inf_nan_mode="null"), status, media_type="application/json")


def build(
    index: RunIndex,
    hosts: list[str],
    token: str | None = None,
    pause: Callable[[], Awaitable[bool]] = _until_next_poll,
) -> FastAPI:
    """Return the app, which answers requests for the names ``hosts`` from viewers with the ``token``, if it is set.

    A stream awaits ``pause`` between two polls, and ends when it returns False.
    """
    app = FastAPI(title="adelfl", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)  # prevents DNS rebinding
    mimetypes.add_type("text/javascript", ".js")  # some systems use text/plain, which browsers reject
    app.mount("/static", StaticFiles(packages=[("adelfl.dashboard", "static")]))

    @app.middleware("http")
    async def check_token(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Accept the token as ?token=, which sets a cookie, as this cookie, or as ``Authorization: Bearer``."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.query_params.get("token") or request.cookies.get(_COOKIE) or bearer
        if token is not None and not compare_digest(given.encode(), token.encode()):
            return _json({"error": "token missing or wrong; add ?token= and the token to the address"}, 401)
        response = await call_next(request)
        if token is not None and "token" in request.query_params:
            response.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
        return response

    @app.get("/")
    def page() -> Response:
        return HTMLResponse((files("adelfl.dashboard") / "static" / "index.html").read_bytes())

    @app.get("/api/runs")
    def runs() -> Response:
        return _json(list(index.look().values()))

    @app.get("/api/run")
    def run(name: str) -> Response:
        with index.lock:
            about, tail = index.about(name), index.tail(name)
            if about is None or tail is None:
                return _json({"error": "there is no such run"}, 404)
            return _json({"about": about} | _since(tail, 0))

    @app.get("/api/round")
    def round(name: str, number: int) -> Response:
        row = index.row(name, number)
        return _json({"error": "there is no such round"}, 404) if row is None else _json(row)

    @app.get("/events")
    def stream(run: list[str] = Query(default=[])) -> Response:  # noqa: B008 - FastAPI's way
        return StreamingResponse(events(Follower(index, run), pause), media_type="text/event-stream")

    return app


class Follower:
    """Keeps track of the events that were sent to a viewer, which follows the rows of some runs."""

    def __init__(self, index: RunIndex, runs: list[str]) -> None:
        self.index = index
        self._cards: dict[str, Card] | None = None
        self._places: dict[str, tuple[int, int, str | None] | None] = dict.fromkeys(runs, (-1, 0, None))

    def news(self) -> list[tuple[str, object]]:
        """Return the events since the last call: ``runs``, ``run``, ``rows`` (appended to a run), ``gone``."""
        with self.index.lock:
            cards, before, first = self.index.look(), self._cards or {}, self._cards is None
            self._cards = cards
            changed = [card for name, card in cards.items() if before.get(name) != card]
            gone = [name for name in before if name not in cards]
            news: list[tuple[str, object]] = []
            if first or changed or gone:
                news.append(("runs", {"first": first, "now": self.index.now(), "changed": changed, "gone": gone}))
            for name, place in self._places.items():
                tail = self.index.tail(name)
                now = None if tail is None else (tail.edition, len(tail.rows), tail.error)
                if now == place:
                    continue
                self._places[name] = now
                if tail is None:
                    news.append(("gone", {"name": name}))
                elif place is None or place[0] != tail.edition:
                    about = {"name": name, "now": self.index.now(), "about": self.index.about(name)}
                    news.append(("run", about | _since(tail, 0)))
                else:
                    news.append(("rows", {"name": name} | _since(tail, place[1])))
            return news


def _since(tail: Tail, place: int) -> dict[str, Any]:
    return {"rows": tail.rows[place:], "last": tail.last, "error": tail.error}


async def events(follower: Follower, pause: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """Yield the server-sent events of one viewer until ``pause`` returns False."""
    while True:
        for event, data in await asyncio.to_thread(follower.news):
            yield b"event: %b\ndata: %b\n\n" % (event.encode(), to_json(data, inf_nan_mode="null"))
        if not await pause():
            return


def serve(root: Path, listener: socket.socket, hosts: list[str], token: str | None) -> None:
    """Show the runs below a folder until Ctrl-C; see :func:`build`."""
    config = uvicorn.Config(
        build(RunIndex(root), hosts, token),
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,  # streams would stay open until their viewers leave
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # newer versions of uvicorn raise it again after closing
        return
