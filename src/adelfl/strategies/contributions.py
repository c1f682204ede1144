"""Contributions of the devices so far, and the differences of their data, which determine the number of rounds left."""

from __future__ import annotations

import numpy as np

from adelfl.planner import Problem
from adelfl.planner.local_work import NOTHING_DONE, drift, gains, with_local_work
from adelfl.strategies.actions import Arrivals
from adelfl.theory.gradient_stats import GradientStats

_UNSEEN = 0.5  # drift that is assumed if a device did not deliver an update in the opening round


class Contributions:
    """Local work of the devices of a deployment, and the numbers of rounds that follow from it."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.drift = 0.0  # least share of an update that is its device's own
        self.done = NOTHING_DONE

    def open(self, arrivals: tuple[Arrivals, ...], devices: int, *, complete: bool) -> None:
        """Add the opening round; ``complete`` says whether every device has delivered."""
        self.drift = 0.0 if complete else _UNSEEN
        self.add(arrivals, devices)

    def learn(self, updates: GradientStats) -> None:
        """Learn from the updates of the opening round how different the data of the devices is."""
        self.drift = max(self.drift, drift(updates))

    def add(self, arrivals: tuple[Arrivals, ...], devices: int) -> None:
        """Add what the local work of a round was worth."""
        steps = np.zeros(devices)
        for event in arrivals:
            steps[event.tasks.devices] = event.z / self.layers
        self.done = self.done.plus(steps, arrivals[0].tasks.rate, self.drift)

    def with_steps(self, problem: Problem) -> Problem:
        """Return a problem with the best number of local steps."""
        return with_local_work(problem, rounds=problem.rounds, own=self.drift)

    def rounds(self, problem: Problem, steps: int | None) -> int:
        """Return the best number of further rounds, with a number of local steps or, if None, as many as fit."""
        return with_local_work(problem, steps=steps, own=self.drift, done=self.done).rounds

    def pays_another_round(self, problem: Problem) -> bool:
        """Return whether one more round is better than none."""
        return gains(problem, self.drift, self.done)
