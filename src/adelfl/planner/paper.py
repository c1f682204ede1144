"""Plans for the paper's objective (Problem 2): admission of devices, solution, and what limits it.

Some m meets every constraint at deadline T iff T > B_u + x_min(U)/P_u for all u (docs/planner.md): an upload, and
x_min layers of one sample each. Leaving a device out lowers U, which raises x_min, so admission repeats until nothing
changes; the result is the largest set that can be planned.
"""

from __future__ import annotations

import numpy as np

from adelfl.array_types import Bools, Floats, Ints
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.planner import exact, trust_region
from adelfl.planner.exact import Optimum
from adelfl.planner.grouping import grouping_error, merge_equal, merge_near
from adelfl.planner.problem import Problem
from adelfl.planner.solution import Alternative, Method, SittingOut, Solution, short_of_data
from adelfl.schedule import round_up
from adelfl.theory import bound
from adelfl.theory.bound import RoundCost
from adelfl.theory.participation import P_EMPTY_LIMIT, p_empty_bound, smallest_rate

_MOST_TERMS = 50_000_000  # of Theorem 1's bound, one for each round and layer


def plan_paper(problem: Problem, method: Method, strict: bool) -> Solution:
    """Minimise Theorem 1's bound."""
    if problem.rounds * problem.layers > _MOST_TERMS:
        raise ConfigError(
            f"{problem.rounds:,} rounds × {problem.layers:,} layers are too many for objective 'paper' "
            f"(at most {_MOST_TERMS:,}); use objective 'tight', or fewer rounds"
        )
    keep, sitting_out = admit(problem, strict=strict)
    every = exact_cost(problem, keep)
    distinct = merge_equal(every)
    cost = merge_near(distinct)
    c = problem.constants
    a = bound.weights(problem.eta, c.rho_c)
    warnings = bound.violated_conditions(problem.eta, c.rho_s)
    uniform = exact.minimise_uniform(cost, problem.rounds, problem.budget)
    if method == "exact":
        try:
            best = exact.minimise(cost, a, problem.budget, guess=uniform.m)
        except exact.NotConverged as error:
            method = "trust-region"
            warnings += (f"the exact solver did not converge ({error}); the trust-region solver made this plan",)
            best = trust_region.minimise(cost, a, problem.budget, start=uniform)
    else:
        best = trust_region.minimise(cost, a, problem.budget)

    def values(at: Optimum) -> tuple[float, float]:
        """Return J and its excess."""
        extra = _cost_of_little_data(problem, every, keep, a, at)
        J = bound.J(cost, problem.eta, at.T, at.m, rho_c=c.rho_c, rho_s=c.rho_s, Gamma=c.Gamma, Delta1=c.Delta1)
        return J + extra, bound.excess(cost, a, at.T, at.m) + extra

    J, excess = values(best)
    schedule = problem.schedule(best.T, best.m, ~keep)
    return Solution(
        problem=problem,
        schedule=schedule,
        m=best.m,
        bound=J,
        excess=excess,
        uniform=Alternative(problem.uniform_deadline, uniform.m, *values(uniform)),
        binding=_binding(problem, every, np.flatnonzero(keep), best) + short_of_data(schedule),
        sitting_out=sitting_out,
        warnings=warnings,
        grouping_error=grouping_error(distinct, cost, best.T, best.m),
        method=method,
    )


def exact_cost(problem: Problem, keep: Bools) -> RoundCost:
    """Return the cost f_m of the devices that take part, one entry per group of the fleet."""
    count = problem.fleet.count[keep].astype(np.float64)
    return RoundCost(
        L=problem.layers,
        U=problem.cohort_of(int(count.sum())),
        P=problem.speed[keep],
        B=problem.fleet.upload[keep],
        share=problem.sigma2[keep] * (count / count.sum()),
        G2=np.asarray(problem.constants.G2, dtype=np.float64),
    )


# -- which devices a plan can serve


def needed_deadlines(problem: Problem, devices: int) -> Floats:
    """Return B_u + x_min/P_u of each group, which the mean deadline must exceed when this many devices take part."""
    return problem.fleet.upload + smallest_rate(problem.layers, problem.cohort_of(devices)) / problem.speed


