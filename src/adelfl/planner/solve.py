"""``plan(problem) -> Solution``: deadlines for every round and a batch size for every device."""

from __future__ import annotations

from typing import get_args

import numpy as np

from adelfl.clock import monotonic
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.planner import noise_plan
from adelfl.planner.paper import plan_paper, short_of_data
from adelfl.planner.population import Population
from adelfl.planner.problem import Problem
from adelfl.planner.solution import Alternative, Method, Objective, SittingOut, Solution
from adelfl.theory.bound import initial_error_left


def plan(
    problem: Problem, *, method: Method = "exact", strict: bool = False, objective: Objective = "tight"
) -> Solution:
    """Plan deadlines and batch sizes.

    Parameters
    ----------
    problem : Problem
        Fleet, budget, rounds, learning rate and constants.
    method : {"exact", "trust-region"}
        Solver of the paper's objective: the exact one, or the paper's general one (slower; the reference).
    strict : bool
        Whether to fail if a device cannot be served, rather than leave it out.
    objective : {"tight", "paper"}
        Minimise the noise of the rounds itself (docs/beyond.md), with deadlines in any order and every device that can
        send anything, or Theorem 1's bound on it (Problem 2).

    Raises
    ------
    InfeasibleBudgetError
        If no plan exists.
    """
    for key, value, choices in (("method", method, get_args(Method)), ("objective", objective, get_args(Objective))):
        if value not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(choices)}, not {value!r}")
    if objective == "tight" and method != "exact":
        raise ConfigError(f"method {method!r} is for the paper's objective; the tight objective has its own solver")
    problem = problem.planned()
    return _plan_noise(problem, strict) if objective == "tight" else plan_paper(problem, method, strict)


def _plan_noise(problem: Problem, strict: bool) -> Solution:
    start = monotonic()
    c, eta, population = problem.constants, problem.eta, Population.of(problem)
    best = noise_plan.solve(population, eta, problem.budget, rho_c=c.rho_c)
    level = noise_plan.solve(population, eta, problem.budget, rho_c=c.rho_c, uniform=True)
    left = c.Delta1 * initial_error_left(eta, c.rho_c)
    longest, upload = best.T.max(), problem.fleet.upload
    out = upload >= longest
    sitting_out = tuple(
        SittingOut.of(
            problem, int(i), f"its upload of {upload[i]:.4g} s outlasts the longest deadline of {longest:.4g} s"
        )
        for i in np.flatnonzero(out)
    )
    if strict and sitting_out:
        first = sitting_out[0]
        raise InfeasibleBudgetError(
            f"{first.name} would sit out: {first.reason}", binding=first.reason, smallest_budget=None
        )
    schedule = problem.schedule(best.T, best.m, out)
    smallest = schedule.batch_sizes(int(np.argmin(best.T)))
    single = np.flatnonzero((smallest == 1) & ~out)[:1]
    return Solution(
        problem=problem,
        schedule=schedule,
        m=best.m,
        bound=best.excess + left,
        excess=best.excess,
        uniform=Alternative(problem.uniform_deadline, float(level.m[0]), level.excess + left, level.excess),
        binding=("budget", *(f"one sample: {problem.fleet.name(int(i))}" for i in single), *short_of_data(schedule)),
        sitting_out=sitting_out,
        warnings=(),
        grouping_error=noise_plan.grouping_error(population, best),
        method="exact",
        seconds=monotonic() - start,
        objective="tight",
    )
