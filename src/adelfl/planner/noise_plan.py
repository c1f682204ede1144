"""Deadlines and batch sizes that minimise the noise of training itself rather than Theorem 1's bound on it.

    minimise  Σ_t a_t N(T_t, m_t)   within   Σ_t T_t ≤ T_max,        a_t = η_t² Π_{τ>t} (1 − η_τ ρ_c)

N(T, m), the noise of one round (:mod:`adelfl.theory.round_noise`), is the same function in every round. So the best m
for each deadline is tabulated once, which leaves V(T) = min_m N(T, m), and the budget is shared out such that another
second is worth the same in every round, −a_t V′(T_t) = μ. Deadlines may rise or fall: like √a_t where V falls like 1/T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray
from scipy.optimize import brentq

from adelfl.errors import InfeasibleBudgetError
from adelfl.planner.population import Population
from adelfl.schedule import round_up
from adelfl.theory import bound

Floats = NDArray[np.float64]
BatchScale = Literal["per-round", "one"]

_LEAST_RATE = 0.2
_LEAST_WEIGHT = 1e-250  # of a round, so that its logarithm is finite
_FINEST = 4096  # groups in the reference of grouping_error
_SMOOTH = 0.1  # largest error of log V for which a quartic replaces straight lines


@dataclass(frozen=True)
class Effort:
    """Resolution of the tables behind a plan."""

    groups: int = 32
    """Groups of similar devices."""
    deadlines: int = 13
    rates: int = 16
    """Deadlines and rates T/m in the table of N."""
    range: float = 8.0
    """Largest ratio of a deadline to the mean deadline, and of the mean to a deadline."""
    nodes: int = 24
    """Points of the integrals."""


THOROUGH, QUICK = Effort(), Effort(groups=8, deadlines=7, rates=9, range=4.0, nodes=14)
"""Resolutions for the plan before the first round, and for replanning after every round."""


@dataclass(frozen=True, eq=False)
class Price:
    """Table of V(T), the least noise of a round that takes T seconds, and of the best m."""

    T: Floats
    V: Floats
    m: Floats

    @classmethod
    def of(cls, population: Population, low: float, high: float, effort: Effort, m: float | None = None) -> Price:
        """Tabulate the noise between two deadlines with the best m for each, or with a given m."""
        T = np.geomspace(low, high, effort.deadlines)
        with np.errstate(divide="ignore", invalid="ignore"):
            if m is None:
                rate = np.geomspace(_LEAST_RATE, 4.0 * population.layers + 8.0, effort.rates)
                table = population.noise(T[:, None], T[:, None] / rate, effort.nodes)
                log_V, log_rate = _lowest(np.log(table), np.log(rate))
                scale = T / np.exp(log_rate)
            else:
                scale = np.full_like(T, m)
                log_V = np.log(population.noise(T, scale, effort.nodes))
        good = np.isfinite(log_V)
        if not good.any():
            return cls(T[-1:], np.array([np.inf]), T[-1:] if m is None else np.array([m]))
        T, log_V, scale = T[good], log_V[good], scale[good]
        if T.size < 2:
            return cls(T, np.exp(log_V), scale)
        fine = np.geomspace(T[0], T[-1], 40 * T.size)
        # More time is never worse, since a round may close early.
        V = np.minimum.accumulate(np.exp(_smooth(np.log(T), log_V, np.log(fine))))
        return cls(fine, V, np.exp(np.interp(np.log(fine), np.log(T), np.log(scale))))

    def share_out(self, a: Floats, budget: float) -> Floats:
        """Return T_1..T_R with −a_t V′(T_t) = μ and the budget as their sum."""
        mean = budget / a.size
        if self.T.size < 2:
            return np.full(a.size, mean)
        hull = _lower_hull(self.T, self.V)
        slope = -np.diff(self.V[hull]) / np.diff(self.T[hull])
        falls = slope > 0
        if not falls.any():
            return np.full(a.size, mean)
        middle = 0.5 * (self.T[hull][1:] + self.T[hull][:-1])[falls]
        log_slope = np.log(slope[falls])
        log_a = np.log(a)

        def times(log_mu: float) -> Floats:
            return np.interp(log_mu - log_a, log_slope[::-1], middle[::-1])

        def overspent(log_mu: float) -> float:
            return float(times(log_mu).sum()) / budget - 1.0

        low, high = log_slope[-1] + log_a.min(), log_slope[0] + log_a.max()
        if overspent(low) > 0 > overspent(high):
            low = brentq(overspent, low, high, xtol=1e-13)
        elif overspent(low) > 0:
            low = high
        T = times(low)
        return np.asarray(T * (budget / T.sum()), dtype=np.float64)

    def value(self, T: Floats) -> Floats:
        """Interpolate V; outside the table it is constant."""
        V: Floats = np.exp(np.interp(np.log(T), np.log(self.T), np.log(np.maximum(self.V, 1e-300))))
        return V

    def scale(self, T: Floats) -> Floats:
        """Interpolate the best m."""
        m: Floats = np.exp(np.interp(np.log(T), np.log(self.T), np.log(self.m)))
        return m


@dataclass(frozen=True, eq=False)
class NoisePlan:
    """Deadlines T, batch scales m and their noise."""

    T: Floats
    m: float | Floats
    excess: float
    """Σ_t a_t N_t."""
    left: float
    """Π (1 − η_t ρ_c) Δ_1, the remainder of the initial error."""

    @property
    def bound(self) -> float:
        """Bound on E‖w_{R+1} − w*‖² without its term 6 ρ_s Γ."""
        return self.excess + self.left


def _lowest(table: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Return the minimum of each row and its place, by a parabola through the lowest point and its neighbours."""
    i = np.argmin(np.where(np.isfinite(table), table, np.inf), axis=1)
    row = np.arange(table.shape[0])
    j = np.clip(i, 1, x.size - 2)
    left, here, right = table[row, j - 1], table[row, j], table[row, j + 1]
    bend = left - 2.0 * here + right
    ok = np.isfinite(bend) & (bend > 0) & (i == j)
    shift = np.where(ok, 0.5 * (left - right) / np.where(ok, bend, 1.0), 0.0)
    height = np.where(ok, here - 0.25 * (left - right) * shift, table[row, i])
    return height, np.where(ok, x[j] + shift * (x[1] - x[0]), x[i])


