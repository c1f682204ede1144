"""The exact solver of Problem 2: one scalar function, one multiplier, one search over m (docs/planner.md).

For fixed m the problem is min Σ_t a_t f(T_t) with Σ T_t = T_max and T_t
non-increasing, f convex and decreasing. Pooling a to be non-increasing turns the order constraint into blocks of
equal rounds; then −f′(T_b) = λ/ã_b in every block, with λ set by the budget. In log m the minimum over T is
convex, so its stationary point is the minimum of Problem 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, isotonic_regression

from adelfl.array_types import Floats, Ints
from adelfl.theory.bound import RoundCost

_EDGE = 1e-10  # relative distance of the search over log m from the ends of its interval, where f is infinite
_MAX_STEP = 1.5
_TABLE = 300


class NotConverged(ArithmeticError):
    """Error of a Newton iteration that did not converge; the caller falls back on the trust-region solver."""


@dataclass(frozen=True)
class Optimum:
    """Deadlines and batch scale that minimise the bound."""

    T: Floats
    m: float


def pool_non_increasing(a: Floats) -> tuple[Floats, Ints]:
    """Return the block means and block lengths of the non-increasing regression of ``a``."""
    pooled = isotonic_regression(a, increasing=False).x
    first = np.flatnonzero(np.concatenate([[True], np.diff(pooled) != 0]))
    return pooled[first], np.diff(first, append=a.size)


def minimise(cost: RoundCost, a: Floats, budget: float, guess: float) -> Optimum:
    """Solve Problem 2 for a feasible (cost, budget), starting the search over m at a feasible guess.

    :func:`adelfl.planner.paper.admit` checks feasibility, and :func:`minimise_uniform` gives a good guess.
    """
    weight, length = pool_non_increasing(a / a.max())
    blocks = _Blocks(cost, weight, length, budget)
    m = blocks.best_scale(guess)
    T = np.repeat(blocks.deadlines(m), length)
    return Optimum(T * (budget / T.sum()), m)


def minimise_uniform(cost: RoundCost, rounds: int, budget: float) -> Optimum:
    """Return the uniform schedule T_t = T_max / R with its best m."""
    blocks = _Blocks(cost, np.ones(1), np.array([rounds]), budget)
    return Optimum(np.full(rounds, budget / rounds), blocks.best_scale())


class _Blocks:
    """Rounds pooled into blocks of equal weight; the last deadlines are the start of the next search."""

    def __init__(self, cost: RoundCost, weight: Floats, length: Ints, budget: float) -> None:
        self.cost = cost
        self.length = length.astype(np.float64)
        self.log_weight = np.log(weight)
        self.budget = budget
        self.mean_deadline = budget / float(self.length.sum())
        self.start: Floats | None = None  # log distance of the deadline of each block from the smallest one
        self.seen: dict[float, float] = {}  # imbalance by log m, since the search evaluates its ends twice

    def best_scale(self, guess: float | None = None) -> float:
        """Return the m at which the saving of a larger batch equals its cost; the search starts at the guess."""
        T = self.mean_deadline
        low = math.log(float(np.max(T / (self.cost.P * (T - self.cost.B)))))
        high = math.log(T / self.cost.x_min)
        at = 0.5 * (low + high) if guess is None else math.log(guess)
        near, end = at, low if self._imbalance(at) > 0 else high
        sign = math.copysign(1.0, end - at)
        far, reach = at, min(0.05, 0.5 * abs(end - at))
        while sign * self._imbalance(far := near + sign * reach) < 0:
            near, reach = far, min(2.0 * reach, 0.5 * abs(end - far))
            if reach < _EDGE * (high - low):
                return math.exp(far)
        return math.exp(brentq(self._imbalance, near, far, xtol=1e-8 * (high - low) + 1e-15, rtol=1e-12))

    def _imbalance(self, log_m: float) -> float:
        """Return the log of cost over saving of a larger m: negative below the optimum, positive above it."""
        if log_m not in self.seen:
            m = math.exp(log_m)
            log_saving, log_cost = self.cost.log_scale_slopes(self.deadlines(m), m)
            log_a = self.log_weight + np.log(self.length)
            self.seen[log_m] = float(np.logaddexp.reduce(log_a + log_cost) - np.logaddexp.reduce(log_a + log_saving))
        return self.seen[log_m]

    def deadlines(self, m: float) -> Floats:
        """Return T_b with −f′(T_b) ã_b equal for all blocks and Σ_b n_b T_b = T_max.

        Newton's method starts from the last m's deadlines, and if that does not converge, from a table of −f′.
        """
        if self.length.size == 1:
            return np.array([self.mean_deadline])
        floor = self.cost.smallest_deadline(m)
        room = self.mean_deadline - floor
        if room <= 0:
            raise NotConverged(f"no room above the smallest deadline at m = {m!r}")
        d = None if self.start is None else self._newton(self.start, m, floor, room, steps=8)
        if d is None:
            d = self._newton(self._from_table(m, floor, room), m, floor, room, steps=40)
        if d is None:
            raise NotConverged(f"deadlines did not converge at m = {m!r}")
        self.start = d
        return floor + np.exp(d)

    def _newton(self, d: Floats, m: float, floor: float, room: float, steps: int) -> Floats | None:
        """Solve for d_b = log(T_b − T_min) and log λ; log(−f′) is nearly linear in d near T_min.

        Every step begins with a common shift of all blocks that meets the budget.
        """
        n = self.length
        for _ in range(steps):
            d = d - math.log(float(n @ np.exp(d)) / (float(n.sum()) * room))
            above = np.exp(d)
            T = floor + above
            log_slope, curvature = self.cost.log_slope(T, m)
            bend = curvature * above
            if not np.all(bend > 0):
                return None
            # gap_b − bend_b Δd_b = log λ for all b, with Σ n_b above_b Δd_b = 0.
            gap = log_slope + self.log_weight
            spread = n * above / bend
            step = (gap - float(spread @ gap) / float(spread.sum())) / bend
            d = d + np.clip(step, -_MAX_STEP, _MAX_STEP)
            # Quadratic convergence: the remaining error is the square of this step, or the rounding of T.
            if np.all(np.abs(step) < 1e-7 + 1e-14 * T / above):
                return d
        return None

    def _from_table(self, m: float, floor: float, room: float) -> Floats:
        """Return log distances by interpolation in a table of −f′, which decreases in T because f is convex."""
        total = float(self.length.sum())
        d = np.linspace(math.log(room) - 18.0, math.log(room * total), _TABLE)
        slope, _ = self.cost.log_slope(floor + np.exp(d), m)
        d, slope = d[np.isfinite(slope)], slope[np.isfinite(slope)]
        rising = -np.maximum.accumulate(slope[::-1])[::-1]

        def at(log_lambda: float) -> Floats:
            return np.interp(self.log_weight - log_lambda, rising, d)

        def overspent(log_lambda: float) -> float:
            return math.log(float(self.length @ np.exp(at(log_lambda))) / (total * room))

        low, high = self.log_weight.min() - rising[-1], self.log_weight.max() - rising[0]
        if overspent(low) <= 0 or overspent(high) >= 0:
            return np.full(self.length.size, math.log(room))
        return at(brentq(overspent, low, high, xtol=1e-10))