def admit(problem: Problem, *, strict: bool = False) -> tuple[Bools, tuple[SittingOut, ...]]:
    """Return the mask of the groups that take part in the plan, and a description of the others.

    If no plan exists, or a strict one would leave a device out, the error names the limiting device and a feasible
    budget.
    """
    keep, needed = _admitted(problem, problem.uniform_deadline)
    if keep.all():
        return keep, ()
    if strict or not keep.any():
        raise _infeasible(problem, strict=strict)
    out = np.flatnonzero(~keep).tolist()
    return keep, tuple(SittingOut.of(problem, i, _reason(problem, i, needed[i])) for i in out)


def _admitted(problem: Problem, deadline: float) -> tuple[Bools, Floats]:
    """Return the largest set of groups that a plan with this mean deadline can serve; empty below two devices.

    Also return the deadline that each group needed in the pass that excluded it (or in the last one).
    """
    keep = np.ones(problem.fleet.groups, dtype=bool)
    needed = np.zeros(problem.fleet.groups)
    while True:
        devices = int(problem.fleet.count[keep].sum())
        if devices < 2:
            return np.zeros_like(keep), needed
        needed = np.where(keep, needed_deadlines(problem, devices), needed)
        still = keep & (needed < deadline)
        if np.array_equal(still, keep):
            return keep, needed
        keep = still


def _reason(problem: Problem, group: int, needed: float) -> str:
    T = problem.uniform_deadline
    if problem.fleet.upload[group] >= T:
        return f"its upload of {problem.fleet.upload[group]:.4g} s outlasts the affordable deadline of {T:.4g} s"
    return f"with a single sample it needs {needed:.4g} s, more than the affordable deadline of {T:.4g} s"


def _infeasible(problem: Problem, *, strict: bool) -> InfeasibleBudgetError:
    needed = needed_deadlines(problem, problem.fleet.size)
    worst = int(np.argmax(needed))
    for_all = round_up(problem.rounds * float(needed[worst]))
    low, high = 0.0, float(needed[worst]) * (1 + 1e-9)
    if not strict:
        for _ in range(100):  # bisection to the last bit, since admission is monotone in the deadline
            middle = 0.5 * (low + high)
            low, high = (low, middle) if _admitted(problem, middle)[0].any() else (middle, high)
        first, needed = _admitted(problem, high)
        worst = int(np.argmax(np.where(first, needed, -np.inf)))
    smallest = round_up(problem.rounds * high)
    binding = f"{problem.fleet.name(worst)} is the limit: {_reason(problem, worst, needed[worst])}"
    advice = f"the smallest feasible budget is {smallest:g} s"
    if for_all > smallest:
        advice += f" ({for_all:g} s to serve every device)"
    return InfeasibleBudgetError(
        f"no plan exists for budget = {problem.budget:g} s and rounds = {problem.rounds}: {binding}; {advice}",
        binding=binding,
        smallest_budget=smallest,
    )


# -- what limits a plan


def _binding(problem: Problem, cost: RoundCost, groups: Ints, at: Optimum) -> tuple[str, ...]:
    T, m = at.T, at.m
    names = []
    if T.sum() >= problem.budget * (1 - 1e-9):
        names.append("budget")
    if np.any(np.diff(T) >= -1e-12 * T[:-1]):
        names.append("order")
    shortest = T.min()
    if p_empty_bound(cost.L, shortest / m, cost.U)[0] > 0.5 * P_EMPTY_LIMIT:
        names.append("coverage")
    real_batch = m * cost.P * (1.0 - cost.B / shortest)
    slowest = int(np.argmin(real_batch))
    if real_batch[slowest] < 2.0:
        names.append(f"one sample: {problem.fleet.name(int(groups[slowest]))}")
    return tuple(names)


def _cost_of_little_data(problem: Problem, cost: RoundCost, keep: Bools, a: Floats, at: Optimum) -> float:
    """Return Σ_t a_t times the increase of B_t because batches are cut to the devices' data; 0 where none is cut.

    More than 64 rounds are pooled into 64 sets of similar deadlines.
    """
    if problem.fleet.samples is None:
        return 0.0
    held = problem.fleet.samples[keep]
    total = 0.0
    for rounds in np.array_split(np.argsort(at.T, kind="stable"), min(64, at.T.size)):
        T = float(at.T[rounds].mean())
        spare = at.m * cost.P * (1.0 - cost.B / T) - 1.0
        cut = spare > held
        total += float(a[rounds].sum() * (cost.share[cut] @ (1.0 / held[cut] - 1.0 / spare[cut]))) / cost.U
    return total
