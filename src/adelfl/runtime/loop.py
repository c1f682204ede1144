"""One loop for simulated and for real runs: events in, ``strategy.react``, actions out.

    event ──► strategy.react(view, event) ──► merge? ──► dispatch ──► next event, until the budget is used up

What happens when does not depend on the weights, unless a strategy asks for gradients. So decisions may run ahead of
computing: :meth:`Loop.steps` decides, and :meth:`Loop.run` computes the steps, some at a time.

A run on a real clock logs every :class:`Reaction`. Given that log, :meth:`Loop.steps` makes the same decisions again: a
deployment resumes that way after a crash, and can be replayed on the simulated backend.
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
    """One merge: decided, and then computed.

    Attributes
    ----------
    version : int
        Version of the weights after it, from 1.
    began, time : float
        When the step before it happened, and when this one does.
    merge : Merge
        What is merged.
    following : float
        When the next step happens, if that is decided already; infinite for the last one, NaN if it is not known.
    computed : Computed or None
        What it came to; None before it is computed.
    row : mapping of str to any
        Fields of its row in the record that are known when it is decided.
    """

    version: int
    began: float
    time: float
    merge: Merge
    following: float = math.nan
    computed: Computed | None = None
    row: Mapping[str, Any] = field(default_factory=dict)


class Loop:
    """Run a strategy on a backend.

    Parameters
    ----------
    strategy : Strategy
        The method.
    backend : Backend
        Where tasks are done.
    budget : float
        Seconds after which nothing counts any more.
    log : callable, optional
        Is given every reaction, after it.
    """

    def __init__(
        self, strategy: Strategy, backend: Backend, budget: float, log: Callable[[Reaction], None] | None = None
    ) -> None:
        self.strategy, self.backend, self.budget, self.log = strategy, backend, budget, log
        self.version = 0
        self.dispatched: list[Tasks] = []  # with a log only

    def run(self, steps: Iterator[Step], apply: Callable[[Step], None], keep: Callable[[Step], None]) -> None:
        """Compute steps until the end.

        Parameters
        ----------
        steps : iterator of Step
            What :meth:`steps` gives; of a run that is continued, the steps that are left.
        apply : callable
            Moves the model by a step that was computed.
        keep : callable
            Evaluates and records a step that was applied.
        """
        upcoming = self._some(steps)
        while upcoming:
            step, compute = upcoming.popleft()
            step.computed = compute()
            apply(step)
            if self.backend.ahead > 1:  # whether a step is evaluated depends on when the next one happens
                upcoming = upcoming or self._some(steps)
                step.following = upcoming[0][0].time if upcoming else math.inf
                keep(step)
            else:
                keep(step)
                upcoming = self._some(steps)

    def _some(self, steps: Iterator[Step]) -> deque[tuple[Step, Compute]]:
        """Decide some steps ahead; the last of them may be one whose gradients the strategy wants to know."""
        few: list[Step] = []
        filled = 0.0
        for step in islice(steps, self.backend.ahead):
            few.append(step)
            filled += self.backend.fills(step.merge)
            if step.merge.spread or step.merge.losses or filled >= 1.0:
                break
        return deque(zip(few, self.backend.prepare([step.merge for step in few]), strict=True))

    def steps(self, past: Iterable[Reaction] = ()) -> Iterator[Step]:
        """Yield every merge of the run. One that requests gradients must be computed before the next is taken.

        Parameters
        ----------
        past : iterable of Reaction
            Reactions of an earlier process, which are repeated before events are taken from the backend. What was under
            way then is lost, so the strategy receives another :class:`Started` event.
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
                    events.appendleft(Started())  # an earlier process went on here
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
        """Return what the strategy may look at, and a list that will hold the cohorts that it draws."""
        drawn: list[Ints] = []
        if self.log is None:
            return View(now, self.budget, self.version, self.backend.cohort), drawn

        def cohort(k: int, size: int | None) -> Ints:
            drawn.append(self.backend.cohort(k, size))
            return drawn[-1]

        return View(now, self.budget, self.version, cohort), drawn
