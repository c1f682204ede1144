"""Plan deadlines for every round and a batch size for every device, for one problem or for variations of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from adelfl.clock import monotonic
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.planner.noise_plan import plan_noise
from adelfl.planner.paper import needed_deadlines, plan_paper
from adelfl.planner.problem import Problem
from adelfl.planner.solution import Method, Objective, Solution

Key = Literal["budget", "rounds", "without"]

_SHOWN_GROUPS, _SHOWN_ROUNDS = 400, 100  # most groups and rounds from which a mean depth is estimated


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
        Whether to fail if a device would have to sit out.
    objective : {"tight", "paper"}
        Minimise the noise of the rounds (docs/adel.md), with deadlines in any order and every device that can deliver a
        layer, or Theorem 1's bound on it (Problem 2).

    Raises
    ------
    InfeasibleBudgetError
        If no plan exists.
    """
    if not isinstance(problem, Problem):
        raise ConfigError(f"problem must be a Problem, such as Problem(fleet, layers=4, …), not {problem!r}")
    for key, value, choices in (("method", method, get_args(Method)), ("objective", objective, get_args(Objective))):
        if value not in choices:
            raise ConfigError(f"{key} must be one of {', '.join(choices)}, not {value!r}")
    if objective == "tight" and method != "exact":
        raise ConfigError(f"method {method!r} is for the paper's objective; the tight objective has its own solver")
    problem, start = problem.planned(), monotonic()
    solution = plan_noise(problem, strict) if objective == "tight" else plan_paper(problem, method, strict)
    return replace(solution, seconds=monotonic() - start)


@dataclass(frozen=True)
class WhatIfRow:
    """Expectations for one value: seconds, rounds, or devices left out. They are None if there is no plan.

    Compare budgets by ``excess``, and numbers of rounds or ``served`` devices by ``bound``. ``depth`` is the expected
    share of layers that a device finishes, as a mean over rounds and devices, including those that sit out.
    ``first_layer_empty`` is the expected share of rounds in which no device delivers the first layer.
    """

    value: float
    served: int | None = None
    excess: float | None = None
    bound: float | None = None
    uniform_excess: float | None = None
    depth: float | None = None
    first_layer_empty: float | None = None
    infeasible: str | None = None
    """Reason why there is no plan."""


def what_if(
    problem: Problem, key: Key, values: Sequence[float], solve: Callable[[Problem], Solution] = plan
) -> list[WhatIfRow]:
    """Plan a problem once for each value of one of its keys, with ``solve``.

    The keys are "budget" (seconds), "rounds", and "without": devices left out, those that need the longest deadlines
    first.
    """
    changed = {value: _changed(problem, key, value) for value in sorted(values, reverse=True)}  # before any plan
    return [_row(value, changed[value], solve) for value in values]


def _changed(problem: Problem, key: Key, value: float) -> Problem:
    if key not in get_args(Key):
        raise ConfigError(f"{key!r} cannot be swept; allowed are {', '.join(get_args(Key))}")
    if key == "budget":
        return replace(problem, budget=value)
    if not float(value).is_integer():
        raise ConfigError(f"{key}: values must be whole numbers, not {value:g}")
    return replace(problem, rounds=int(value)) if key == "rounds" else without_slowest(problem, int(value))


def without_slowest(problem: Problem, devices: int) -> Problem:
    """Return the problem without this many of the devices that need the longest deadlines."""
    fleet, most = problem.fleet, problem.fleet.size - 2
    if not 0 <= devices <= most:
        raise ConfigError(f"without: at most {most} of the fleet's {fleet.size} devices can be left out, not {devices}")
    slowest_first = np.argsort(-needed_deadlines(problem, fleet.size), kind="stable")
    count, left = fleet.count[slowest_first], fleet.count.copy()
    left[slowest_first] -= np.clip(devices - (np.cumsum(count) - count), 0, count)
    keep, constants = left > 0, problem.constants
    if np.size(constants.sigma2) > 1:
        constants = replace(constants, sigma2=tuple(problem.sigma2[keep].tolist()))
    cohort = None if problem.cohort is None else min(problem.cohort, int(left.sum()))
    return replace(problem, fleet=replace(fleet.subset(keep), count=left[keep]), constants=constants, cohort=cohort)


def _row(value: float, problem: Problem, solve: Callable[[Problem], Solution]) -> WhatIfRow:
    try:
        solution = solve(problem)
    except InfeasibleBudgetError as error:
        return WhatIfRow(value, infeasible=error.binding)
    rounds = np.unique(np.linspace(0, problem.rounds - 1, min(_SHOWN_ROUNDS, problem.rounds)).round().astype(int))
    depth = float(solution.schedule.thinned(_SHOWN_GROUPS).expected_depth(rounds).mean()) / problem.layers
    served = problem.fleet.size - sum(s.count for s in solution.sitting_out)
    numbers = (solution.excess, solution.bound, solution.uniform.excess, depth, solution.first_layer_empty[1])
    return WhatIfRow(value, served, *numbers)
