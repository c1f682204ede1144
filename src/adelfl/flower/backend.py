"""The Flower backend: a real clock, messages, and nodes that compute.

Devices are numbered in the order in which their nodes first appear. Every reply is checked before it is used; a reply
that fails a check is treated as missing.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message

from adelfl.atomic import Weights
from adelfl.flower.exchange import Exchange, Reply
from adelfl.flower.protocol import Report, Task
from adelfl.flower.replies import Delivery, admitted, gradient_stats, merged, metrics_of
from adelfl.planner.beliefs import Timing
from adelfl.runtime.backend import Backend, Compute, Computed
from adelfl.seeds import rng_for
from adelfl.strategies.actions import Arrivals, Event, Floats, Ints, Joined, Late, Merge, Tasks, Timer
from adelfl.strategies.deployment import LAST
from adelfl.updates import NormGuard, Shape, UpdateRejected

if TYPE_CHECKING:
    from adelfl.flower.strategy import DeadlineStrategy

log = logging.getLogger("flwr")

_LONGEST_POLL, _SHORTEST_POLL = 0.25, 0.01
_LOOK = 1.0  # seconds between two requests of the connected nodes
_PATIENCE = 3.0  # cutoffs, or round trips, after which a message without an answer counts as lost
_LEAST_PATIENCE = 60.0  # seconds, for tasks without a cutoff
_OVERDUE = 1.5  # times after which a device should have stopped, for such tasks
_FIRST_PATIENCE = 0.1  # share of the budget, before any cutoff or round trip is known
_FAILED = 0.02  # shortest duration of a round without any update, as a share of the budget
_GRACE = 1.1  # longest duration of a round that waits for late answers, relative to its deadline


@dataclass(eq=False)
class _Dispatch:
    """Tasks that were sent, and their answers by position."""

    tasks: Tasks
    number: int
    version: int
    began: float
    end: float
    latest: float
    """Time until which the round waits for missing answers."""
    start: Weights
    assigned: dict[int, Task] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    closed: bool = False


class OnFlower(Backend):
    """Execute tasks on the nodes of a Flower deployment, with the settings of a DeadlineStrategy."""

    def __init__(
        self, exchange: Exchange, shape: Shape, message: Callable[[int, Task], Message], settings: DeadlineStrategy
    ) -> None:
        self.exchange, self.shape, self.message = exchange, shape, message
        self.settings, self.budget = settings, settings.budget
        self.clock, self.L = exchange.clock, len(shape.layers)
        self.norms = NormGuard(shape, settings.norm_limit)
        self.roster: list[int] = []  # Flower's number of each device's node
        self._devices: dict[int, int] = {}  # device of each node
        self.rejected: Counter[str] = Counter()  # by reason, since the last row
        self.late: Counter[str] = Counter()  # by round, since the last row
        self.accepted: list[Message] = []  # replies of the last merge
        self.last_error = ""  # of the last rejected reply
        self.answered = False  # whether any node has answered with content
        self.dispatched = 0
        self._open: list[_Dispatch] = []
        self._by_key: dict[str, tuple[_Dispatch, int]] = {}
        self._deliveries: dict[tuple[int, int], Delivery] = {}  # by number of the dispatch, and device
        self._events: deque[Event] = deque()
        self._recent: dict[int, list[float]] = {}  # norms of the last single arrival of each device
        self._available: set[int] = set()  # devices that were reported to the strategy as available
        self._look_at, self._longest, self._least_patience = 0.0, 0.0, _LEAST_PATIENCE

    def now(self) -> float:
        """Seconds since the run began."""
        return self.clock.now()

    def cohort(self, k: int, size: int | None) -> Ints:
        """Return the devices that are connected and idle, or a random choice of them."""
        idle = self._idle()
        self._available |= set(idle.tolist())
        if size is None or size >= idle.size:
            return idle
        return np.sort(rng_for(self.settings.seed, "cohort", k).choice(idle, size, replace=False))

    def idle_nodes(self) -> list[int]:
        """Return the connected nodes, by Flower's numbers, without unanswered messages."""
        busy = self.exchange.busy
        return [node for node in self.exchange.nodes() if node not in busy]

    def _idle(self) -> Ints:
        idle = self.idle_nodes()
        self.enroll(idle)
        return np.array(sorted(self._devices[node] for node in idle), dtype=np.int64)

    def enroll(self, nodes: Iterable[int]) -> None:
        """Add new nodes to the roster."""
        for node in nodes:
            if node not in self._devices:
                self._devices[node] = len(self.roster)
                self.roster.append(node)

    # -- tasks

    def resume(self, dispatched: int) -> None:
        """Count further dispatches from those of an earlier process."""
        self.dispatched = dispatched

    def dispatch(self, tasks: Tasks, version: int) -> None:
        """Send every device its task."""
        number, self.dispatched = self.dispatched, self.dispatched + 1
        now, busy = self.now(), self.exchange.busy
        idle = [i for i, u in enumerate(tasks.devices) if tasks.batch[i] > 0 and self.roster[u] not in busy]
        last = max(now, self.budget - LAST)
        end, latest = (min(now + factor * tasks.cutoff, last) if tasks.together else math.inf for factor in (1, _GRACE))
        sent = _Dispatch(tasks, number, version, now, end, latest, self.settings.run.weights)
        messages = [self.message(self.roster[tasks.devices[i]], self._task(tasks, i, version)) for i in idle]
        position = {self.roster[tasks.devices[i]]: i for i in idle}
        for key, node in self.exchange.send(messages, min(sent.end, self.budget)).items():
            i = position[node]
            sent.assigned[i] = self._task(tasks, i, version)
            self._by_key[key] = (sent, i)
        if math.isfinite(tasks.cutoff):
            self.exchange.patience = _PATIENCE * max(1.0, tasks.cutoff)
        else:
            known = _FIRST_PATIENCE * self.budget if math.isinf(self.exchange.patience) else self.exchange.patience
            stop = 0.0 if tasks.stop is None else float(tasks.stop.max())
            self._least_patience = max(_LEAST_PATIENCE, _OVERDUE * stop)
            self.exchange.patience = max(self._least_patience, known)
        if tasks.together:
            self._open.append(sent)
        else:
            self._available -= set(tasks.devices.tolist())

    def _task(self, tasks: Tasks, i: int, version: int) -> Task:
        pace = None if tasks.pace is None else tasks.pace[i]
        return Task(
            round=version + 1,
            batch=int(tasks.batch[i]),
            iterations=int(tasks.each_steps[i]),
            rate=tasks.rate,
            proximal=tasks.proximal,
            seconds=math.inf if tasks.stop is None else float(tasks.stop[i]),
            layers=self.shape.layers,
            pace=() if pace is None or np.isnan(pace).any() else tuple(pace.tolist()),
            oversample=self.settings.oversample,
        )

    # -- events

    def next(self, wake_at: float | None) -> Event | None:
        """Wait for an event; None when the budget is over."""
        while True:
            for reply in self.exchange.replies():
                self._take(reply)
            if self._events:
                return self._events.popleft()
            now = self.now()
            for sent in self._open:
                if self._is_over(sent, now):
                    self._open.remove(sent)
                    return self._close(sent)
            if now >= self.budget:
                return None
            if wake_at is not None and now >= wake_at:
                return Timer()
            if now >= self._look_at:
                self._look_at = now + _LOOK
                new = np.array([u for u in self._idle().tolist() if u not in self._available], dtype=np.int64)
                self._available |= set(new.tolist())
                if new.size:
                    return Joined(new)
            ends = [sent.end if now < sent.end else sent.latest for sent in self._open]
            until = min([wake_at or math.inf, self.budget, *ends])
            poll = min(_LONGEST_POLL, max(_SHORTEST_POLL, (until - now) / 50))
            self.clock.sleep_until(min(until, now + poll))

    def _is_over(self, sent: _Dispatch, now: float) -> bool:
        """Return whether the cutoff has passed, or all devices have answered.

        Devices stop in time for the cutoff, but messages may take longer than usual. The round waits for late answers
        up to ``latest``, since a late device loses the work of this round and cannot start in the next. A round without
        any update has a shortest duration, so that temporary errors do not use up the rounds.
        """
        complete = sent.assigned.keys() <= sent.answered
        if now >= sent.latest:
            return True
        if complete and not any(d.done for d in sent.deliveries.values()):
            return now >= sent.began + max(1.0, _FAILED * self.budget)
        whole = sum(d.done >= self.L * sent.assigned[i].iterations for i, d in sent.deliveries.items())
        if sent.tasks.enough is not None and whole >= sent.tasks.enough:
            return True
        return complete and (sent.tasks.early or now >= sent.end)

    def _take(self, reply: Reply) -> None:
        """Check a reply, and store or report its update."""
        sent, i = self._by_key.pop(reply.key, (None, -1))
        if sent is None:
            return
        if sent.closed:
            self._too_late(reply, sent, i)
            return
        sent.answered.add(i)
        self.answered = self.answered or not isinstance(reply.answer, str)
        try:
            delivery = admitted(reply, sent.assigned[i], self.shape, sent.start, self.settings)
            if not sent.tasks.together:
                self._compare(int(sent.tasks.devices[i]), delivery.changes)
        except UpdateRejected as rejection:
            self._reject(sent, i, rejection)
            return
        sent.deliveries[i] = delivery
        if not sent.tasks.together:
            self._available.add(int(sent.tasks.devices[i]))
            self._longest = max(self._longest, reply.seconds)
            self.exchange.patience = max(self._least_patience, _PATIENCE * self._longest)
            self._events.append(self._arrivals(sent, sent.tasks.only(np.array([i])), [i]))

    def _compare(self, u: int, changes: Weights) -> None:
        """Compare the norms of a single arrival with those of the other devices' last arrivals."""
        others = [other for v, other in self._recent.items() if v != u]
        self._recent[u] = own = self.norms.norms(changes)
        # It counts for others even if it is rejected, so that the norms of all devices can change together.
        if rejection := self.norms.out_of_line([own, *others]).get(0):
            raise rejection

    def _close(self, sent: _Dispatch) -> Arrivals:
        """Compare the norms of all updates of a round, and return its arrivals."""
        sent.closed = True
        positions = list(sent.deliveries)
        updates = [self.norms.norms(sent.deliveries[i].changes) for i in positions]
        for k, rejection in self.norms.out_of_line(updates).items():
            del sent.deliveries[positions[k]]
            self._reject(sent, positions[k], rejection)
        arrivals = self._arrivals(sent, sent.tasks, range(sent.tasks.devices.size))
        sent.deliveries, sent.start = {}, {}  # frees their memory, even if a message is never answered
        return arrivals

    def _arrivals(self, sent: _Dispatch, tasks: Tasks, positions: Sequence[int]) -> Arrivals:
        z, seconds, upload = np.zeros(len(positions), dtype=np.int64), *np.full((2, len(positions)), math.nan)
        timings: list[Timing | None] = [None] * len(positions)
        for k, i in enumerate(positions):
            if (delivery := sent.deliveries.get(i)) is None:
                continue
            self._deliveries[sent.number, int(tasks.devices[k])] = delivery
            compute, z[k] = delivery.report.compute, delivery.done
            timings[k] = delivery.report.timing(delivery.seconds)
            if delivery.done and 0 < compute <= delivery.seconds:
                seconds[k], upload[k] = compute, delivery.seconds - compute
        return Arrivals(tasks, sent.number, sent.version, sent.began, z, seconds, upload, tuple(timings))

    def _too_late(self, reply: Reply, sent: _Dispatch, i: int) -> None:
        """Report a late answer, of which only the durations are used."""
        task, late = sent.assigned[i], f"{reply.seconds:.2f} s after it was sent"
        why = reply.answer if isinstance(reply.answer, str) else late
        self.late[str(task.round)] += 1
        log.warning("round %d, node %d: rejected, late: %s", task.round, reply.node, why)
        if not isinstance(reply.answer, str):
            report = Report.read(metrics_of(reply.answer), self.L)
            if (timing := report.timing(reply.seconds)) is not None:
                done = report.done if type(report.done) is int else 0
                done = max(0, min(done, self.L * task.iterations))
                self._events.append(Late(int(sent.tasks.devices[i]), task.batch, done, report.compute, timing))

    def _reject(self, sent: _Dispatch, i: int, rejection: UpdateRejected) -> None:
        self.rejected[rejection.reason.value] += 1
        self.last_error = f"node {self.roster[sent.tasks.devices[i]]}: {rejection}"
        log.warning("round %d, %s", sent.version + 1, self.last_error)

    def collect(self, messages: Sequence[Message], until: float) -> list[Message]:
        """Send messages that are not tasks, and return the answers that arrive until a time."""
        keys = set(self.exchange.send(messages, until))
        answers = []
        while keys and self.now() < until:
            for reply in self.exchange.replies():
                if reply.key not in keys:
                    self._take(reply)
                    continue
                keys.discard(reply.key)
                if not isinstance(reply.answer, str):
                    answers.append(reply.answer)
            if keys:
                self.clock.sleep_until(min(until, self.now() + _LONGEST_POLL / 5))
        return answers

    # -- computing

    def prepare(self, merges: Sequence[Merge]) -> list[Compute]:
        """Return functions that merge the delivered updates."""
        return [partial(self._compute, merge) for merge in merges]

    def _compute(self, merge: Merge) -> Computed:
        reported = self._losses(merge) if merge.losses else None
        used: list[tuple[Delivery, Floats]] = []
        for arrivals, A in zip(merge.arrivals, merge.A, strict=True):
            for u, row in zip(arrivals.tasks.devices.tolist(), A, strict=True):
                delivery = self._deliveries.pop((arrivals.number, u), None)
                if delivery is not None and delivery.done:
                    used.append((delivery, row))
        stats, tasks = None, merge.arrivals[0].tasks
        if merge.spread and used:
            stats = gradient_stats([d for d, _ in used], self.shape, tasks.rate, int(tasks.each_steps.max()))
        counting = [(d, row) for d, row in used if row.any()]
        self.accepted = [d.message for d, _ in counting]
        if not counting:
            return Computed(None, stats, reported)
        change = merged(counting, self.shape, self.settings.run.weights, merge.of)
        if change is None:
            log.warning("the merged model would not be finite; the weights are not changed")
            self.accepted = []
        return Computed(change, stats, reported)

    def _losses(self, merge: Merge) -> Floats:
        """Return the loss that each device reports; NaN if it delivered nothing."""
        keys = [(a.number, u) for a in merge.arrivals for u in a.tasks.devices.tolist()]
        return np.array([self._deliveries[key].loss if key in self._deliveries else math.nan for key in keys])
