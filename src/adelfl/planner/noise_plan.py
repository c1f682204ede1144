"""Deadlines and batch sizes that minimise the noise of training itself, not Theorem 1's bound on it.

    minimise  Σ_t a_t N(T_t, m_t)   within   Σ_t T_t ≤ T_max,        a_t = η_t² Π_{τ>t} (1 − η_τ ρ_c)

N(T, m), the noise of one round (:mod:`adelfl.theory.round_noise`), is the same function in every round. So the best m
for each deadline is found once, which leaves V(T) = min_m N(T, m), and the budget is shared out until another second is
worth the same everywhere, −a_t V′(T_t) = μ. Deadlines may rise or fall: √a_t where V falls like 1/T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import InfeasibleBudgetError
from adelfl.planner.population import Population
from adelfl.schedule import round_up
from adelfl.theory import bound

Floats = NDArray[np.float64]
BatchScale = Literal["per-round", "one"]

_LEAST_RATE = 0.2
_LEAST_WEIGHT = 1e-250  # of a round that is all but forgotten; its logarithm must be a number
_FINEST = 4096  # groups that a plan's grouping is compared with
_SMOOTH = 0.1  # of log V


@dataclass(frozen=True)
class Effort:
    """How finely a plan is made.

    Attributes
    ----------
    groups : int
        Of alike devices.
    deadlines, rates : int
        In the table of N.
    range : float
        How many times shorter and longer than their mean deadlines may be.
    nodes : int
        Points of the integrals.
    """

    groups: int = 32
    deadlines: int = 13
    rates: int = 16
    range: float = 8.0
    nodes: int = 24


THOROUGH, QUICK = Effort(), Effort(groups=8, deadlines=7, rates=9, range=4.0, nodes=14)
"""For a plan before the first round, and for one after every round."""


@dataclass(frozen=True, eq=False)
class Price:
    """V(T): the least noise of a round that takes T seconds, and the m that has it, between the ends of a table."""

    T: Floats
    V: Floats
    m: Floats

    @classmethod
    def of(cls, population: Population, low: float, high: float, effort: Effort) -> Price:
        """Tabulate the best m for some deadlines, and a smooth curve through them."""
        T = np.geomspace(low, high, effort.deadlines)
        rate = np.geomspace(_LEAST_RATE, 4.0 * population.layers + 8.0, effort.rates)
        table = population.noise(T[:, None], T[:, None] / rate, effort.nodes)
        with np.errstate(divide="ignore", invalid="ignore"):
            height, best = _lowest(np.log(table), np.log(rate))
        good = np.isfinite(height)
        if not good.any():
            return cls(T[-1:], np.array([np.inf]), T[-1:])
        return cls._through(T[good], height[good], T[good] / np.exp(best[good]))

    @classmethod
    def at(cls, population: Population, m: float, low: float, high: float, effort: Effort) -> Price:
        """The same with one m for every deadline."""
        T = np.geomspace(low, high, effort.deadlines)
        with np.errstate(divide="ignore"):
            height = np.log(population.noise(T, np.full_like(T, m), effort.nodes))
        good = np.isfinite(height)
        if not good.any():
            return cls(T[-1:], np.array([np.inf]), np.array([m]))
        return cls._through(T[good], height[good], np.full(int(good.sum()), m))

    @classmethod
    def _through(cls, T: Floats, log_V: Floats, m: Floats) -> Price:
        if T.size < 2:
            return cls(T, np.exp(log_V), m)
        fine = np.geomspace(T[0], T[-1], 40 * T.size)
        # More time is never worse: who has too much may wait.
        V = np.minimum.accumulate(np.exp(_smooth(np.log(T), log_V, np.log(fine))))
        return cls(fine, V, np.exp(np.interp(np.log(fine), np.log(T), np.log(m))))

    def share_out(self, a: Floats, budget: float) -> Floats:
        """T_1..T_R with −a_t V′(T_t) = μ, adding up to the budget."""
        mean = budget / a.size
        if self.T.size < 2:
            return np.full(a.size, mean)
        hull = _lower_hull(self.T, self.V)
        T, V = self.T[hull], self.V[hull]
        slope = -np.diff(V) / np.diff(T)
        falls = slope > 0
        if not falls.any():
            return np.full(a.size, mean)
        middle, log_slope = 0.5 * (T[1:] + T[:-1])[falls], np.log(slope[falls])
        log_a = np.log(a)

        def times(log_mu: float) -> Floats:
            found: Floats = np.interp(log_mu - log_a, log_slope[::-1], middle[::-1])
            return found

        low, high = log_slope[-1] + log_a.min(), log_slope[0] + log_a.max()
        for _ in range(60):
            guess = 0.5 * (low + high)
            low, high = (guess, high) if times(guess).sum() > budget else (low, guess)
        found = times(high)
        return np.asarray(found * (budget / found.sum()), dtype=np.float64)

    def value(self, T: Floats) -> Floats:
        """V, outside the table as at its ends."""
        found: Floats = np.exp(np.interp(np.log(T), np.log(self.T), np.log(np.maximum(self.V, 1e-300))))
        return found

    def scale(self, T: Floats) -> Floats:
        """The best m."""
        found: Floats = np.exp(np.interp(np.log(T), np.log(self.T), np.log(self.m)))
        return found


@dataclass(frozen=True, eq=False)
class NoisePlan:
    """Deadlines, batch scales, and what they come to.

    Attributes
    ----------
    T : ndarray, shape (R,)
    m : float or ndarray of shape (R,)
    excess : float
        Σ_t a_t N_t.
    left : float
        Π (1 − η_t ρ_c) Δ_1, what is left of the error before the first round.
    """

    T: Floats
    m: float | Floats
    excess: float
    left: float

    @property
    def bound(self) -> float:
        """Of E‖w_{R+1} − w*‖², but for 6 ρ_s Γ."""
        return self.excess + self.left


def _lowest(table: Floats, x: Floats) -> tuple[Floats, Floats]:
    """The least value of each row and where it is, by a parabola through the lowest point and its neighbours."""
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
    """A quartic through points that lie on one, so that its slope is smooth; straight lines where it jumps."""
    if x.size >= 6:
        middle = x.mean()
        curve = np.polynomial.polynomial.polyfit(x - middle, y, 4)
        if np.max(np.abs(np.polynomial.polynomial.polyval(x - middle, curve) - y)) < _SMOOTH:
            found: Floats = np.polynomial.polynomial.polyval(at - middle, curve)
            return found
    return np.interp(at, x, y)


def _lower_hull(x: Floats, y: Floats) -> list[int]:
    """Points of the largest convex function below y."""
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

    Where the best plan without regard to the devices' data asks no device for more samples than it holds, that is the
    plan; otherwise batches are cut to the data in everything that is compared.

    Parameters
    ----------
    population : Population
    eta : ndarray, shape (R,)
    budget : float
    rho_c, Delta1 : float
    batch_scale : {"per-round", "one"}
        m_t, or one m.
    uniform : bool
        Keep all deadlines alike, and choose m only.
    effort : Effort
        How finely.

    Raises
    ------
    InfeasibleBudgetError
        If nobody's upload fits into the mean deadline.
    """
    if population.samples is not None:
        free = solve(
            replace(population, samples=None),
            eta,
            budget,
            rho_c=rho_c,
            Delta1=Delta1,
            batch_scale=batch_scale,
            uniform=uniform,
            effort=effort,
        )
        if not population.exceeds(free.T, free.m):
            return free
    a = np.maximum(bound.weights(eta, rho_c), _LEAST_WEIGHT)
    mean = budget / a.size
    check_uploads(population, a.size, budget)
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
    """The deadlines that are looked at: around the mean, and longer than the quickest upload."""
    shortest = float(np.min(population.B))
    return max(mean / ratio, shortest + (mean - shortest) / ratio), mean * ratio


