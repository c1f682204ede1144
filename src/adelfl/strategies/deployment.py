"""A synchronous method on devices that are not known beforehand.

    budget  =  opening round  +  T_2  +  …  +  T_R  +  what the server does in between

The opening round (:mod:`adelfl.strategies.opening`) trains and measures at once. The method plans the other rounds with
what it tells, and plans again when devices join or when time is saved. Deadlines are scaled by what is left of the
budget, so that delays do not move its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np

from adelfl.errors import InfeasibleBudgetError
from adelfl.fleet import Fleet
from adelfl.learning_rate import LearningRate, Rest
from adelfl.planner import Constants, Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.planner.local_work import first_steps
from adelfl.schedule import Schedule
from adelfl.strategies import opening
from adelfl.strategies.actions import Actions, Arrivals, Event, Floats, Ints, Joined, Late, Merged, Started, Timer, View
from adelfl.strategies.base import Strategy
from adelfl.strategies.contributions import Contributions
from adelfl.strategies.opening import Opening
from adelfl.strategies.reports import Reports
from adelfl.strategies.rounds import RoundStrategy

_MARGIN = 1.1  # times the longest time that the server took between two rounds
_SAVED = 0.1  # share of the planned time that must be saved for a new plan
_WORTH_WHILE = 1.5  # a round lasts at least this many times a median device's lag
_GUESSED_ROUNDS = 10  # until a plan chooses their number
_MOST_BETWEEN = 0.2  # share of the budget that may pass between rounds whose number is chosen
MOST_CORRECTION = 5.0
"""Bound of 1/(1 − p): real layer times are not exponential, so a p near 1 is a guess."""


class Deployment(Strategy):
    """Measure while training, plan, and adapt the plan to devices as they turn out to be.

    Parameters
    ----------
    make : callable
        Makes the method for a problem.
    layers, budget, learning_rate, batch
        As for :class:`~adelfl.Problem`.
    rounds, local_iterations : int or None
        R and E; None to choose them for the devices as they turn out, again with every plan, so that rounds go on until
        the budget is used up.
    constants : Constants or None
        Constants of the gradients; None to estimate them in the opening round.
    fraction : float
        Share of the devices that take part in a round.
    min_devices, min_reports : int
        A round waits for so many idle devices, and is abandoned if fewer deliver something.
    opening_share : float
        Share of the budget that the opening round may take.
    oversample : bool
        Whether batches may be larger than the data of a device.
    tell : callable
        Called with each sentence that a user should read.
    """

    name = "deployment"

    def __init__(
        self,
        make: Callable[[Problem], RoundStrategy],
        *,
        layers: int,
        rounds: int | None,
        budget: float,
        learning_rate: LearningRate,
        batch: int = 16,
        local_iterations: int | None = 1,
        constants: Constants | None = None,
        fraction: float = 1.0,
        min_devices: int = 2,
        min_reports: int = 1,
        opening_share: float = 0.2,
        oversample: bool = False,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.make, self.layers, self.budget = make, layers, budget
        self.learning_rate, self.batch, self.constants = learning_rate, batch, constants
        self.given_rounds, self.given_steps, self.fraction = rounds, local_iterations, fraction
        self.min_devices, self.min_reports, self.opening_share = min_devices, min_reports, opening_share
        self.oversample, self.tell = oversample, tell
        self.method: RoundStrategy | None = None
        self._reports = Reports(layers, local_iterations or first_steps(float(learning_rate.values(1)[0])))
        self.between = 0.0  # seconds that the server needs between two rounds
        self._rounds, self._t = rounds or _GUESSED_ROUNDS, 0
        self._first = 0  # the round, from 0, at which the present plan begins
        self._served = np.empty(0, dtype=np.int64)  # devices that the present plan has time for
        self._contributions = Contributions(layers)
        self._closed, self._patience = 0.0, math.nan
        self._spread = np.empty(0)  # of layer times, by device
        self._wake: float | None = None
        self._opening: Opening | None = None
        self._merged: Merged | None = None  # a merge that has not been passed to the method
        self._enough = min_devices
        self._waits = False  # whether the round that is going on has no deadline of its own

    @property
    def beliefs(self) -> Beliefs | None:
        """Estimates of the devices, once one has answered."""
        return self._reports.beliefs

    @property
    def rounds(self) -> int:
        """R; fewer than requested if so many do not fit into the budget."""
        return self._rounds

    @property
    def schedule(self) -> Schedule | None:
        """The present plan of the method."""
        return None if self.method is None else self.method.schedule

    @property
    def label(self) -> str:
        """Name of the method, once there is one."""
        return self.name if self.method is None else self.method.label

    def react(self, view: View, event: Event) -> Actions:
        """Open rounds one after another, and learn from everything that arrives."""
        if isinstance(event, Late):
            self._reports.late(event)
        if isinstance(event, Joined) and self._opening is not None:
            return self._waking(self._opening.ask(view, event.devices))
        if isinstance(event, Late | Joined):
            return Actions(wake_at=self._wake)
        if isinstance(event, Arrivals):
            return self._close(view, event) if event.tasks.together else self._arrived(view, event)
        if isinstance(event, Started):
            self._closed = view.now
            if self._t or view.version:  # a new process goes on
                return Actions()
        if isinstance(event, Timer) and self._opening is not None:
            return self._close_first(view)
        if isinstance(event, Merged):
            self.between = max(self.between, _MARGIN * (view.now - self._closed))
            self._t += 1
            self._merged = event if self.method is not None else None
            if self.method is None and event.spread is not None and self.constants is None:
                self.constants = Constants.from_stats(event.spread)
                self._contributions.learn(event.spread)
        return self._open(view, event)

    # -- opening a round

    def _open(self, view: View, event: Event) -> Actions:
        if view.left <= self.between or (self._t >= self._rounds and not self._another_round(view)):
            return Actions(stop=True)
        idle = view.cohort(self._t, None)
        if math.isnan(self._patience):
            self._patience = view.now + (
                view.budget / self._rounds if self.method is None else self.method.problem.uniform_deadline
            )
        if idle.size == 0 or (idle.size < self._enough and view.now < self._patience):
            self._wake = min(view.budget, view.now + opening.POLL)
            return Actions(wake_at=self._wake)
        self._enough = min(self.min_devices, idle.size)  # fewer have been waited for long enough, once
        self._wake, self._patience = None, math.nan
        if self.beliefs is None:
            steps, rate = self._reports.steps, float(self.learning_rate.values(self._t + 1)[-1])
            self._opening = Opening(self.layers, steps, rate, self.batch, self.opening_share)
            return self._waking(self._opening.begin(view, idle))
        self.beliefs.grow(int(idle.max()) + 1)
        planned = self._is_outdated(view) and self._plan(view)
        if self._t >= self._rounds:
            return Actions(stop=True)
        assert self.method is not None
        idle = idle[idle < self.method.problem.devices]  # no plan for the others
        if idle.size == 0:
            return Actions(stop=True)
        known = self.method.problem.devices

        def cohort(k: int, size: int | None) -> Ints:
            drawn = idle if size is None else view.cohort(self._t, size)
            return drawn[drawn < known]

        inner = View(view.now, view.now + self._time_for(view), view.version, cohort)
        merged, self._merged = self._merged, None
        if planned and merged is not None and merged.spread is not None:
            self.method.learn(merged.spread)
        if planned and merged is not None and merged.losses is not None:
            self.method.learn_losses(merged.losses)
        actions = self.method.react(inner, merged if merged is not None and not planned else Started())
        return self._adapted(view, actions)

    def _waking(self, actions: Actions) -> Actions:
        """Remember when to wake, for events in between."""
        self._wake = actions.wake_at
        return actions

    def _adapted(self, view: View, actions: Actions) -> Actions:
        """Fit the method's tasks into the time that is left, and tell devices when to stop."""
        if not actions.dispatch:
            return actions
        (tasks,) = actions.dispatch
        assert self.method is not None
        assert self.beliefs is not None
        u, left = tasks.devices, self._time_for(view)
        meant = left if self.method.self_paced else self.method.planned(self._t - self._first)
        self._waits = math.isinf(tasks.cutoff)
        cutoff = view.left - self.between if self._waits else tasks.cutoff * left / meant
        stop = np.full(u.size, np.inf) if self._waits else cutoff - self.beliefs.outside(u)
        works = (tasks.batch > 0) & (stop > self.beliefs.setup(u))
        self._reports.rest(u, works)
        batch, pace = np.where(works, tasks.batch, 0), self.beliefs.pace(u, self.layers)
        if self.given_steps is None:  # time to spare goes into steps; larger batches of as many steps gain little
            batch = np.minimum(batch, self.batch)
        tasks = replace(tasks, batch=batch, cutoff=cutoff, early=True, stop=stop, pace=pace)
        return replace(actions, dispatch=(tasks,))

    def _time_for(self, view: View, rounds: int | None = None) -> float:
        """Seconds that the rest of the rounds may take, without what lies between them."""
        rounds = self._rounds - self._t if rounds is None else rounds
        return max(1e-9, view.left - rounds * self.between)

    # -- planning

    def _another_round(self, view: View) -> bool:
        """Return whether there is time for a round that was not planned; only where their number is not given."""
        if self.given_rounds is not None or self.beliefs is None:
            return False
        upload = self.beliefs.upload(np.arange(self.beliefs.size))
        if view.left - self.between <= _WORTH_WHILE * float(np.median(upload)):
            return False
        with suppress(InfeasibleBudgetError):
            return self._contributions.pays_another_round(self._problem(self._time_for(view, 1), 1, upload))
        return False

    def _is_outdated(self, view: View) -> bool:
        """Return whether there is no plan, or it misses a device, or was made for less time."""
        assert self.beliefs is not None
        if self.method is None or self.method.problem.devices < self.beliefs.size or self._t >= self._rounds:
            return True
        if self._reports.neglects or self.method.self_paced:
            return self._reports.neglects
        left = self._time_for(view)
        if self.given_rounds is None and (self.beliefs.upload(self._served) * (self._rounds - self._t) >= left).any():
            return True
        return left > (1 + _SAVED) * self.method.planned(self._t - self._first)

    def _plan(self, view: View) -> bool:
        """Plan the rest of the rounds; fewer of them if too little of a round would be computing."""
        assert self.beliefs is not None
        self._spread = self.beliefs.learn_costs(self.layers)
        upload = self.beliefs.upload(np.arange(self.beliefs.size))
        lag = float(np.median(upload))
        try:
            requested = self._requested(view, upload)
        except InfeasibleBudgetError:
            requested = 1
        most = min(requested, max(1, int(view.left / (_WORTH_WHILE * lag)))) if lag > 0 else requested
        for rounds in range(most, 0, -1):
            try:
                method = self.make(self._problem(self._time_for(view, rounds), rounds, upload))
                break
            except InfeasibleBudgetError:
                if rounds == 1:
                    if self.method is None:
                        raise
                    return False  # keep the old plan
        method.inherit(self.method, self.beliefs)
        self.method, self._first, self._rounds = method, self._t, self._t + method.rounds
        self._reports.sat_out.clear()
        self._served = np.flatnonzero(upload * method.rounds < self._time_for(view, method.rounds))
        if self.given_rounds and rounds < requested:
            self.tell(
                f"{requested} rounds do not fit into {view.left:.1f} s, since {lag:.1f} s of each are not computing: "
                f"{rounds} are planned"
            )
        self.tell(
            f"{method.label}: {method.rounds} rounds of up to {method.problem.local_iterations} local steps, "
            f"{self.beliefs.size} devices, {view.left:.1f} s left"
        )
        for note in method.notes:
            self.tell(note)
        return True

    def _requested(self, view: View, upload: Floats) -> int:
        """Return the number of rounds that are left, or that suit the devices best if it is not given."""
        if self.given_rounds is not None:
            return max(1, self.given_rounds - self._t)
        whole = self._problem(self._time_for(view, 1), 1, upload)
        chosen = self._contributions.rounds(whole, self.given_steps)
        return min(chosen, max(1, int(_MOST_BETWEEN * view.left / self.between))) if self.between > 0 else chosen

    def _problem(self, left: float, rounds: int, upload: Floats) -> Problem:
        """Return the problem of a number of rounds, for the devices as they are believed to be."""
        assert self.beliefs is not None
        everyone = np.arange(self.beliefs.size)
        deadline, needed = left / rounds, max(2, self.min_reports)
        longest = float(np.sort(upload)[min(upload.size, needed) - 1])
        if longest >= deadline:
            what = f"{longest:.1f} s of a round are not computing"
            raise InfeasibleBudgetError(
                f"a round of {deadline:.1f} s is too short: {what}", binding=what, smallest_budget=None
            )
        cohort = max(2, self.min_devices, round(self.fraction * everyone.size))
        problem = Problem(
            fleet=Fleet.of(self.beliefs.compute(everyone), upload, overhead=self.beliefs.overhead, spread=self._spread),
            layers=self.layers,
            rounds=rounds,
            budget=left,
            batch=self.batch,
            learning_rate=Rest(self.learning_rate, self._t),
            constants=self.constants or Constants(),
            cohort=cohort if cohort < everyone.size else None,
            local_iterations=self.given_steps or 1,
            samples=None if self.oversample else self.beliefs.held(everyone),
        )
        return problem if self.given_steps is not None else self._contributions.with_steps(problem)

    # -- closing a round

    def _arrived(self, view: View, event: Arrivals) -> Actions:
        """Learn from the answer of one device in the opening round; close the round when all have answered."""
        if event.z.any():
            self._reports.first(event)
        if self._opening is None or not self._opening.add(event, view.now):
            return Actions(wake_at=self._wake)
        return self._close_first(view)

    def _close_first(self, view: View) -> Actions:
        """Merge the opening round, or go on with it if too little has arrived."""
        assert self._opening is not None
        if len(self._opening.useful) < self.min_reports:
            return self._waking(self._opening.again(view, view.cohort(self._t, None)))
        assert self.beliefs is not None
        self._contributions.open(self._opening.useful, self.beliefs.size, complete=self._opening.complete)
        merge = self._opening.merge(spread=self.constants is None)
        self._opening, self._wake, self._closed = None, None, view.now
        return Actions(merge=merge)

    def _close(self, view: View, event: Arrivals) -> Actions:
        assert self.method is not None
        assert self.beliefs is not None
        self._closed = view.now
        left = self._time_for(view, self._rounds - self._t - 1)
        actions = self.method.react(View(view.now, view.now + left, view.version, view.cohort), event)
        self._reports.durations(event)
        assert actions.merge is not None
        A = actions.merge.A[0]
        A = A / np.maximum(1.0, A.sum(axis=0) / MOST_CORRECTION)
        waited_in_vain = self._waits and view.now - event.began >= event.tasks.cutoff
        if np.count_nonzero(event.z) < max(1, self.min_reports) or waited_in_vain:
            A = np.zeros_like(A)
        else:
            self._contributions.add((event,), self.beliefs.size)
        return replace(actions, merge=replace(actions.merge, A=(A,)))