def _smooth(x: Floats, y: Floats, at: Floats) -> Floats:
    """Interpolate by a quartic, whose slope is smooth, if the points nearly lie on one, and else by straight lines."""
    if x.size >= 6:
        middle = x.mean()
        curve = polynomial.polyfit(x - middle, y, 4)
        if np.max(np.abs(polynomial.polyval(x - middle, curve) - y)) < _SMOOTH:
            return np.asarray(polynomial.polyval(at - middle, curve), dtype=np.float64)
    return np.interp(at, x, y)


def _lower_hull(x: Floats, y: Floats) -> list[int]:
    """Return the points on the largest convex function below y."""
    kept: list[int] = []
    for i in range(x.size):
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return kept


def solve(
    population: Population,
    eta: Floats,
    budget: float,
    *,
    rho_c: float,
    Delta1: float,
    batch_scale: BatchScale = "per-round",
    uniform: bool = False,
    effort: Effort = THOROUGH,
) -> NoisePlan:
    """Share a budget out over the rounds of a learning rate.

    The plan that ignores the devices' data is taken if it needs no more samples than each device holds; otherwise
    batches are cut to the data in all comparisons.

    Parameters
    ----------
    population, eta, budget
        Devices that take part, learning rates (shape (R,)), and seconds.
    rho_c, Delta1 : float
        Constants of Theorem 1.
    batch_scale : {"per-round", "one"}
        m_t, or one m.
    uniform : bool
        Whether all deadlines are equal, and only m is chosen.

    Raises
    ------
    InfeasibleBudgetError
        If no upload fits into the mean deadline.
    """
    if population.samples is not None:
        choices = {"batch_scale": batch_scale, "uniform": uniform, "effort": effort}
        free = solve(replace(population, samples=None), eta, budget, rho_c=rho_c, Delta1=Delta1, **choices)  # type: ignore[arg-type]
        if not population.exceeds(free.T, free.m):
            return free
    a = np.maximum(bound.weights(eta, rho_c), _LEAST_WEIGHT)
    mean = budget / a.size
    if float(np.min(population.B)) >= mean:
        raise _no_plan(population, a.size, budget)
    low, high = _ends(population, mean, effort.range)
    small = population.sending_within(high).condensed(effort.groups)
    best = _shared(Price.of(small, low, high, effort), a, budget, uniform=uniform)
    if batch_scale == "one":
        best = _one_scale(small, a, budget, float(np.median(best[1])), (low, high), effort, uniform=uniform)
    T, m, excess = best
    if not np.isfinite(excess):
        raise _no_plan(population, a.size, budget)
    left = Delta1 * bound.initial_error_left(eta, rho_c)
    return NoisePlan(T, float(m[0]) if batch_scale == "one" else m, excess, left)


