"""Exchange of messages with nodes by Flower's grid, with short polls and time limits.

A call of the grid may block: it waits for the upload of a node that has failed, and retries without end if the link is
down. On a real clock, every call therefore runs in its own thread. Replies are pulled in a few groups, so that a
blocked call delays only its own group.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from adelfl.clock import Clock, RealClock

log = logging.getLogger("flwr")

Result = TypeVar("Result")

_BACK_OFF = 0.1  # seconds until a lost message is pulled again, as a share of its age
_GROUPS = 8  # groups in which the replies of one dispatch are pulled
_CALL_SECONDS, _LEAST_CALL = 10.0, 0.5  # largest and smallest time limit of a request for the nodes


@dataclass(frozen=True, eq=False)
class Reply:
    """The answer of a node to the message ``key``, or an error, and the seconds since the message was sent."""

    key: str
    node: int
    seconds: float
    answer: Message | str


@dataclass(eq=False)
class _Group:
    """Messages whose replies are pulled in one call."""

    keys: list[str]
    sent: float
    answer: queue.Queue[list[Message] | Exception] | None = None
    """Queue for the result of a call that is under way."""
    due: float = 0.0
    """Time of the next call."""


class Exchange:
    """Sends messages and collects replies until the run ends. On a virtual clock, calls do not use threads."""

    patience = float("inf")
    """Seconds after which an unanswered message counts as lost, so that its node can get another one. The time doubles
    with each unanswered message."""

    def __init__(self, grid: Grid, clock: Clock, until: float = float("inf")) -> None:
        self.grid, self.clock, self.until = grid, clock, until
        self._threaded = isinstance(clock, RealClock)
        self._open: dict[str, tuple[int, float]] = {}  # node and time of each message without a reply
        self._groups: list[_Group] = []
        self._known: list[int] = []

    @property
    def busy(self) -> set[int]:
        """Nodes that have not answered their last message."""
        now, unanswered, last = self.clock.now(), Counter[int](), dict[int, float]()
        for node, at in self._open.values():
            unanswered[node] += 1
            last[node] = max(at, last.get(node, at))
        return {n for n, at in last.items() if now - at <= self.patience * 2.0 ** (unanswered[n] - 1)}

    def nodes(self) -> list[int]:
        """Return the connected nodes in ascending order; while the link to Flower is down, the last known ones."""
        seconds = min(_CALL_SECONDS, max(_LEAST_CALL, self.until - self.clock.now()))
        nodes = self._bounded(lambda: sorted(self.grid.get_node_ids()), seconds)
        self._known = self._known if nodes is None else nodes
        return list(self._known)

    def send(self, messages: Iterable[Message], until: float = float("inf")) -> dict[str, int]:
        """Send messages, with a time limit, and return the node of each message that was sent."""
        messages, at = list(messages), self.clock.now()
        if not messages:
            return {}
        targets = [message.metadata.dst_node_id for message in messages]
        keys = self._bounded(lambda: list(self.grid.push_messages(messages)), until - at)
        # A key is missing where Flower refused the message.
        sent = {key: node for key, node in zip(keys or [], targets, strict=False) if key}
        self._open |= {key: (node, at) for key, node in sent.items()}
        self._groups += [_Group(list(sent)[i::_GROUPS], at) for i in range(min(_GROUPS, len(sent)))]
        return sent

    def replies(self) -> list[Reply]:
        """Return the replies that have arrived since the last call, and start pulling others.

        Replies to messages that count as lost are pulled less and less often.
        """
        now, replies = self.clock.now(), list[Reply]()
        for group in self._groups:
            if group.answer is None and now >= group.due:
                group.due = now + (_BACK_OFF * (now - group.sent) if now - group.sent > self.patience else 0.0)
                group.answer = self._start(partial(self._pull, group.keys))
        for group in [group for group in self._groups if group.answer is not None and not group.answer.empty()]:
            messages, group.answer = group.answer.get(), None  # type: ignore[union-attr]
            replies += self._failed(group, messages) if isinstance(messages, Exception) else self._taken(messages)
            group.keys = [key for key in group.keys if key in self._open]
        self._groups = [group for group in self._groups if group.keys]
        return replies

    def _pull(self, keys: list[str]) -> list[Message]:
        return list(self.grid.pull_messages(keys))

    def _taken(self, messages: list[Message]) -> list[Reply]:
        now, replies = self.clock.now(), []
        for message in messages:
            key = message.metadata.reply_to_message_id
            if key in self._open:  # otherwise, the reply is unknown or repeated
                node, at = self._open.pop(key)
                error = f"code {message.error.code}: {message.error.reason}" if message.has_error() else ""
                replies.append(Reply(key, node, now - at, error or message))
        return replies

    def _failed(self, group: _Group, error: Exception) -> list[Reply]:
        """Handle a failed pull: pull the messages one by one, to identify a reply that Flower cannot unpack."""
        if _is_network(error):
            return []
        if len(group.keys) > 1:
            self._groups += [_Group([key], group.sent) for key in group.keys]
            group.keys = []
            return []
        key = group.keys[0]
        node, at = self._open.pop(key)
        return [Reply(key, node, self.clock.now() - at, f"{type(error).__name__}: {error}")]

    def _start(self, call: Callable[[], Result]) -> queue.Queue[Result | Exception]:
        """Call a function in a new thread; the queue receives its result or error."""
        answer: queue.Queue[Result | Exception] = queue.Queue()

        def work() -> None:
            try:
                answer.put(call())
            except Exception as error:
                answer.put(error)

        if self._threaded:
            threading.Thread(target=work, daemon=True).start()
        else:
            work()
        return answer

    def _bounded(self, call: Callable[[], Result], seconds: float) -> Result | None:
        """Return the result of a call; None if the network fails or the call takes too long."""
        try:
            result = self._start(call).get(timeout=None if seconds == float("inf") else max(0.0, seconds))
        except queue.Empty:
            log.warning("Flower did not answer within %.1f s", seconds)
            return None
        if isinstance(result, Exception):
            if not _is_network(result):
                raise result
            return None
        return result


def _is_network(error: Exception) -> bool:
    """Return whether an error is a temporary error of the network."""
    kind = type(error)
    temporary = isinstance(error, OSError) or kind.__module__.partition(".")[0] in ("httpx", "httpcore", "grpc")
    if temporary:
        log.warning("the link to Flower is down for the moment (%s: %s)", kind.__name__, error)
    return temporary
