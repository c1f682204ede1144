"""The result of planning: a schedule, its bound, and the best uniform schedule to compare it with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.planner.problem import Problem
from adelfl.schedule import Schedule
from adelfl.theory.participation import P_EMPTY_LIMIT

Method = Literal["exact", "trust-region"]
Objective = Literal["paper", "tight"]

_SAMPLED_ROUNDS = 16
_PART = {"paper": "plannable part of the bound", "tight": "noise of training"}


@dataclass(frozen=True)
class SittingOut:
    """A group of devices that the plan leaves out, and the reason."""

    group: int
    name: str
    count: int
    reason: str

    @classmethod
    def of(cls, problem: Problem, group: int, reason: str) -> SittingOut:
        """Describe a group of a problem's fleet."""
        return cls(group, problem.fleet.name(group), int(problem.fleet.count[group]), reason)


@dataclass(frozen=True)
class Alternative:
    """The best uniform schedule: T_max/R in every round, with its own best m."""

    deadline: float
    m: float
    bound: float
    excess: float


@dataclass(frozen=True, eq=False)
class Solution:
    """A plan and its bound."""

    problem: Problem
    schedule: Schedule
    m: float | NDArray[np.float64]
    """Batch scale of rule B3, one or one per round."""
    bound: float
    """J, the bound on E‖w_{R+1} − w_opt‖²: Theorem 1's, or the tight one."""
    excess: float
    """The part of the bound that a plan can change; plans are compared by it."""
    uniform: Alternative
    """The best uniform schedule."""
    binding: tuple[str, ...]
    """"budget": all time is used. "order": some rounds would have longer deadlines than earlier rounds if that were
    allowed. "coverage": the first layer stays empty with more than 10 % probability in some round, half the limit of
    Lemma 3. "one sample: …": this device trains with batches of one in some round. "data: …": this device holds fewer
    samples than the plan has time for in some round."""
    sitting_out: tuple[SittingOut, ...]
    """Devices that no plan can serve within the budget."""
    grouping_error: float
    """Largest relative error of the batch term from merging similar devices; 0 if none were merged."""
    warnings: tuple[str, ...] = ()
    """Assumptions of the theory that do not hold, a sentence each."""
    method: Method = "exact"
    """Solver that made the plan."""
    objective: Objective = "paper"
    """"paper" for Theorem 1's bound, "tight" for the noise of the rounds."""
    seconds: float = 0.0
    """Duration of planning."""

    def __repr__(self) -> str:
        return f"Solution({self.outcome!r})"

    @cached_property
    def baseline(self) -> Schedule:
        """Schedule without a plan: uniform deadlines and the baseline batch size."""
        T = np.full(self.problem.rounds, self.problem.uniform_deadline)
        return self.problem.schedule(T, None, np.zeros_like(self.schedule.sits_out), self.problem.batch)

    @cached_property
    def first_layer_empty(self) -> tuple[float, float]:
        """Probability of an empty first layer without a plan, and its mean over the rounds with the plan.

        The mean is over at most 16 rounds (fewer for more than 60,000 groups), evenly spaced in the order of deadlines.
        """
        by_length = np.argsort(self.schedule.deadlines, kind="stable")
        some = min(_SAMPLED_ROUNDS, self.schedule.rounds, max(2, 1_000_000 // self.schedule.fleet.groups))
        rounds = by_length[((np.arange(some) + 0.5) / some * self.schedule.rounds).astype(np.int64)]
        with_plan = np.mean([self.schedule.p_empty(int(t))[0] for t in rounds])
        return float(self.baseline.p_empty(0)[0]), float(with_plan)

    @cached_property
    def advice(self) -> str:
        """One sentence on whether a plan pays here (docs/reproduction.md, "When does a deadline plan pay?")."""
        without, with_plan = self.first_layer_empty
        if without >= 0.5:
            worth = "a plan gains most here"
        elif without >= P_EMPTY_LIMIT:
            worth = "a plan gains a little here"
        else:
            worth = "a plan gains little here, and partial updates at a uniform deadline (salf) are as good"
        return (
            f"Without a plan the first layer would stay empty in {_percent(without)} of rounds (uniform deadline, "
            f"batch {self.problem.batch}), with it in {_percent(with_plan)}: {worth}."
        )

    @cached_property
    def outcome(self) -> str:
        """Summary of the plan in a few sentences."""
        T = self.schedule.deadlines
        if T.max() - T.min() <= 1e-9 * T.max():
            shape = f"{f'All {T.size} deadlines are' if T.size > 1 else 'The deadline is'} {T[0]:.4g} s"
        else:
            shape = f"Deadlines {'fall' if T[0] > T[-1] else 'rise'} from {T[0]:.4g} s to {T[-1]:.4g} s"
        gain = 1.0 - self.excess / self.uniform.excess
        worth = (
            "a uniform deadline is the best plan here"
            if gain < 1e-9
            else f"the {_PART[self.objective]} is {gain:.1%} lower than for the best plan with a uniform deadline"
        )
        out = sum(s.count for s in self.sitting_out)
        left = f" {out} of {self.problem.fleet.size} devices sit out." if out else ""
        return f"{shape}; {worth}. {self.advice}{left}"


def short_of_data(schedule: Schedule) -> tuple[str, ...]:
    """Name the group whose data cut its batches most, in the round of the largest batches; empty if none is cut."""
    fleet = schedule.fleet
    if fleet.samples is None or schedule.m is None:
        return ()
    m = np.broadcast_to(schedule.m, schedule.deadlines.shape)
    t = int(np.argmax(m * schedule.deadlines))
    T, P = schedule.deadlines[t], fleet.compute / schedule.local_iterations
    unbounded = np.floor(m[t] * P * np.maximum(T - fleet.upload, 0.0) / T)
    over = np.where(schedule.sits_out, 0.0, unbounded / fleet.samples)
    worst = int(np.argmax(over))
    return (f"data: {fleet.name(worst)}",) if over[worst] > 1.0 else ()


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.00095 else "less than 0.1%"
