"""Server-sent events of one viewer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from adelfl.dashboard.rows import Tail
from adelfl.dashboard.run_index import Card, RunIndex

MOST_PICKED = 8
_HEARTBEAT = 30  # polls without news after which a comment is sent


def as_json(value: object) -> str:
    """Return JSON for browsers: without NaN, and in ASCII, since a record may contain lone surrogates."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def message(event: str, data: object) -> bytes:
    """Encode one server-sent event."""
    return f"event: {event}\ndata: {as_json(data)}\n\n".encode()


class Follower:
    """Keeps track of what was sent to a viewer.

    Parameters
    ----------
    index : RunIndex
        The runs.
    picked : sequence of str
        Names of the runs whose rows are sent.
    """

    def __init__(self, index: RunIndex, picked: list[str]) -> None:
        self.index = index
        self._cards: dict[str, Card] | None = None
        self._places: dict[str, tuple[int, int, str | None] | None] = dict.fromkeys(picked, (-1, 0, None))

    def news(self) -> list[bytes]:
        """Return the messages since the last call: ``runs``, ``run``, ``rows`` (appended to a run), ``gone``."""
        with self.index.lock:
            messages = self._list()
            for name, place in self._places.items():
                tail = self.index.tail(name)
                now = None if tail is None else (tail.edition, len(tail.rows), tail.error)
                if now == place:
                    continue
                self._places[name] = now
                if tail is None or now is None:
                    messages.append(message("gone", {"name": name}))
                elif place is None or place[0] != tail.edition:
                    messages.append(message("run", self._whole(name, tail)))
                else:
                    messages.append(message("rows", {"name": name} | _since(tail, place[1])))
            return messages

    def _list(self) -> list[bytes]:
        cards, before = self.index.look(), self._cards
        self._cards = cards
        changed = [card for name, card in cards.items() if before is None or before.get(name) != card]
        gone = [] if before is None else [name for name in before if name not in cards]
        if before is not None and not changed and not gone:
            return []
        first = before is None
        return [message("runs", {"first": first, "now": self.index.now(), "changed": changed, "gone": gone})]

    def _whole(self, name: str, tail: Tail) -> dict[str, Any]:
        return {"name": name, "now": self.index.now(), "about": self.index.about(name)} | _since(tail, 0)


def _since(tail: Tail, place: int) -> dict[str, Any]:
    return {"rows": tail.rows[place:], "last": tail.last, "error": tail.error}


async def events(follower: Follower, pause: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """Yield the messages of one viewer until ``pause`` returns False."""
    quiet = 0
    while True:
        news = await asyncio.to_thread(follower.news)
        for text in news:
            yield text
        quiet = 0 if news else quiet + 1
        if quiet >= _HEARTBEAT:
            quiet = 0
            yield b": still here\n\n"
        if not await pause():
            return
