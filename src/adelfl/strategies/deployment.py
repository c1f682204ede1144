"""A synchronous method on devices that are not known beforehand.

    budget  =  opening round  +  T_2  +  …  +  T_R  +  what the server does in between

The opening round (:mod:`adelfl.strategies.opening`) trains and measures at once. The method plans the other rounds with
these measurements, and plans again when devices join or when time is saved. Deadlines are scaled to the budget that is
left, so that delays do not move its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.planner import Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.planner.local_work import first_steps
from adelfl.strategies import RoundStrategy, find_strategy
from adelfl.strategies.actions import Actions, Arrivals, Event, Ints, Joined, Late, Merged, Started, Timer, View
from adelfl.strategies.base import Strategy, check_options
from adelfl.strategies.deployment_planner import DeploymentPlanner, Settings
from adelfl.strategies.opening import POLL, Opening
from adelfl.strategies.reports import Reports

LAST = 0.1
"""Seconds before the end of the budget at which the last round closes."""
_MARGIN = 1.1  # factor on the longest time that the server took between two rounds
_ROUNDING = 1e-6  # seconds
_MOST_DEVICES = 100_000  # bound for asynchronous methods, which need no number
MOST_MERGES = 1_000_000
"""Number of merges of an asynchronous method if none is given."""
MOST_CORRECTION = 5.0
"""Bound of 1/(1 − p): real layer times are not exponential, so a p near 1 is a guess."""


class Deployment(Strategy):
    """Measure while training, plan, and adapt the plan to the devices; ``make`` makes the method for a problem."""

    name = "deployment"

    def __init__(self, make: Callable[[Problem], RoundStrategy], settings: Settings) -> None:
        self.settings = settings
        steps = settings.local_iterations or first_steps(float(settings.learning_rate.values(1)[0]))
        self._reports = Reports(settings.layers, steps)
        self._planner = DeploymentPlanner(make, settings, self._reports)
        self._closed, self._patience = 0.0, math.nan  # when a round closed last; until when to wait for idle devices
        self._wake: float | None = None
        self._opening: Opening | None = None
        self._merged: Merged | None = None  # a merge that has not been passed to the method
        self._enough = settings.min_devices
        self._expires = math.inf  # when a round without a deadline of its own is cut off by the end of the budget

    @property
    def beliefs(self) -> Beliefs | None:
        """Estimates of the devices, once one has answered."""
        return self._reports.beliefs

    @property
    def method(self) -> RoundStrategy | None:
        """The method with its present plan."""
        return self._planner.method

    @property
    def rounds(self) -> int:
        """R; fewer than requested if so many do not fit into the budget."""
        return self._planner.rounds

    @property
    def label(self) -> str:
        """Name of the method, once there is one."""
        return self.name if self.method is None else self.method.label

    def react(self, view: View, event: Event) -> Actions:
        """Open rounds one after another, and learn from everything that arrives."""
        planner = self._planner
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
            if planner.t or view.version:  # the run continues in a new process
                return Actions()
        if isinstance(event, Timer) and self._opening is not None:
            return self._close_opening(view)
        if isinstance(event, Merged):
            planner.between = max(planner.between, _MARGIN * (view.now - self._closed))
            planner.t += 1
            self._merged = event if self.method is not None else None
            if self.method is None and event.spread is not None and planner.constants is None:
                planner.learn(event.spread)
        return self._open(view, event)

    # -- opening a round

    def _open(self, view: View, event: Event) -> Actions:
        planner, settings = self._planner, self.settings
        over = view.left <= max(LAST, planner.between) + _ROUNDING
        if over or (planner.t >= planner.rounds and not planner.another_round(view)):
            return Actions(stop=True)
        idle = view.cohort(planner.t, None)
        if math.isnan(self._patience):
            method = planner.method
            self._patience = view.now + (method.problem.uniform_deadline if method else view.budget / planner.rounds)
        if idle.size == 0 or (idle.size < self._enough and view.now < self._patience):
            self._wake = min(view.budget, view.now + POLL)
            return Actions(wake_at=self._wake)
        self._enough = min(settings.min_devices, idle.size)  # do not wait again for devices that did not come
        self._wake, self._patience = None, math.nan
        if self.beliefs is None:
            rate = float(settings.learning_rate.values(planner.t + 1)[-1])
            steps, share = self._reports.steps, settings.opening_share
            self._opening = Opening(settings.layers, steps, rate, settings.batch, share)
            return self._waking(self._opening.begin(view, idle))
        self.beliefs.grow(int(idle.max()) + 1)
        planned = planner.is_outdated(view) and planner.plan(view)
        assert planner.method is not None
        method, known = planner.method, planner.method.problem.devices
        self.schedule = method.schedule
        idle = idle[idle < known]  # the plan does not include the others
        if planner.t >= planner.rounds or idle.size == 0:
            return Actions(stop=True)

        def cohort(k: int, size: int | None) -> Ints:
            drawn = idle if size is None else view.cohort(planner.t, size)
            return drawn[drawn < known]

        inner = View(view.now, view.now + planner.time_left(view), view.version, cohort)
        merged, self._merged = self._merged, None
        if planned and merged is not None and merged.spread is not None:
            method.learn(merged.spread)
        if planned and merged is not None and merged.losses is not None:
            method.learn_losses(merged.losses)
        actions = method.react(inner, merged if merged is not None and not planned else Started())
        return self._adapted(view, method, actions)

    def _waking(self, actions: Actions) -> Actions:
        """Remember when to wake, for events in between."""
        self._wake = actions.wake_at
        return actions

    def _adapted(self, view: View, method: RoundStrategy, actions: Actions) -> Actions:
        """Fit the method's tasks into the time that is left, and tell devices when to stop."""
        if not actions.dispatch:
            return actions
        (tasks,) = actions.dispatch
        planner, beliefs = self._planner, self._planner.beliefs
        u, left = tasks.devices, planner.time_left(view)
        waits = math.isinf(tasks.cutoff)
        meant = left if method.self_paced or waits else planner.planned()
        stretch = min(1.0, left / meant) if method.given_deadlines else left / meant
        cutoff = min(stretch * tasks.cutoff, view.left - max(LAST, planner.between))
        self._expires = view.now + cutoff if waits else math.inf
        stop = np.full(u.size, np.inf) if waits else cutoff - beliefs.outside(u)
        works = (tasks.batch > 0) & (stop > beliefs.setup(u))
        self._reports.rest(u, works)
        batch, pace = np.where(works, tasks.batch, 0), beliefs.pace(u, self.settings.layers)
        if self.settings.local_iterations is None:  # spare time goes into steps; larger batches would gain little
            batch = np.minimum(batch, self.settings.batch)
        tasks = replace(tasks, batch=batch, cutoff=cutoff, early=True, stop=stop, pace=pace)
        return replace(actions, dispatch=(tasks,))

    # -- closing a round

    def _arrived(self, view: View, event: Arrivals) -> Actions:
        """Learn from the answer of one device in the opening round; close the round when all have answered."""
        if event.z.any():
            self._reports.first(event)
        if self._opening is None or not self._opening.add(event, view.now):
            return Actions(wake_at=self._wake)
        return self._close_opening(view)

    def _close_opening(self, view: View) -> Actions:
        """Merge the opening round, or continue it if too little has arrived."""
        assert self._opening is not None
        if len(self._opening.useful) < self.settings.min_reports:
            return self._waking(self._opening.again(view, view.cohort(self._planner.t, None)))
        self._planner.add_opening(self._opening.useful, complete=self._opening.complete)
        merge = self._opening.merge(spread=self._planner.constants is None)
        self._opening, self._wake, self._closed = None, None, view.now
        return Actions(merge=merge)

    def _close(self, view: View, event: Arrivals) -> Actions:
        planner = self._planner
        assert planner.method is not None
        self._closed = view.now
        left = planner.time_for(view, planner.rounds - planner.t - 1)
        actions = planner.method.react(View(view.now, view.now + left, view.version, view.cohort), event)
        self._reports.durations(event)
        assert actions.merge is not None
        A = actions.merge.A[0]
        A = A / np.maximum(1.0, A.sum(axis=0) / MOST_CORRECTION)
        expired = view.now >= self._expires - _ROUNDING
        if np.count_nonzero(event.z) < max(1, self.settings.min_reports) or expired:
            A = np.zeros_like(A)
        else:
            planner.add((event,))
        return replace(actions, merge=replace(actions.merge, A=(A,)))


def deployed(name: str, options: Mapping[str, Any], settings: Settings) -> Strategy:
    """Return a method with its options: a synchronous one is wrapped in a :class:`Deployment`."""
    kind = find_strategy(name)
    check_options(kind, options)
    own_world = kind.submodels or kind.unhurried or kind.clairvoyant or kind.control_variates
    if why := kind.simulated_only or (own_world and "it needs more than real devices can do"):
        raise ConfigError(f"method {name!r} runs in the simulator only: {why}")
    if issubclass(kind, RoundStrategy):
        return Deployment(partial(kind, **options), settings)
    if settings.local_iterations is None:
        raise ConfigError(f'method {name!r} needs a number of local_iterations, not "auto"')
    if settings.fraction < 1:
        raise ConfigError(f"method {name!r} keeps every node at work: fraction_train must be 1")
    same = {key: getattr(settings, key) for key in ("layers", "budget", "learning_rate", "batch", "local_iterations")}
    fleet = Fleet.of(1.0, 0.0, _MOST_DEVICES)  # speeds are not used
    return kind(Problem(fleet, rounds=settings.rounds or MOST_MERGES, **same), **options)