def _shared(price: Price, a: Floats, budget: float, *, uniform: bool = False) -> tuple[Floats, Floats, float]:
    """T, m and Σ a V: shared out, or uniform where that is no worse (V need not be convex)."""
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
    m = guess * np.geomspace(0.25, 4.0, 13)
    found = [_shared(Price.at(population, float(one), *ends, effort), a, budget, uniform=uniform) for one in m]
    with np.errstate(divide="ignore"):
        _, best = _lowest(np.log([[f[2] for f in found]]), np.log(m))
    refined = _shared(Price.at(population, float(np.exp(best[0])), *ends, effort), a, budget, uniform=uniform)
    return min((*found, refined), key=lambda f: f[2])


def check_uploads(population: Population, rounds: int, budget: float) -> None:
    """Refuse a budget in which nobody could send anything."""
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


def grouping_error(population: Population, found: NoisePlan) -> float:
    """Relative error of N in a round of mean length that putting near devices together makes; 0 if none was made."""
    if population.P.size <= THOROUGH.groups:
        return 0.0
    T = np.array([found.T.mean()])
    m = np.interp(T, np.sort(found.T), np.sort(np.broadcast_to(found.m, found.T.shape)))
    fine, coarse = (
        float(population.condensed(groups).noise(T, m, THOROUGH.nodes)[0]) for groups in (_FINEST, THOROUGH.groups)
    )
    return abs(coarse / fine - 1.0)
