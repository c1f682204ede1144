"""``plan(problem) -> Solution``: deadlines for every round and a batch size for every device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from adelfl.clock import monotonic
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.latency import for_plans
from adelfl.planner import exact, noise_plan, trust_region
from adelfl.planner.admit import SittingOut, admit
from adelfl.planner.exact import Optimum
from adelfl.planner.grouping import exact_cost, grouping_error, merge_equal, merge_near
from adelfl.planner.population import Population
from adelfl.planner.problem import Problem
from adelfl.schedule import Schedule
from adelfl.theory import bound
from adelfl.theory.bound import RoundCost
from adelfl.theory.participation import P_EMPTY_LIMIT, p_empty_bound

Method = Literal["exact", "trust-region"]
Objective = Literal["paper", "tight"]


@dataclass(frozen=True)
class Alternative:
    """The best uniform schedule: T_max/R in every round, with its own best m."""

    deadline: float
    m: float
    bound: float
    excess: float


@dataclass(frozen=True, eq=False)
class Solution:
    """A plan, and what it is worth.

    Attributes
    ----------
    problem : Problem
        What was asked.
    schedule : Schedule
        Deadlines and batch sizes.
    m : float or ndarray of shape (R,)
        Batch scale of rule B3, one or one per round.
    bound : float
        J, the bound on E‖w_{R+1} − w_opt‖²: Theorem 1's, or the tight one.
    excess : float
        The part of it that a plan can change. Compare plans by this.
    uniform : Alternative
        The same for uniform deadlines.
    binding : tuple of str
        "budget": all time is used. "order": rounds would take longer deadlines than those before them if they
        might. "coverage": the first layer stays empty in more than 10 % of some round, half the bound's limit.
        "one sample: …": that device trains with batches of one in some round. "data: …": that device holds fewer
        samples than the plan has time for, in some round.
    sitting_out : tuple of SittingOut
        Devices that no plan can serve within the budget.
    warnings : tuple of str
        What the theory does not cover, a sentence each.
    grouping_error : float
        Largest relative error of the batch term that merging near devices made; 0 if none were merged.
    method : str
        What found the plan.
    seconds : float
        How long that took.
    objective : str
        "paper" for Theorem 1's bound, "tight" for the noise itself.
    """

    problem: Problem
    schedule: Schedule
    m: float | NDArray[np.float64]
    bound: float
    excess: float
    uniform: Alternative
    binding: tuple[str, ...]
    sitting_out: tuple[SittingOut, ...]
    warnings: tuple[str, ...]
    grouping_error: float
    method: Method
    seconds: float
    objective: Objective = "paper"

    @cached_property
    def baseline(self) -> Schedule:
        """Uniform deadlines and the baseline batch size: what one would do without a plan."""
        p = self.problem
        sizes = (p.layers, p.rounds, p.budget, p.batch)
        return Schedule.uniform(p.fleet, *sizes, p.local_iterations, p.cohort, for_plans(p.latency))

    @cached_property
    def first_layer_empty(self) -> tuple[float, float]:
        """How often the first layer gets no update: without a plan, and with it, on average over the rounds.

        Both are computed from the batch sizes in force and the problem's latency; with a plan from at most 16 rounds
        (fewer for fleets of more than 60,000 groups) that are evenly spaced among those sorted by deadline.
        """
        by_length = np.argsort(self.schedule.deadlines, kind="stable")
        some = min(_LOOKED_AT, self.schedule.rounds, max(2, 1_000_000 // self.schedule.fleet.groups))
        rounds = by_length[((np.arange(some) + 0.5) / some * self.schedule.rounds).astype(np.int64)]
        with_plan = np.mean([self.schedule.p_empty(int(t))[0] for t in rounds])
        return float(self.baseline.p_empty(0)[0]), float(with_plan)

    @cached_property
    def advice(self) -> str:
        """Whether a plan is worth its trouble here: docs/reproduction.md, "When does a deadline plan pay?"."""
        without, with_plan = self.first_layer_empty
        if without >= 0.5:
            worth = "a plan gains most here"
        elif without >= P_EMPTY_LIMIT:
            worth = "a plan gains a little here"
        else:
            worth = "a plan gains little here, and using stragglers' layers at a uniform deadline (salf) does as well"
        return (
            f"Without a plan the first layer would stay empty in {_percent(without)} of rounds (uniform deadline, "
            f"batch {self.problem.batch}), with it in {_percent(with_plan)}: {worth}."
        )

    @cached_property
    def outcome(self) -> str:
        """What the plan buys, in words."""
        T = self.schedule.deadlines
        same = T.max() - T.min() <= 1e-9 * T.max()
        way = "fall" if T[0] > T[-1] else "rise"
        shape = (
            f"all {T.size} deadlines are {T[0]:.4g} s"
            if same
            else f"deadlines {way} from {T[0]:.4g} s to {T[-1]:.4g} s"
        )
        gain = 1.0 - self.excess / self.uniform.excess
        worth = (
            "a uniform deadline is the best plan here"
            if gain < 1e-9
            else f"the {_PART[self.objective]} is {gain:.1%} lower than for the best uniform deadline"
        )
        out = sum(s.count for s in self.sitting_out)
        left = f" {out} of {self.problem.fleet.size} devices sit out." if out else ""
        return f"{shape[0].upper()}{shape[1:]}; {worth}. {self.advice}{left}"


_LOOKED_AT = 16  # rounds
_MOST_TERMS = 50_000_000  # of Theorem 1's bound, one for each round and layer
_PART = {"paper": "plannable part of the bound", "tight": "noise that training is left with"}


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.00095 else "less than 0.1%"


def plan(
    problem: Problem, *, method: Method = "exact", strict: bool = False, objective: Objective = "tight"
) -> Solution:
    """Plan deadlines and batch sizes.

    Parameters
    ----------
    problem : Problem
        Fleet, budget, rounds, learning rate and constants.
    method : {"exact", "trust-region"}
        Of the paper's objective: the exact solver, or the paper's general one (slower; the reference).
    strict : bool
        Fail if a device cannot be served, instead of letting it sit out.
    objective : {"tight", "paper"}
        Minimise the noise of the rounds itself (docs/beyond.md), which asks for no order of the deadlines and lets no
        device sit out that can send anything, or Theorem 1's bound on it (Problem 2).

    Returns
    -------
    Solution

    Raises
    ------
    InfeasibleBudgetError
        If no plan exists.
    """
    if method not in get_args(Method):
        raise ConfigError(f"method must be one of {', '.join(get_args(Method))}, not {method!r}")
    if objective not in get_args(Objective):
        raise ConfigError(f"objective must be one of {', '.join(get_args(Objective))}, not {objective!r}")
    if objective == "tight" and method != "exact":
        raise ConfigError(f"method {method!r} is for the paper's objective; the tight one has its own solver")
    problem = problem.planned()
    if objective == "tight":
        return _plan_tight(problem, strict=strict)
    if problem.rounds * problem.layers > _MOST_TERMS:
        raise ConfigError(
            f"{problem.rounds:,} rounds × {problem.layers:,} layers are too many for objective 'paper' "
            f"(at most {_MOST_TERMS:,}); use objective 'tight', or fewer rounds"
        )
    start = monotonic()
    keep, sitting_out = admit(problem, strict=strict)
    every = exact_cost(problem, keep)
    distinct = merge_equal(every)
    cost = merge_near(distinct)
    a = bound.weights(problem.eta, problem.constants.rho_c)
    warnings = bound.violated_conditions(problem.eta, problem.constants.rho_s)
    uniform = exact.minimise_uniform(cost, problem.rounds, problem.budget)
    best = None
    if method == "exact":
        try:
            best = exact.minimise(cost, a, problem.budget, guess=uniform.m)
        except exact.NotConverged as trouble:
            method = "trust-region"
            warnings += (f"the exact solver gave up ({trouble}); the trust-region solver made this plan",)
            best = trust_region.minimise(cost, a, problem.budget, start=uniform)
    else:
        best = trust_region.minimise(cost, a, problem.budget)
    extra, extra_uniform = (_cost_of_little_data(problem, every, keep, a, at) for at in (best, uniform))
    schedule = Schedule(
        problem.fleet,
        problem.layers,
        best.T,
        m=best.m,
        sits_out=~keep,
        cohort=problem.cohort,
        local_iterations=problem.local_iterations,
        latency=for_plans(problem.latency),
    )
    seconds = monotonic() - start
    return Solution(
        problem=problem,
        schedule=schedule,
        m=best.m,
        bound=_J(problem, cost, best) + extra,
        excess=bound.excess(cost, a, best.T, best.m) + extra,
        uniform=Alternative(
            problem.uniform_deadline,
            uniform.m,
            _J(problem, cost, uniform) + extra_uniform,
            bound.excess(cost, a, uniform.T, uniform.m) + extra_uniform,
        ),
        binding=_binding(problem, every, np.flatnonzero(keep), best) + _short_of_data(schedule),
        sitting_out=sitting_out,
        warnings=warnings,
        grouping_error=grouping_error(distinct, cost, best.T, best.m),
        method=method,
        seconds=seconds,
    )


def _plan_tight(problem: Problem, *, strict: bool) -> Solution:
    start = monotonic()
    c, eta, population = problem.constants, problem.eta, Population.of(problem)
    best = noise_plan.solve(population, eta, problem.budget, rho_c=c.rho_c, Delta1=c.Delta1)
    level = noise_plan.solve(population, eta, problem.budget, rho_c=c.rho_c, Delta1=c.Delta1, uniform=True)
    out = problem.fleet.upload >= best.T.max()
    sitting_out = tuple(
        SittingOut(
            int(i),
            problem.fleet.name(int(i)),
            int(problem.fleet.count[i]),
            f"its upload of {problem.fleet.upload[i]:.4g} s outlasts the longest deadline of {best.T.max():.4g} s",
        )
        for i in np.flatnonzero(out)
    )
    if strict and sitting_out:
        raise InfeasibleBudgetError(
            f"{sitting_out[0].name} would sit out: {sitting_out[0].reason}",
            binding=sitting_out[0].reason,
            smallest_budget=None,
        )
    schedule = Schedule(
        problem.fleet,
        problem.layers,
        best.T,
        m=best.m,
        sits_out=out,
        cohort=problem.cohort,
        local_iterations=problem.local_iterations,
        latency=for_plans(problem.latency),
    )
    smallest = schedule.batch_sizes(int(np.argmin(best.T)))
    alone = np.flatnonzero((smallest == 1) & ~out)
    binding = ("budget", *(f"one sample: {problem.fleet.name(int(i))}" for i in alone[:1]), *_short_of_data(schedule))
    return Solution(
        problem=problem,
        schedule=schedule,
        m=best.m,
        bound=best.bound,
        excess=best.excess,
        uniform=Alternative(
            problem.uniform_deadline, float(np.broadcast_to(level.m, best.T.shape)[0]), level.bound, level.excess
        ),
        binding=binding,
        sitting_out=sitting_out,
        warnings=(),
        grouping_error=noise_plan.grouping_error(population, best),
        method="exact",
        seconds=monotonic() - start,
        objective="tight",
    )


def _short_of_data(schedule: Schedule) -> tuple[str, ...]:
    """Name the group whose data cut its batches most, in the round of the largest batches; empty if none is cut."""
    fleet = schedule.fleet
    if fleet.samples is None or schedule.m is None:
        return ()
    m = np.broadcast_to(schedule.m, schedule.deadlines.shape)
    t = int(np.argmax(m * schedule.deadlines))
    T, P = schedule.deadlines[t], fleet.compute / schedule.local_iterations
    wanted = np.floor(m[t] * P * np.maximum(T - fleet.upload, 0.0) / T)
    over = np.where(schedule.sits_out, 0.0, wanted / fleet.samples)
    worst = int(np.argmax(over))
    return (f"data: {fleet.name(worst)}",) if over[worst] > 1.0 else ()


def _cost_of_little_data(
    problem: Problem, cost: RoundCost, keep: NDArray[np.bool_], a: NDArray[np.float64], at: Optimum
) -> float:
    """Σ_t a_t times what B_t is larger by because batches are cut to the devices' data; 0 where none is cut.

    Of more than 64 rounds, rounds of near deadlines are put together.
    """
    if problem.fleet.samples is None:
        return 0.0
    held = problem.fleet.samples[keep]
    by_length = np.argsort(at.T, kind="stable")
    total = 0.0
    for part in np.array_split(by_length, min(64, at.T.size)):
        T = float(at.T[part].mean())
        spare = at.m * cost.P * (1.0 - cost.B / T) - 1.0
        cut = spare > held
        total += float(a[part].sum() * (cost.share[cut] @ (1.0 / held[cut] - 1.0 / spare[cut]))) / cost.U
    return total


def _J(problem: Problem, cost: RoundCost, at: Optimum) -> float:
    c = problem.constants
    return bound.J(cost, problem.eta, at.T, at.m, rho_c=c.rho_c, rho_s=c.rho_s, Gamma=c.Gamma, Delta1=c.Delta1)


def _binding(problem: Problem, cost: RoundCost, groups: NDArray[np.int64], at: Optimum) -> tuple[str, ...]:
    T, m = at.T, at.m
    found = []
    if T.sum() >= problem.budget * (1 - 1e-9):
        found.append("budget")
    if np.any(np.diff(T) >= -1e-12 * T[:-1]):
        found.append("order")
    shortest = T.min()
    if p_empty_bound(cost.L, shortest / m, cost.U)[0] > 0.5 * P_EMPTY_LIMIT:
        found.append("coverage")
    real_batch = m * cost.P * (1.0 - cost.B / shortest)
    slowest = int(np.argmin(real_batch))
    if real_batch[slowest] < 2.0:
        found.append(f"one sample: {problem.fleet.name(int(groups[slowest]))}")
    return tuple(found)