def _ends(population: Population, mean: float, ratio: float) -> tuple[float, float]:
    """Return the ends of the table of deadlines: around the mean, and longer than the quickest upload."""
    shortest = float(np.min(population.B))
    return max(mean / ratio, shortest + (mean - shortest) / ratio), mean * ratio


def _shared(price: Price, a: Floats, budget: float, *, uniform: bool = False) -> tuple[Floats, Floats, float]:
    """Return T, m and Σ a V: shared out, or uniform where that is no worse (V need not be convex)."""
    T = np.full(a.size, budget / a.size)
    if not uniform:
        T = min((price.share_out(a, budget), T), key=lambda T: float(a @ price.value(T)))
    return T, price.scale(T), float(a @ price.value(T))


def _one_scale(
    population: Population,
    a: Floats,
    budget: float,
    guess: float,
    ends: tuple[float, float],
    effort: Effort,
    *,
    uniform: bool,
) -> tuple[Floats, Floats, float]:
    def shared(m: float) -> tuple[Floats, Floats, float]:
        return _shared(Price.of(population, *ends, effort, m), a, budget, uniform=uniform)

    m = guess * np.geomspace(0.25, 4.0, 13)
    plans = [shared(float(one)) for one in m]
    with np.errstate(divide="ignore"):
        _, best = _lowest(np.log([[excess for _, _, excess in plans]]), np.log(m))
    return min((*plans, shared(float(np.exp(best[0])))), key=lambda plan: plan[2])


def check_uploads(population: Population, rounds: int, budget: float) -> None:
    """Raise an error if no upload fits into a round."""
    if float(np.min(population.B)) >= budget / rounds:
        raise _no_plan(population, rounds, budget)


def _no_plan(population: Population, rounds: int, budget: float) -> InfeasibleBudgetError:
    shortest = float(np.min(population.B))
    smallest = round_up(rounds * shortest)
    binding = f"the quickest upload takes {shortest:.4g} s, as long as a round of {budget / rounds:.4g} s"
    return InfeasibleBudgetError(
        f"no plan exists for budget = {budget:g} s and rounds = {rounds}: {binding}; "
        f"the smallest budget that would do is {smallest:g} s",
        binding=binding,
        smallest_budget=smallest,
    )


def grouping_error(population: Population, plan: NoisePlan) -> float:
    """Return the relative error of N in a round of mean length from merging devices; 0 if none were merged."""
    if population.P.size <= THOROUGH.groups:
        return 0.0
    T = np.array([plan.T.mean()])
    m = np.interp(T, np.sort(plan.T), np.sort(np.broadcast_to(plan.m, plan.T.shape)))
    fine, coarse = (
        float(population.condensed(groups).noise(T, m, THOROUGH.nodes)[0]) for groups in (_FINEST, THOROUGH.groups)
    )
    return abs(coarse / fine - 1.0)
