"""Anytime Minibatch: all devices have the same time, and each uses the samples that it has processed by then.

Ferdinand et al., "Anytime minibatch: Exploiting stragglers in online distributed optimization", ICLR 2019.

    w^l ← w^l − η Σ_u S_u g_u^l / Σ_u S_u          S_u: samples that device u has processed by T_max / R

All gradients of a round are taken at the same weights, in a single step for any number of local iterations. A
simulated device processes its samples in pieces, each with the overhead and the random time of a batch; an unfinished
piece is lost. A node on Flower is assigned as many samples as its measured speed allows, and delivers the layers that
it finishes.
"""

from __future__ import annotations

import numpy as np

from adelfl.planner import Problem
from adelfl.strategies.base import at_least_one
from adelfl.strategies.merge import normalised
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy

_MOST = 1_000_000  # batch size if it is not known how many samples a device holds


class Anytime(RoundStrategy):
    """Rounds of T_max / R; batches of as many pieces of ``chunk`` samples as fit, weighted by their size."""

    name = "anytime"

    def __init__(self, problem: Problem, *, chunk: int = 1) -> None:
        super().__init__(problem)
        self.chunk = at_least_one("chunk", chunk)

    @property
    def most_steps(self) -> int:
        """Return 1 for any E."""
        return 1

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return all samples of each simulated device, or the number that a real device is expected to finish."""
        s = self.problem
        T = s.uniform_deadline
        P, B = self.believed(devices)
        most = np.full(devices.size, float(_MOST))
        if self.beliefs is not None:
            most = np.maximum(1.0, P * (T - B) / s.layers - s.overhead[devices])
        return Orders(T, s.within_data(np.where(B < T, most, 0.0), devices), steps=1, chunk=self.chunk)

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = S_u 1[delivered l] / Σ_w S_w 1[delivered l]."""
        assert progress.batch is not None
        return normalised(progress.batch[:, None] * progress.delivered)
