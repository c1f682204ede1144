"""The dashboard's server: one page, a few read-only endpoints, one stream of events per viewer."""

from __future__ import annotations

import asyncio
import mimetypes
import socket
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles

from adelfl.dashboard.guard import Guard
from adelfl.dashboard.run_index import RunIndex
from adelfl.dashboard.stream import MOST_PICKED, Follower, as_json, events

_POLL = 0.5  # seconds between two looks at the files
_MOST_CONNECTIONS = 128


def _json(value: object, status: int = 200) -> Response:
    return Response(as_json(value), status, media_type="application/json")


def build(index: RunIndex, pause: Callable[[], Awaitable[bool]] | None = None) -> FastAPI:
    """Return the app without its guard.

    Parameters
    ----------
    index : RunIndex
        The runs.
    pause : callable, optional
        Awaited between two polls; a stream ends when it returns False.
    """
    app = FastAPI(title="adelfl", docs_url=None, redoc_url=None, openapi_url=None)
    mimetypes.add_type("text/javascript", ".js")  # some systems say text/plain, which browsers refuse
    app.mount("/static", StaticFiles(packages=[("adelfl.dashboard", "static")]))
    ending = app.state.ending = asyncio.Event()

    async def until_next_poll() -> bool:
        """Wait; return False if the server is shutting down."""
        try:
            await asyncio.wait_for(ending.wait(), _POLL)
        except TimeoutError:
            return True
        return False

    @app.get("/")
    async def page() -> Response:
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
        messages = events(Follower(index, picked), pause or until_next_poll)
        return StreamingResponse(messages, media_type="text/event-stream")

    return app


class _Server(uvicorn.Server):
    """Ends its streams on shutdown instead of waiting for viewers to disconnect."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self.ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.ending.set()
        super().handle_exit(sig, frame)


def build_server(root: Path, hosts: frozenset[str] | None, token: str | None) -> uvicorn.Server:
    """Return the server of the runs below a folder; see :func:`serve`."""
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
        limit_concurrency=_MOST_CONNECTIONS,
    )
    return _Server(config, app.state.ending)


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
    try:
        build_server(root, hosts, token).run(sockets=[listener])
    except KeyboardInterrupt:  # newer versions of uvicorn raise it again after closing
        return
