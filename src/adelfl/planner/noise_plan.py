"""Deadlines and batch sizes that minimise the noise of training, rather than Theorem 1's bound on it (docs/adel.md).

    minimise  Σ_t a_t N(T_t, m_t)   within   Σ_t T_t ≤ T_max,        a_t = η_t² Π_{τ>t} (1 − η_τ ρ_c)
    T_t = B + (T_max/R − B) √a_t / mean √a,     m_t = T_t/x

N(T, m) is the noise of one round (:mod:`adelfl.theory.round_noise`), and B the median upload that fits into a mean
round. One search finds x. Equal deadlines are used if they leave less noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from adelfl.array_types import Floats, select
from adelfl.errors import InfeasibleBudgetError
from adelfl.latency import LatencyModel, delivery_of, for_plans
from adelfl.planner.local_work import least_batch
from adelfl.planner.problem import Problem
from adelfl.planner.solution import Alternative, SittingOut, Solution, short_of_data
from adelfl.schedule import batch_floor, round_up
from adelfl.theory import bound
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.round_noise import memory, precision, round_noise

_LEAST_RATE, _RATES = 0.2, 14  # smallest rate and number of rates in the search for x
_SHORTEST = 0.1  # least computing time of a round, as a share of the longest
_GROUPS, _FINEST = 32, 4096  # groups of similar devices in a plan, and in the reference of grouping_error
_NODES = 24  # points of the integrals
_POINTS = 9  # deadlines at which the noise of a plan is computed, and interpolated for the others


@dataclass(frozen=True, eq=False)
class Population:
    """Groups of devices that take part in a round."""

    P: Floats
    """P_u / E, shape (groups,): a device counts after all of its local iterations, which is exact for E = 1 only."""
    B: Floats
    """B_u, shape (groups,)."""
    count: Floats
    """Devices in each group."""
    chance: Floats
    """Probability that a device takes part in a round: it is drawn into the cohort, and available."""
    layers: int
    spread: GradientStats
    memory: float
    """Rounds over which a lasting bias adds up."""
    latency: LatencyModel
    samples: Floats | None
    """Samples that a device holds, which its batches do not exceed; None for no bound."""
    overhead: Floats
    """s₀: cost of a step besides its samples."""
    smallest: Floats
    """Smallest batch size of a device."""

    @classmethod
    def of(cls, problem: Problem) -> Population:
        """Return the fleet of a problem."""
        share = 1.0 if problem.cohort is None else problem.cohort / problem.fleet.size
        return cls(
            P=problem.speed,
            B=problem.fleet.upload,
            count=problem.fleet.count.astype(np.float64),
            chance=np.full(problem.fleet.groups, share),
            layers=problem.layers,
            spread=problem.spread,
            memory=memory(problem.eta, problem.constants.rho_c),
            latency=for_plans(problem.latency),
            samples=problem.fleet.samples,
            overhead=problem.fleet.overhead_of(),
            smallest=batch_floor(problem.fleet.overhead_of(), least_batch(problem)),
        )

    def sending_within(self, seconds: float) -> Population:
        """Return the devices whose upload fits into the deadline."""
        return select(self, self.B < seconds)

    def condensed(self, groups: int) -> Population:
        """Return an approximation with fewer groups, similar in speed and upload, with the mean of 1/P and of B."""
        if self.P.size <= groups:
            return self
        uploads = 1 if np.ptp(self.B) == 0 else 4
        speeds = max(1, groups // uploads)
        order = np.argsort(self.P, kind="stable")
        place = np.empty_like(self.count)
        place[order] = (np.cumsum(self.count[order]) - 0.5 * self.count[order]) / self.count.sum()
        label = np.minimum((place * speeds).astype(np.int64), speeds - 1) * uploads
        if uploads > 1:
            by_upload = np.lexsort((self.B, label))
            first = np.searchsorted(label[by_upload], label[by_upload], side="left")
            size = np.searchsorted(label[by_upload], label[by_upload], side="right") - first
            label[by_upload] += (np.arange(label.size) - first) * uploads // size
        n = np.bincount(label, self.count).astype(np.float64)
        some = n > 0

        def mean(values: Floats) -> Floats:
            return np.bincount(label, self.count * values)[some] / n[some]

        samples = None if self.samples is None else mean(self.samples)
        return replace(
            self,
            P=1.0 / mean(1.0 / self.P),
            B=mean(self.B),
            count=n[some],
            chance=mean(self.chance),
            samples=samples,
            overhead=mean(self.overhead),
            smallest=mean(self.smallest),
        )

    def noise(self, T: Floats, m: Floats, nodes: int) -> Floats:
        """Return N(T, m), broadcast over both; infinite where no upload fits."""
        T, m = np.broadcast_arrays(T, m)
        T_, m_ = T[..., None], m[..., None]
        fits = self.B < T_
        # Rule B3 rounds down by half a sample on average.
        S = np.maximum(self.smallest, m_ * self.P * np.maximum(1.0 - self.B / T_, 0.0) - 0.5 - self.overhead)
        if self.samples is not None:
            S = np.minimum(S, self.samples)
        delivered = delivery_of(self.latency, (S + self.overhead) / self.P, self.B, T_, self.layers)
        pi = delivered * (self.chance * fits)[..., None]
        v = precision(S, self.spread, self.memory)
        total = round_noise(pi, S, self.spread, v, self.count, nodes=nodes).total(self.memory)
        return np.where(np.isfinite(total) & fits.any(axis=-1), total, np.inf)


@dataclass(frozen=True, eq=False)
class NoisePlan:
    """Deadlines T, batch scales m and Σ_t a_t N_t, the noise that they leave."""

    T: Floats
    m: Floats
    excess: float


def plan_noise(problem: Problem, strict: bool) -> Solution:
    """Minimise the noise; ``strict`` raises an error if a device would sit out."""
    c, eta, population = problem.constants, problem.eta, Population.of(problem)
    best = solve(population, eta, problem.budget, rho_c=c.rho_c)
    uniform = solve(population, eta, problem.budget, rho_c=c.rho_c, shortest=1.0)
    left = c.Delta1 * bound.initial_error_left(eta, c.rho_c)
    longest, upload = best.T.max(), problem.fleet.upload
    out = upload >= longest
    sitting_out = tuple(
        SittingOut.of(problem, i, f"its upload of {upload[i]:.4g} s outlasts the longest deadline of {longest:.4g} s")
        for i in np.flatnonzero(out).tolist()
    )
    if strict and sitting_out:
        name, reason = sitting_out[0].name, sitting_out[0].reason
        raise InfeasibleBudgetError(f"{name} would sit out: {reason}", binding=reason)
    least = least_batch(problem) if population.overhead.any() else None
    schedule = problem.schedule(best.T, best.m, out, least)
    smallest = schedule.batch_sizes(int(np.argmin(best.T)))
    single = [f"one sample: {problem.fleet.name(i)}" for i in np.flatnonzero((smallest == 1) & ~out)[:1].tolist()]
    return Solution(
        problem=problem,
        schedule=schedule,
        m=best.m,
        bound=best.excess + left,
        excess=best.excess,
        uniform=Alternative(problem.uniform_deadline, float(uniform.m[0]), uniform.excess + left, uniform.excess),
        binding=("budget", *single, *short_of_data(schedule)),
        sitting_out=sitting_out,
        grouping_error=grouping_error(population, best),
        objective="tight",
    )


def solve(
    population: Population, eta: Floats, budget: float, *, rho_c: float, shortest: float = _SHORTEST
) -> NoisePlan:
    """Distribute a budget over the rounds of a learning rate, shape (R,).

    ``shortest`` is the least computing time of a round, as a share of the longest; 1 makes all deadlines equal.

    If the plan for unlimited data needs no more samples than each device holds, it is used; otherwise all batches are
    cut to the data. Raises InfeasibleBudgetError if no upload fits into the mean deadline, or no device is expected to
    deliver.
    """
    check_uploads(population, eta.size, budget)
    if population.samples is not None:
        free = solve(replace(population, samples=None), eta, budget, rho_c=rho_c, shortest=shortest)
        t = int(np.argmax(free.T))
        largest = free.m[t] * population.P * np.maximum(1.0 - population.B / free.T[t], 0.0) - population.overhead
        if np.all(np.floor(largest) <= population.samples):
            return free
    a, mean = bound.weights(eta, rho_c), budget / eta.size
    fits = population.sending_within(mean)
    by_upload = np.argsort(fits.B, kind="stable")
    devices = np.cumsum(fits.count[by_upload])
    lag = float(fits.B[by_upload][np.searchsorted(devices, 0.5 * devices[-1])])  # the median
    share = np.sqrt(a)
    share = np.maximum(share, shortest * share.max())
    T = lag + (mean - lag) * share / share.mean()
    small = population.sending_within(float(T.max())).condensed(_GROUPS)
    x = _best_rate(small, mean)
    equal = np.full(eta.size, mean)
    plans = [NoisePlan(T, T / x, _excess(small, a, T, x)) for T in (T, equal)]
    best = min(plans, key=lambda plan: plan.excess)
    if not np.isfinite(best.excess):
        binding = f"no device is expected to deliver anything in a round of {mean:.4g} s"
        raise InfeasibleBudgetError(f"no plan: {binding}", binding=binding)
    return best


def _best_rate(population: Population, deadline: float) -> float:
    """Return the rate x = T/m with the least noise, from a coarse and a fine grid around the best point of it."""
    low, high = _LEAST_RATE, 4.0 * population.layers + 8.0
    for _ in range(2):
        x = np.geomspace(low, high, _RATES)
        i = int(np.argmin(population.noise(np.full(_RATES, deadline), deadline / x, _NODES)))
        low, high = x[max(0, i - 1)], x[min(_RATES - 1, i + 1)]
    return float(x[i])


def _excess(population: Population, a: Floats, T: Floats, x: float) -> float:
    some = np.geomspace(T.min(), T.max(), 1 if T.min() == T.max() else _POINTS)
    with np.errstate(divide="ignore"):
        log_N = np.log(population.noise(some, some / x, _NODES))
    if not np.isfinite(log_N).all():
        return np.inf
    return float(a @ np.exp(np.interp(np.log(T), np.log(some), log_N)))


def check_uploads(population: Population, rounds: int, budget: float) -> None:
    """Raise an error if no upload fits into a round."""
    shortest = float(np.min(population.B))
    if shortest < budget / rounds:
        return
    smallest = round_up(rounds * shortest)
    binding = f"the quickest upload takes {shortest:.4g} s, as long as a round of {budget / rounds:.4g} s"
    raise InfeasibleBudgetError(
        f"no plan exists for budget = {budget:g} s and rounds = {rounds}: {binding}; "
        f"the smallest feasible budget is {smallest:g} s",
        binding=binding,
        smallest_budget=smallest,
    )


def grouping_error(population: Population, plan: NoisePlan) -> float:
    """Return the relative error of N in a round of mean length from merging devices; 0 if none were merged."""
    if population.P.size <= _GROUPS:
        return 0.0
    T = np.array([plan.T.mean()])
    m = T * plan.m[0] / plan.T[0]
    fine, coarse = (float(population.condensed(groups).noise(T, m, _NODES)[0]) for groups in (_FINEST, _GROUPS))
    return abs(coarse / fine - 1.0)
