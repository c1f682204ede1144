"""Over-selection: start more devices than are needed, and close the round when enough have delivered.

Bonawitz et al., "Towards federated learning at scale: System design", MLSys 2019.

    start ⌈1.3 K⌉ devices, close at the K-th upload:     w ← w + Σ_{u ∈ first K} |D_u| (w_u − w) / Σ_{first K} |D_w|

K is the cohort. Without a cohort, all N devices start, and K = ⌊N/1.3⌋.
"""

from __future__ import annotations

import math
from dataclasses import replace

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.actions import View
from adelfl.strategies.rounds import Ints, Orders, Weigh
from adelfl.strategies.wait import Wait


class OverSelection(Wait):
    """Average the first K of 1.3 K devices (``factor`` K, at least K); the work of the others is lost."""

    name = "over-selection"
    self_paced = True

    def __init__(self, problem: Problem, *, factor: float = 1.3, weigh: Weigh = "data") -> None:
        super().__init__(problem, weigh=weigh)
        if not 1.0 <= factor < math.inf:
            raise ConfigError(f"strategy option factor must be a number of at least 1, not {factor!r}")
        N = problem.devices
        self.needed = max(1, int(N / factor)) if problem.cohort is None else problem.cohort
        started = N if problem.cohort is None else min(N, math.ceil(factor * self.needed))
        self.started = None if started == N else started

    def cohort(self, view: View, t: int) -> Ints:
        """Return 1.3 K random devices."""
        return view.cohort(t, self.started)

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices; the round closes at the K-th delivery."""
        return replace(super().orders(t, devices), enough=min(self.needed, devices.size))
