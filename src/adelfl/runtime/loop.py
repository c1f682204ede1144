"""The loop of simulated and real runs: it passes events to the strategy, and executes its actions.

    event ──► strategy.react(view, event) ──► merge? ──► dispatch ──► next event, until the budget is used up

The sequence of tasks and merges does not depend on the weights, unless a strategy requests gradient statistics or
losses. Decisions can therefore run ahead of computing: :meth:`Loop.steps` decides, and :meth:`Loop.run` computes.

A run on a real clock logs every :class:`Reaction`. Given that log, :meth:`Loop.steps` repeats the same decisions, to
resume a deployment after a crash, or to replay it on the simulated backend.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from adelfl.runtime.backend import Backend, Compute, Computed
from adelfl.runtime.reactions import Reaction
from adelfl.strategies.actions import Event, Ints, Merge, Merged, Started, Tasks, View
from adelfl.strategies.base import Strategy

_ROUNDING = 1e-9
"""Share of the budget by which sums of deadlines may exceed it."""


@dataclass(eq=False)
class Step:
    """A merge, which is decided first and computed later."""

    version: int
    """Version of the weights after the merge, from 1."""
    began: float
    """Time of the previous step."""
    time: float
    merge: Merge
    following: float = math.nan
    """Time of the next step; infinite for the last step, NaN if unknown."""
    computed: Computed | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the row in the record that are known before the merge is computed."""


class Loop:
    """Run a strategy on a backend until the budget is over; ``log`` receives every reaction."""

    def __init__(
        self, strategy: Strategy, backend: Backend, budget: float, log: Callable[[Reaction], None] | None = None
    ) -> None:
        self.strategy, self.backend, self.budget, self.log = strategy, backend, budget, log
        self.version = 0
        self.dispatched: list[Tasks] = []  # with a log only

    def run(self, steps: Iterator[Step], apply: Callable[[Step], None], keep: Callable[[Step], None]) -> None:
        """Compute steps until the end; ``apply`` moves the model by a computed step, ``keep`` then records the step."""
        upcoming = self._decided(steps)
        while upcoming:
            step, compute = upcoming.popleft()
            step.computed = compute()
            apply(step)
            if self.backend.ahead > 1:  # whether a step is evaluated depends on the time of the next one
                upcoming = upcoming or self._decided(steps)
                step.following = upcoming[0][0].time if upcoming else math.inf
                keep(step)
            else:
                keep(step)
                upcoming = self._decided(steps)

    def _decided(self, steps: Iterator[Step]) -> deque[tuple[Step, Compute]]:
        """Decide some steps ahead, up to one whose results the strategy requests."""
        decided: list[Step] = []
        filled = 0.0
        for step in islice(steps, self.backend.ahead):
            decided.append(step)
            filled += self.backend.fills(step.merge)
            if step.merge.spread or step.merge.losses or filled >= 1.0:
                break
        return deque(zip(decided, self.backend.prepare([step.merge for step in decided]), strict=True))

    def steps(self, past: Iterable[Reaction] = ()) -> Iterator[Step]:
        """Yield every merge of the run. One that requests statistics must be computed before the next is taken.

        ``past`` contains the reactions of an earlier process, which are repeated before the backend reports events. As
        the tasks that were under way are lost, the strategy then receives another :class:`Started` event.
        """
        events: deque[Event] = deque([Started()])
        wake_at: float | None = None
        began = self.backend.now()
        before, resumed = iter(past), False
        while True:
            old = next(before, None)
            if old is None and resumed:
                events.appendleft(Started())
                self.backend.resume(len(self.dispatched))
            resumed = old is not None
            event: Event | None
            if old is not None:
                if old.event["kind"] == "started" and not (events and isinstance(events[0], Started)):
                    events.appendleft(Started())  # here, an earlier process resumed the run
                event, now = (events.popleft() if events else old.event_of(self.dispatched)), old.now
                view = View(now, self.budget, self.version, old.cohort)
            else:
                event = events.popleft() if events else self.backend.next(wake_at)
                now = self.backend.now()
                if event is None or now > self.budget * (1.0 + _ROUNDING):
                    return
                view, drawn = self._view(now)
            actions = self.strategy.react(view, event)
            if old is None and self.log is not None:
                self.log(Reaction.of(now, event, drawn))
            if actions.merge is not None:
                self.version += 1
                step = Step(self.version, began, now, actions.merge)
                yield step
                began = now
                computed = step.computed or Computed(None)
                events.append(Merged(self.version, computed.spread, computed.losses))
            for tasks in actions.dispatch:
                if self.log is not None or old is not None:
                    self.dispatched.append(tasks)
                if old is None:
                    self.backend.dispatch(tasks, self.version)
            wake_at = actions.wake_at
            if actions.stop:
                return

    def _view(self, now: float) -> tuple[View, list[Ints]]:
        """Return the strategy's view, and a list to which the cohorts that it draws are added."""
        drawn: list[Ints] = []
        if self.log is None:
            return View(now, self.budget, self.version, self.backend.cohort), drawn

        def cohort(k: int, size: int | None) -> Ints:
            drawn.append(self.backend.cohort(k, size))
            return drawn[-1]

        return View(now, self.budget, self.version, cohort), drawn
