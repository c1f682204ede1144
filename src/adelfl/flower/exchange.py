"""Messages out, replies in: Flower's grid with a short poll, and nothing waited for longer than it is worth.

A call of the grid may block: pulling a reply waits for uploads that a dying node never completes, and a link that is
down is tried for ever. So on a real clock calls are made in threads of their own, replies are pulled in a few groups,
and a group that hangs holds up nobody else.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from adelfl.clock import Clock, RealClock

log = logging.getLogger("flwr")

Result = TypeVar("Result")

_LONGEST_POLL, _SHORTEST_POLL = 0.25, 0.01
_GROUPS = 8  # in which a round's replies are pulled
_CALL_SECONDS = 10.0  # that a list of nodes may take


@dataclass(frozen=True, eq=False)
class Reply:
    """What came back of one message.

    Attributes
    ----------
    node : int
        Whom the message was for. An error reply says another sender than that.
    round : int
        Of the message.
    arrived : float
        Seconds after it was sent.
    due : float
        Seconds after sending by which it was wanted.
    message : Message or None
        With content or with an error; None if it could not be read at all.
    trouble : str
        Why not.
    """

    node: int
    round: int
    arrived: float
    due: float
    message: Message | None
    trouble: str = ""

    @property
    def error(self) -> str | None:
        """Why there is no content, in Flower's words."""
        if self.message is None:
            return self.trouble
        if not self.message.has_error():
            return None
        return f"code {self.message.error.code}: {self.message.error.reason}"


@dataclass(frozen=True)
class _Sent:
    node: int
    round: int
    at: float
    due: float


@dataclass(eq=False)
class _Group:
    """Messages whose replies are pulled in one call."""

    ids: list[str]
    pulling: bool = field(default=False)


class Exchange:
    """Keeps track of what was sent and not answered yet, over all rounds.

    Parameters
    ----------
    grid : Grid
        Flower's.
    clock : Clock
        Whose seconds count. On any but a real clock, calls are made one after another.
    """

    def __init__(self, grid: Grid, clock: Clock) -> None:
        self.grid, self.clock = grid, clock
        self.patience = float("inf")
        self._threaded = isinstance(clock, RealClock)
        self._open: dict[str, _Sent] = {}
        self._groups: list[_Group] = []
        self._pulled: queue.Queue[tuple[_Group, list[Message] | Exception]] = queue.Queue()
        self._known: list[int] = []

    @property
    def busy(self) -> set[int]:
        """Nodes that have not answered yet: another message would only queue up behind the first.

        One that is silent for longer than ``patience`` seconds has lost its message, and may be asked again.
        """
        since = self.clock.now() - self.patience
        return {sent.node for sent in self._open.values() if sent.at >= since}

    def nodes(self) -> list[int]:
        """Nodes that are connected, in ascending order; those of before while the link to Flower is down."""
        found = self._bounded(lambda: sorted(self.grid.get_node_ids()), _CALL_SECONDS)
        self._known = self._known if found is None else found
        return list(self._known)

    def send(self, messages: Iterable[Message], round: int, until: float = float("inf")) -> set[int]:
        """Send messages of a round, which may take until a moment; the nodes that they went out to."""
        messages, at = list(messages), self.clock.now()
        if not messages:
            return set()
        targets = [message.metadata.dst_node_id for message in messages]
        ids = self._bounded(lambda: list(self.grid.push_messages(messages)), until - at)
        # An entry is missing where Flower refused the message.
        sent = {i: _Sent(node, round, at, until - at) for i, node in zip(ids or [], targets, strict=False) if i}
        self._open.update(sent)
        names = list(sent)
        self._groups += [_Group(names[i::_GROUPS]) for i in range(min(_GROUPS, len(names)))]
        return {s.node for s in sent.values()}

    def gather(self, wanted: set[int], round: int, until: float) -> Iterator[Reply]:
        """Replies as they come, late ones of earlier rounds too, until all that are wanted are there or time is up."""
        missing = set(wanted)
        poll = min(_LONGEST_POLL, max(_SHORTEST_POLL, (until - self.clock.now()) / 50))
        while True:
            last = self.clock.now() >= until
            for reply in self._pull():
                if reply.round == round:
                    missing.discard(reply.node)
                yield reply
            if last or not missing:
                return
            self.clock.sleep_until(min(until, self.clock.now() + poll))

    def _pull(self) -> list[Reply]:
        """Replies that are here by now; calls for more are under way."""
        for group in self._groups:
            if not group.pulling:
                group.pulling = True
                self._start(lambda group=group: self._pull_group(group))  # type: ignore[misc]
        found: list[Reply] = []
        while not self._pulled.empty():
            group, messages = self._pulled.get()
            group.pulling = False
            found += self._troubled(group, messages) if isinstance(messages, Exception) else self._taken(messages)
            group.ids = [i for i in group.ids if i in self._open]
        self._groups = [group for group in self._groups if group.ids]
        return found

    def _pull_group(self, group: _Group) -> None:
        try:
            self._pulled.put((group, list(self.grid.pull_messages(group.ids))))
        except Exception as trouble:
            self._pulled.put((group, trouble))

    def _taken(self, messages: list[Message]) -> list[Reply]:
        now, found = self.clock.now(), []
        for message in messages:
            sent = self._open.pop(message.metadata.reply_to_message_id, None)
            if sent is not None:  # otherwise it answers nothing that was asked, or was answered before
                found.append(Reply(sent.node, sent.round, now - sent.at, sent.due, message))
        return found

    def _troubled(self, group: _Group, trouble: Exception) -> list[Reply]:
        """A reply that Flower cannot even unpack is its sender's trouble; to find out whose, ask one by one."""
        if _is_network(trouble):
            return []
        if len(group.ids) > 1:
            self._groups += [_Group([i]) for i in group.ids]
            group.ids = []
            return []
        sent = self._open.pop(group.ids[0])
        said = f"{type(trouble).__name__}: {trouble}"
        return [Reply(sent.node, sent.round, self.clock.now() - sent.at, sent.due, None, said)]

    def _start(self, call: Callable[[], None]) -> None:
        if self._threaded:
            threading.Thread(target=call, daemon=True).start()
        else:
            call()

    def _bounded(self, call: Callable[[], Result], seconds: float) -> Result | None:
        """What a call gives, or None if the network fails it or it takes too long."""
        answer: queue.Queue[Result | Exception] = queue.Queue()

        def work() -> None:
            try:
                answer.put(call())
            except Exception as trouble:
                answer.put(trouble)

        self._start(work)
        try:
            found = answer.get(timeout=None if seconds == float("inf") else max(0.0, seconds))
        except queue.Empty:
            log.warning("Flower did not answer within %.1f s", seconds)
            return None
        if isinstance(found, Exception):
            if not _is_network(found):
                raise found
            return None
        return found


def _is_network(trouble: Exception) -> bool:
    """Whether it may be over by the next poll."""
    kind = type(trouble)
    passing = isinstance(trouble, OSError) or kind.__module__.partition(".")[0] in ("httpx", "httpcore", "grpc")
    if passing:
        log.warning("the link to Flower is down for the moment (%s: %s)", kind.__name__, trouble)
    return passing
