"""Messages out, replies in: Flower's grid with a short poll, and nothing waited for longer than it is worth."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from adelfl.clock import Clock

log = logging.getLogger("flwr")

_LONGEST_POLL, _SHORTEST_POLL = 0.25, 0.01


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
    message : Message
        With content or with an error.
    """

    node: int
    round: int
    arrived: float
    message: Message

    @property
    def error(self) -> str | None:
        """Why there is no content, in Flower's words."""
        if not self.message.has_error():
            return None
        return f"code {self.message.error.code}: {self.message.error.reason}"


@dataclass(frozen=True)
class _Sent:
    node: int
    round: int
    at: float


class Exchange:
    """Keeps track of what was sent and not answered yet, over all rounds.

    Parameters
    ----------
    grid : Grid
        Flower's.
    clock : Clock
        Whose seconds count.
    """

    def __init__(self, grid: Grid, clock: Clock) -> None:
        self.grid, self.clock = grid, clock
        self._open: dict[str, _Sent] = {}

    @property
    def busy(self) -> set[int]:
        """Nodes that have not answered yet: another message would only queue up behind the first."""
        return {sent.node for sent in self._open.values()}

    def nodes(self) -> list[int]:
        """Nodes that are connected, in ascending order; none while the link to Flower is down."""
        try:
            return sorted(self.grid.get_node_ids())
        except Exception as trouble:
            _only_if_passing(trouble)
            return []

    def send(self, messages: Iterable[Message], round: int) -> set[int]:
        """Send messages of a round; the nodes that they went out to."""
        messages, at = list(messages), self.clock.now()
        targets = [message.metadata.dst_node_id for message in messages]
        try:
            ids = list(self.grid.push_messages(messages))
        except Exception as trouble:
            _only_if_passing(trouble)
            return set()
        # An entry is missing where Flower refused the message.
        sent = {id: _Sent(node, round, at) for id, node in zip(ids, targets, strict=False) if id}
        self._open.update(sent)
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
        if not self._open:
            return []
        try:
            messages = list(self.grid.pull_messages(list(self._open)))
        except Exception as trouble:
            _only_if_passing(trouble)
            return []
        now, found = self.clock.now(), []
        for message in messages:
            sent = self._open.pop(message.metadata.reply_to_message_id, None)
            if sent is not None:  # otherwise it answers nothing that was asked, or was answered before
                found.append(Reply(sent.node, sent.round, now - sent.at, message))
        return found


def _only_if_passing(trouble: Exception) -> None:
    """Let a network's troubles pass, since they may be over by the next poll; raise anything else."""
    kind = type(trouble)
    if not isinstance(trouble, OSError) and kind.__module__.partition(".")[0] not in ("httpx", "httpcore", "grpc"):
        raise trouble
    log.warning("the link to Flower is down for the moment (%s: %s)", kind.__name__, trouble)
