"""The dashboard's server: one page, a few read-only endpoints, one stream of events per viewer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

from adelfl.dashboard.guard import Guard, Receive, Scope, Send
from adelfl.dashboard.run_index import RunIndex
from adelfl.dashboard.stream import MOST_PICKED, Follower, as_json, events

_POLL = 0.5  # seconds between two looks at the files
_MOST_VIEWERS = 32
_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

Pause = Callable[[], Awaitable[bool]]


def _json(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")


class _Viewers:
    """Number of open streams, and whether the server is shutting down."""

    def __init__(self) -> None:
        self.count = 0
        self.ending = asyncio.Event()

    async def pause(self) -> bool:
        """Wait for the next poll; return False if the server is shutting down."""
        try:
            await asyncio.wait_for(self.ending.wait(), _POLL)
        except TimeoutError:
            return True
        return False


class _EventStream(StreamingResponse):
    """A stream that counts as one viewer while it is open."""

    def __init__(self, viewers: _Viewers, follower: Follower, pause: Pause) -> None:
        super().__init__(events(follower, pause), media_type="text/event-stream")
        self.viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.viewers.count >= _MOST_VIEWERS:
            full = _json({"error": f"{_MOST_VIEWERS} viewers are connected already; close one"}, 503)
            await full(scope, receive, send)
            return
        self.viewers.count += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.viewers.count -= 1


def build(index: RunIndex, pause: Pause | None = None) -> FastAPI:
    """Return the app without its guard.

    Parameters
    ----------
    index : RunIndex
        The runs.
    pause : callable, optional
        Awaited between two polls; a stream ends when it returns False.
    """
    app = FastAPI(title="adelfl", docs_url=None, redoc_url=None, openapi_url=None)
    viewers = app.state.viewers = _Viewers()
    wait = pause or viewers.pause
    static = {
        entry.name: (entry.read_bytes(), _KINDS[entry.name.rpartition(".")[2]])
        for entry in (files("adelfl.dashboard") / "static").iterdir()
        if entry.name.rpartition(".")[2] in _KINDS
    }

    def asset(name: str) -> Response:
        body, kind = static[name]
        return Response(body, media_type=kind)

    @app.get("/")
    async def page() -> Response:
        return asset("index.html")

    @app.get("/static/{name}")
    async def part(name: str) -> Response:
        return asset(name) if name in static else _json({"error": "there is no such file"}, 404)

    @app.get("/api/runs")
    def runs() -> Response:
        return _json(list(index.look().values()))

    @app.get("/api/run")
    def run(name: str) -> Response:
        with index.lock:
            about, tail = index.about(name), index.tail(name)
            if about is None or tail is None:
                return _json({"error": "there is no such run"}, 404)
            return _json({"about": about, "rows": tail.rows, "last": tail.last, "error": tail.error})

    @app.get("/api/round")
    def round(name: str, number: int) -> Response:
        row = index.row(name, number)
        return _json({"error": "there is no such round"}, 404) if row is None else _json(row)

    @app.get("/events")
    async def stream(request: Request) -> Response:
        picked = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(picked) > MOST_PICKED:
            return _json({"error": f"at most {MOST_PICKED} runs can be followed at a time"}, 400)

        async def still_here() -> bool:
            return await wait() and not await request.is_disconnected()

        return _EventStream(viewers, Follower(index, picked), still_here)

    return app


class _Server(uvicorn.Server):
    """Ends its streams on shutdown instead of waiting for viewers to disconnect."""

    def __init__(self, config: uvicorn.Config, viewers: _Viewers) -> None:
        super().__init__(config)
        self.viewers = viewers

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.viewers.ending.set()
        super().handle_exit(sig, frame)


def serve(root: Path, listener: socket.socket, hosts: frozenset[str] | None, token: str | None) -> None:
    """Show the runs below a folder until Ctrl-C.

    Parameters
    ----------
    root : Path
        Folder with the runs.
    listener : socket
        Listening socket.
    hosts : frozenset of str or None
        Host names that viewers may use; None for all.
    token : str or None
        Secret that viewers need; None for none.
    """
    app = build(RunIndex(root, share=_POLL / 2))
    config = uvicorn.Config(
        Guard(app, hosts, token),
        log_level="warning",
        access_log=False,  # the first request contains the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=3,
    )
    try:
        _Server(config, app.state.viewers).run(sockets=[listener])
    except KeyboardInterrupt:  # newer versions of uvicorn raise it again after closing
        return
