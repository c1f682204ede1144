"""What one viewer is told as it happens: server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from adelfl.dashboard.rows import Tail
from adelfl.dashboard.run_index import Card, RunIndex

MOST_PICKED = 8
_HEARTBEAT = 30  # looks without news after which a sign of life is sent


def as_json(value: object) -> str:
    """JSON that browsers read: no NaN, and pure ASCII, since a record may hold half a character."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def message(event: str, data: object) -> bytes:
    """One server-sent event."""
    return f"event: {event}\ndata: {as_json(data)}\n\n".encode()


class Follower:
    """Knows what a viewer was told, and tells the rest.

    Parameters
    ----------
    shelf : RunIndex
        Where runs are.
    picked : sequence of str
        Runs whose rows the viewer wants.
    """

    def __init__(self, shelf: RunIndex, picked: list[str]) -> None:
        self.shelf = shelf
        self._cards: dict[str, Card] | None = None
        self._places: dict[str, tuple[int, int, str | None] | None] = dict.fromkeys(picked, (-1, 0, None))

    def news(self) -> list[bytes]:
        """Messages since the last call: ``runs``, ``run`` (a picked one), ``rows`` (what was added to it), ``gone``."""
        with self.shelf.lock:
            found = self._list()
            for name, place in self._places.items():
                tail = self.shelf.tail(name)
                now = None if tail is None else (tail.edition, len(tail.rows), tail.error)
                if now == place:
                    continue
                self._places[name] = now
                if tail is None or now is None:
                    found.append(message("gone", {"name": name}))
                elif place is None or place[0] != tail.edition:
                    found.append(message("run", self._whole(name, tail)))
                else:
                    found.append(message("rows", {"name": name} | _since(tail, place[1])))
            return found

    def _list(self) -> list[bytes]:
        cards, before = self.shelf.look(), self._cards
        self._cards = cards
        changed = [card for name, card in cards.items() if before is None or before.get(name) != card]
        gone = [] if before is None else [name for name in before if name not in cards]
        if before is not None and not changed and not gone:
            return []
        first = before is None
        return [message("runs", {"first": first, "now": self.shelf.now(), "changed": changed, "gone": gone})]

    def _whole(self, name: str, tail: Tail) -> dict[str, Any]:
        return {"name": name, "now": self.shelf.now(), "about": self.shelf.about(name)} | _since(tail, 0)


def _since(tail: Tail, place: int) -> dict[str, Any]:
    return {"rows": tail.rows[place:], "last": tail.last, "error": tail.error}


async def events(follower: Follower, pause: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """Messages for one viewer, until a pause says that there is nobody to tell them to."""
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
