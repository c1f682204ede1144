"""Plans of a synchronous method for the devices of a deployment, as they are estimated at that time.

Every plan chooses the numbers of rounds and local steps anew, unless these are given
(:mod:`adelfl.planner.local_work`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from adelfl.errors import InfeasibleBudgetError
from adelfl.fleet import Fleet
from adelfl.learning_rate import LearningRate, Rest
from adelfl.planner import Constants, Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.planner.local_work import NOTHING_DONE, drift, gains, with_local_work
from adelfl.strategies.actions import Arrivals, Floats, View
from adelfl.strategies.reports import Reports
from adelfl.strategies.rounds import RoundStrategy
from adelfl.theory.gradient_stats import GradientStats

_SAVED = 0.1  # share of the planned time that must be saved for a new plan
_WORTH_WHILE = 1.5  # a round lasts at least this many times a median device's lag
_GUESSED_ROUNDS = 10  # number of rounds that is assumed until a plan chooses it
_MOST_BETWEEN = 0.2  # share of the budget that may pass between rounds whose number is chosen
_UNSEEN_DRIFT = 0.5  # drift that is assumed if a device did not deliver an update in the opening round


@dataclass(frozen=True, eq=False)
class Settings:
    """Settings of a method on devices that are not known beforehand."""

    layers: int
    rounds: int | None
    """R; None to choose it with every plan, so that rounds go on until the budget is used up."""
    budget: float
    """Seconds of the run."""
    learning_rate: LearningRate
    batch: int = 16
    """Batch size S of the baselines and of the opening round."""
    local_iterations: int | None = 1
    """E; None to choose it with every plan."""
    constants: Constants | None = None
    """Constants of the gradients; None to estimate them in the opening round."""
    fraction: float = 1.0
    """Share of the devices that take part in a round."""
    min_devices: int = 2
    """Number of idle devices that a round waits for."""
    min_reports: int = 1
    """Number of devices that must deliver something; otherwise the round is not merged."""
    opening_share: float = 0.2
    """Share of the budget that the opening round may take."""
    oversample: bool = False
    """Whether batches may be larger than the data of a device."""
    tell: Callable[[str], None] = lambda sentence: None
    """Called with each sentence that a user should read."""


class DeploymentPlanner:
    """Makes plans with the present estimates of the devices, and decides when a plan is outdated."""

    def __init__(self, make: Callable[[Problem], RoundStrategy], settings: Settings, reports: Reports) -> None:
        self.make, self.settings, self.reports = make, settings, reports
        self.constants = settings.constants
        self.method: RoundStrategy | None = None
        self.rounds, self.t = settings.rounds or _GUESSED_ROUNDS, 0  # R, and the present round, from 0
        self.between = 0.0  # seconds that the server needs between two rounds
        self._first = 0  # the round, from 0, at which the present plan begins
        self._served = np.empty(0, dtype=np.int64)  # devices that the present plan has time for
        self._spread = np.empty(0)  # spread of the layer times of each device
        self._drift, self._done = 0.0, NOTHING_DONE  # least h, and the worth of the rounds so far

    @property
    def beliefs(self) -> Beliefs:
        """Estimates of the devices, of which at least one has answered."""
        assert self.reports.beliefs is not None
        return self.reports.beliefs

    def time_for(self, view: View, rounds: int) -> float:
        """Return the seconds that some rounds may take, without the time between them."""
        return max(1e-9, view.left - rounds * self.between)

    def time_left(self, view: View) -> float:
        """Return the seconds that the remaining planned rounds may take."""
        return self.time_for(view, self.rounds - self.t)

    def planned(self) -> float:
        """Return the seconds that the method has planned for the remaining rounds."""
        assert self.method is not None
        return self.method.planned(self.t - self._first)

    # -- the work of the devices

    def add_opening(self, arrivals: tuple[Arrivals, ...], *, complete: bool) -> None:
        """Add the work of the opening round; ``complete`` says whether every device has delivered."""
        self._drift = 0.0 if complete else _UNSEEN_DRIFT
        self.add(arrivals)

    def learn(self, updates: GradientStats) -> None:
        """Estimate the constants, and how different the data of the devices is, from the opening round."""
        self.constants = Constants.from_stats(updates)
        self._drift = max(self._drift, drift(updates))

    def add(self, arrivals: tuple[Arrivals, ...]) -> None:
        """Add the work of a round."""
        steps = np.zeros(self.beliefs.size)
        for event in arrivals:
            steps[event.tasks.devices] = event.z / self.settings.layers
        self._done = self._done.plus(steps, arrivals[0].tasks.rate, self._drift)

    # -- plans

    def another_round(self, view: View) -> bool:
        """Return whether a round that was not planned pays; False if the number of rounds is given."""
        if self.settings.rounds is not None or self.reports.beliefs is None:
            return False
        upload = self.beliefs.upload(np.arange(self.beliefs.size))
        if view.left - self.between <= _WORTH_WHILE * float(np.median(upload)):
            return False
        with suppress(InfeasibleBudgetError):
            return gains(self._problem(self.time_for(view, 1), 1, upload), self._drift, self._done)
        return False

    def is_outdated(self, view: View) -> bool:
        """Return whether there is no plan, or it misses a device, or was made for less time."""
        if self.method is None or self.method.problem.devices < self.beliefs.size or self.t >= self.rounds:
            return True
        if self.reports.neglects or self.method.self_paced:
            return self.reports.neglects
        left, rounds = self.time_left(view), self.rounds - self.t
        if self.settings.rounds is None and (self.beliefs.upload(self._served) * rounds >= left).any():
            return True
        return left > (1 + _SAVED) * self.planned() and not self.method.given_deadlines

    def plan(self, view: View) -> bool:
        """Plan the rounds that are left, or fewer if too little of a round would be computing.

        Return False if no plan is possible, so that the old one stays.
        """
        self._spread = self.beliefs.learn_costs(self.settings.layers)
        upload = self.beliefs.upload(np.arange(self.beliefs.size))
        lag = float(np.median(upload))
        try:
            requested = self._requested(view, upload)
        except InfeasibleBudgetError:
            requested = 1
        most = min(requested, max(1, int(view.left / (_WORTH_WHILE * lag)))) if lag > 0 else requested
        try:
            method, why = self._largest(view, most, upload)
        except InfeasibleBudgetError:
            if self.method is None:
                raise
            return False
        method.inherit(self.method, self.beliefs)
        self.method, self._first, self.rounds = method, self.t, self.t + method.rounds
        self.reports.sat_out.clear()
        self._served = np.flatnonzero(upload * method.rounds < self.time_for(view, method.rounds))
        if self.settings.rounds and method.problem.rounds < requested:
            why = why or f"devices do not compute for {lag:.1f} s of each round"
            self.settings.tell(
                f"{requested} rounds do not fit into {view.left:.1f} s ({why}); {method.problem.rounds} are planned"
            )
        self.settings.tell(
            f"{method.label}: {method.rounds} rounds of up to {method.problem.local_iterations} local steps, "
            f"{self.beliefs.size} devices, {view.left:.1f} s left"
        )
        for note in method.notes:
            self.settings.tell(note)
        return True

    def _largest(self, view: View, most: int, upload: Floats) -> tuple[RoundStrategy, str]:
        """Return the method with the largest number of rounds that has a plan, and why more rounds have none.

        It is found by bisection, since a plan exists for fewer rounds if it exists for more.
        """
        fits, fails, rounds = 0, most + 1, most
        method, error = None, InfeasibleBudgetError("")
        while fails - fits > 1:
            try:
                method = self.make(self._problem(self.time_for(view, rounds), rounds, upload))
                fits = rounds
            except InfeasibleBudgetError as infeasible:
                error, fails = infeasible, rounds
            rounds = (fits + fails) // 2
        if method is None:
            raise error
        return method, error.binding

    def _requested(self, view: View, upload: Floats) -> int:
        """Return the number of rounds that are left, or the best number for these devices if it is not given."""
        if self.settings.rounds is not None:
            return max(1, self.settings.rounds - self.t)
        whole, steps = self._problem(self.time_for(view, 1), 1, upload), self.settings.local_iterations
        chosen = with_local_work(whole, steps=steps, h=self._drift, done=self._done).rounds
        return min(chosen, max(1, int(_MOST_BETWEEN * view.left / self.between))) if self.between > 0 else chosen

    def _problem(self, left: float, rounds: int, upload: Floats) -> Problem:
        """Return the problem of a number of rounds, with the present estimates of the devices."""
        settings, beliefs, everyone = self.settings, self.beliefs, np.arange(self.beliefs.size)
        deadline, needed = left / rounds, max(2, settings.min_reports)
        longest = float(np.sort(upload)[min(upload.size, needed) - 1])
        if longest >= deadline:
            what = f"devices do not compute for {longest:.1f} s of a round"
            raise InfeasibleBudgetError(f"a round of {deadline:.1f} s is too short: {what}", binding=what)
        cohort = max(2, settings.min_devices, round(settings.fraction * everyone.size))
        problem = Problem(
            fleet=Fleet.of(beliefs.compute(everyone), upload, overhead=beliefs.overhead, spread=self._spread),
            layers=settings.layers,
            rounds=rounds,
            budget=left,
            batch=settings.batch,
            learning_rate=Rest(settings.learning_rate, self.t),
            constants=self.constants or Constants(),
            cohort=cohort if cohort < everyone.size else None,
            local_iterations=settings.local_iterations or 1,
            samples=None if settings.oversample else beliefs.held(everyone),
        )
        given = settings.local_iterations is not None
        return problem if given else with_local_work(problem, rounds=rounds, h=self._drift)
