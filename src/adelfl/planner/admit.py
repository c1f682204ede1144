"""Which devices a plan can serve: one hopeless device must not make the plan of the others impossible.

Some m meets every constraint at deadline T iff T > B_u + x_min(U)/P_u for all u (docs/planner.md): an upload, and
x_min layers of one sample each. Leaving a device out lowers U, which raises x_min, so the set is found by
repeating; what remains is the largest set that can be planned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import InfeasibleBudgetError
from adelfl.planner.problem import Problem
from adelfl.schedule import round_up
from adelfl.theory.bound import needed_deadline
from adelfl.theory.participation import smallest_rate

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SittingOut:
    """A group of devices that the plan leaves out, and why."""

    group: int
    name: str
    count: int
    reason: str


def needed_deadlines(problem: Problem, devices: int) -> Floats:
    """The deadline that each group needs when so many devices take part."""
    x_min = smallest_rate(problem.layers, problem.cohort_of(devices))
    return needed_deadline(problem.speed, problem.fleet.upload, x_min)


def _admitted(problem: Problem, deadline: float) -> tuple[Mask, Floats]:
    """The largest set of groups that a plan with this mean deadline can serve; nobody if fewer than two devices.

    Also the deadline that each group needed in the pass that left it out (or in the last one).
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


def admit(problem: Problem, *, strict: bool = False) -> tuple[Mask, tuple[SittingOut, ...]]:
    """Tell which groups take part in the plan.

    Parameters
    ----------
    problem : Problem
        What is to be planned.
    strict : bool
        Fail if any device would have to sit out.

    Returns
    -------
    keep : ndarray of bool, shape (groups,)
    sitting_out : tuple of SittingOut

    Raises
    ------
    InfeasibleBudgetError
        If no plan exists; it names what binds and a budget that works.
    """
    keep, needed = _admitted(problem, problem.uniform_deadline)
    if keep.all():
        return keep, ()
    if strict or not keep.any():
        raise _infeasible(problem, strict=strict)
    out = tuple(
        SittingOut(int(i), problem.fleet.name(int(i)), int(problem.fleet.count[i]), _reason(problem, int(i), needed[i]))
        for i in np.flatnonzero(~keep)
    )
    return keep, out


def _infeasible(problem: Problem, *, strict: bool) -> InfeasibleBudgetError:
    needed = needed_deadlines(problem, problem.fleet.size)
    worst = int(np.argmax(needed))
    for_all = round_up(problem.rounds * float(needed[worst]))
    low, high = 0.0, float(needed[worst]) * (1 + 1e-9)
    if not strict:
        for _ in range(100):  # bisection to the last bit: feasibility is monotone in the deadline
            middle = 0.5 * (low + high)
            low, high = (low, middle) if _admitted(problem, middle)[0].any() else (middle, high)
        first, needed = _admitted(problem, high)
        worst = int(np.argmax(np.where(first, needed, -np.inf)))
    smallest = round_up(problem.rounds * high)
    binding = f"{problem.fleet.name(worst)} is what binds: {_reason(problem, worst, needed[worst])}"
    advice = f"the smallest budget that would do is {smallest:g} s"
    if for_all > smallest:
        advice += f" ({for_all:g} s to serve every device)"
    return InfeasibleBudgetError(
        f"no plan exists for budget = {problem.budget:g} s and rounds = {problem.rounds}: {binding}; {advice}",
        binding=binding,
        smallest_budget=smallest,
    )
