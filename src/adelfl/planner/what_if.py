"""Plans of one problem for several budgets, numbers of rounds, or fleets without their slowest devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.planner.paper import needed_deadlines
from adelfl.planner.problem import Problem
from adelfl.planner.solution import Solution
from adelfl.planner.solve import plan

Key = Literal["budget", "rounds", "without"]

_SHOWN_GROUPS, _SHOWN_ROUNDS = 400, 100  # that the mean depth is estimated from, at most


@dataclass(frozen=True)
class WhatIfRow:
    """Expectations for one value; the other numbers are None if there is no plan."""

    value: float
    """Seconds, rounds, or devices left out."""
    served: int | None = None
    """Devices that the plan serves."""
    excess: float | None = None
    """Excess of the plan; compare budgets by this."""
    bound: float | None = None
    """Bound of the plan; compare numbers of rounds or devices by this."""
    uniform_excess: float | None = None
    """Excess of the best uniform deadline."""
    depth: float | None = None
    """Expected share of layers that a device finishes, mean over rounds and devices, including those that sit out."""
    first_layer_empty: float | None = None
    """Expected share of rounds in which no device delivers the first layer."""
    infeasible: str | None = None
    """Reason why there is no plan."""


def what_if(
    problem: Problem, key: Key, values: Sequence[float], solve: Callable[[Problem], Solution] = plan
) -> list[WhatIfRow]:
    """Plan a problem once for each value of one of its keys.

    Parameters
    ----------
    problem : Problem
        The problem in which one value changes.
    key : {"budget", "rounds", "without"}
        Total seconds; rounds that share them; or devices left out, those that need the longest deadlines first.
    values : sequence of float
        Whole numbers unless they are seconds.
    solve : callable
        Function from a problem to its solution.
    """
    problems = [_changed(problem, key, value) for value in values]  # checks all values before the first plan
    return [_row(value, changed, solve) for value, changed in zip(values, problems, strict=True)]


def without_slowest(problem: Problem, devices: int) -> Problem:
    """Return the problem without this many of the devices that need the longest deadlines."""
    fleet = problem.fleet
    if not 0 <= devices <= fleet.size - 2:
        raise ConfigError(
            f"without: at most {fleet.size - 2} of the fleet's {fleet.size} devices can be left out, not {devices}"
        )
    slowest_first = np.argsort(-needed_deadlines(problem, fleet.size), kind="stable")
    before = np.cumsum(fleet.count[slowest_first]) - fleet.count[slowest_first]
    left = fleet.count.copy()
    left[slowest_first] -= np.clip(devices - before, 0, fleet.count[slowest_first])
    keep = left > 0
    constants, cohort = problem.constants, problem.cohort
    if np.size(constants.sigma2) > 1:
        constants = replace(constants, sigma2=tuple(problem.sigma2[keep].tolist()))
    cohort = None if cohort is None else min(cohort, int(left.sum()))
    return replace(problem, fleet=replace(fleet.subset(keep), count=left[keep]), constants=constants, cohort=cohort)


def _changed(problem: Problem, key: Key, value: float) -> Problem:
    if key not in get_args(Key):
        raise ConfigError(f"{key!r} cannot be swept; allowed are {', '.join(get_args(Key))}")
    if key == "budget":
        return problem.with_budget(value)
    if not float(value).is_integer():
        raise ConfigError(f"{key}: values must be whole numbers, not {value:g}")
    return replace(problem, rounds=int(value)) if key == "rounds" else without_slowest(problem, int(value))


def _row(value: float, problem: Problem, solve: Callable[[Problem], Solution]) -> WhatIfRow:
    try:
        solution = solve(problem)
    except InfeasibleBudgetError as error:
        return WhatIfRow(value, infeasible=error.binding)
    rounds = np.unique(np.linspace(0, problem.rounds - 1, min(_SHOWN_ROUNDS, problem.rounds)).round().astype(int))
    depths = solution.schedule.thinned(_SHOWN_GROUPS).expected_depth(rounds)
    return WhatIfRow(
        value,
        served=problem.fleet.size - sum(s.count for s in solution.sitting_out),
        excess=solution.excess,
        bound=solution.bound,
        uniform_excess=solution.uniform.excess,
        depth=float(depths.mean()) / problem.layers,
        first_layer_empty=solution.first_layer_empty[1],
    )
