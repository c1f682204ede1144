"""What a plan promises: feasible, optimal, never worse than the reference, cheap for any fleet."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings

from adelfl import ConfigError, ConstantRate, Constants, Fleet, InfeasibleBudgetError, InverseDecay, Problem
from adelfl.planner import exact
from adelfl.planner.exact import pool_non_increasing
from adelfl.planner.grouping import merge_equal, merge_near
from adelfl.planner.paper import admit, exact_cost
from adelfl.theory import bound
from support.problems import BY_HAND, MIXED, PAPER, plan, problems

by_hand = pytest.mark.parametrize("name", BY_HAND)
quick = settings(max_examples=60, deadline=None, derandomize=True)


@cache
def planned(name: str, method: str):
    """A plan of a problem by hand: trust-region takes a second, and several tests look at it."""
    return plan(BY_HAND[name], method=method)


def assert_feasible(problem: Problem, solution) -> None:
    """Every constraint of Problem 2, to a relative 1e-9."""
    T, m = solution.schedule.deadlines, solution.m
    assert T.shape == (problem.rounds,)
    assert T.sum() <= problem.budget * (1 + 1e-9)
    assert np.all(np.diff(T) <= 1e-9 * T[:-1])
    assert np.all(solution.schedule.p_empty_bound[:, 0] < 0.2 * (1 + 1e-9))
    part = ~solution.schedule.sits_out
    real_batch = m * problem.speed[part] * (1 - problem.fleet.upload[part] / T[:, None])
    assert np.all(real_batch > 1 - 1e-9)
    assert math.isfinite(solution.excess)


@by_hand
@pytest.mark.parametrize("method", ["exact", "trust-region"])
def test_every_constraint_holds_by_hand(name, method):
    assert_feasible(BY_HAND[name], planned(name, method))


@quick
@given(problems())
def test_every_constraint_holds_and_all_time_is_used(problem):
    solution = plan(problem)
    assert solution.method == "exact"
    assert_feasible(problem, solution)
    assert solution.schedule.deadlines.sum() >= problem.budget * (1 - 1e-9)
    assert "budget" in solution.binding


@by_hand
def test_exact_is_never_worse_than_trust_region_by_hand(name):
    assert planned(name, "exact").excess <= (1 + 1e-6) * planned(name, "trust-region").excess


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True)
@given(problems(max_rounds=6, max_groups=3))
def test_exact_is_never_worse_than_trust_region(problem):
    assert plan(problem).excess <= (1 + 1e-6) * plan(problem, method="trust-region").excess


@by_hand
def test_trust_region_comes_close_so_the_comparison_means_something(name):
    assert planned(name, "trust-region").excess <= 1.001 * planned(name, "exact").excess


@quick
@given(problems())
def test_no_small_feasible_change_lowers_the_excess(problem):
    """Local optimality is global, since Problem 2 is convex in (log m, log T)."""
    solution = plan(problem)
    keep, _ = admit(problem)
    cost = exact_cost(problem, keep)
    a = bound.weights(problem.eta, problem.constants.rho_c)
    T, m = solution.schedule.deadlines, solution.m
    best = bound.excess(cost, a, T, m)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-2, 1e-3):
        for _ in range(10):
            other = np.sort(T * np.exp(size * rng.standard_normal(T.size)))[::-1]
            other *= problem.budget / other.sum()
            scale = m * math.exp(size * rng.standard_normal())
            assert bound.excess(cost, a, other, scale) >= best * (1 - 1e-9)


@quick
@given(problems())
def test_plan_is_at_least_as_good_as_the_best_uniform_schedule(problem):
    solution = plan(problem)
    assert solution.excess <= solution.uniform.excess * (1 + 1e-9)


def test_constant_learning_rate_gets_uniform_deadlines():
    """With η constant a_t increases, so the order constraint binds everywhere."""
    solution = plan(BY_HAND["constant"])
    assert np.allclose(solution.schedule.deadlines, 5.0, rtol=1e-12)
    assert solution.m == pytest.approx(solution.uniform.m, rel=1e-6)
    assert "order" in solution.binding
    assert "uniform deadline is the best plan" in solution.outcome


def test_decaying_learning_rate_gets_decreasing_deadlines():
    T = plan(PAPER).schedule.deadlines
    assert np.all(np.diff(T) < 0)


@quick
@given(problems())
def test_plan_scales_with_the_unit_of_time(problem):
    k = 60.0
    fleet = Fleet.of(problem.fleet.compute / k, problem.fleet.upload * k, problem.fleet.count)
    slower = Problem(
        fleet, problem.layers, problem.rounds, problem.budget * k, problem.learning_rate, problem.constants
    )
    one, other = plan(problem), plan(slower)
    assert np.allclose(other.schedule.deadlines, k * one.schedule.deadlines, rtol=1e-5)
    assert other.excess == pytest.approx(one.excess, rel=1e-8)


def test_constants_that_cannot_move_the_minimiser_do_not():
    one = plan(MIXED)
    other = plan(
        Problem(
            MIXED.fleet,
            MIXED.layers,
            MIXED.rounds,
            MIXED.budget,
            MIXED.learning_rate,
            Constants(sigma2=200.0, G2=15.0, rho_s=0.3, Gamma=7.0, Delta1=9.0),
        )
    )
    assert np.allclose(one.schedule.deadlines, other.schedule.deadlines, rtol=1e-6)
    assert one.m == pytest.approx(other.m, rel=1e-6)
    assert other.bound > one.bound


def test_alike_devices_count_once():
    listed = Problem(Fleet.of(np.full(30, 16.0), np.full(30, 0.1)), layers=3, rounds=100, budget=300.0)
    one, other = plan(PAPER), plan(listed)
    assert np.allclose(one.schedule.deadlines, other.schedule.deadlines, rtol=1e-9)
    assert other.grouping_error == 0.0
    keep, _ = admit(listed)
    assert merge_equal(exact_cost(listed, keep)).P.size == 1


@pytest.mark.parametrize("upload_sigma", [0.0, 0.5])
def test_merging_near_devices_costs_little_and_says_how_much(upload_sigma):
    fleet = Fleet.lognormal(20_000, compute=16.0, sigma=0.5, upload=0.5, upload_sigma=upload_sigma, seed=1)
    problem = Problem(fleet, layers=6, rounds=20, budget=400.0)
    solution = plan(problem)
    assert 0 < solution.grouping_error < 1e-3
    keep, _ = admit(problem)
    every = exact_cost(problem, keep)
    a = bound.weights(problem.eta, problem.constants.rho_c)
    true = bound.excess(every, a, solution.schedule.deadlines, solution.m)
    assert solution.excess == pytest.approx(true, rel=2 * solution.grouping_error)
    unmerged = exact.minimise(every, a, problem.budget, guess=solution.uniform.m)
    assert true <= bound.excess(every, a, unmerged.T, unmerged.m) * (1 + 1e-6)


def test_merging_keeps_the_smallest_deadline():
    fleet = Fleet.lognormal(5_000, compute=16.0, sigma=0.8, upload=0.5, upload_sigma=1.0, seed=2)
    problem = Problem(fleet, layers=6, rounds=20, budget=1e6)
    every = exact_cost(problem, np.ones(fleet.groups, dtype=bool))
    few = merge_near(merge_equal(every))
    assert few.P.size < every.P.size
    for m in (1.01 / every.P.min(), 1.0, 10.0, 100.0):
        assert few.smallest_deadline(m) == pytest.approx(every.smallest_deadline(m), rel=1e-12)


# --- devices that no plan can serve -----------------------------------------------------------------------------


def test_one_hopeless_device_does_not_stop_the_others():
    fleet = Fleet.of([16.0, 1e-4, 16.0], [0.1, 0.1, 1e6], [997, 1, 2], ["good", "slow", "cut off"])
    solution = plan(Problem(fleet, layers=3, rounds=100, budget=300.0))
    assert [(s.name, s.count) for s in solution.sitting_out] == [("slow", 1), ("cut off", 2)]
    alone = plan(Problem(Fleet.of(16.0, 0.1, 997), layers=3, rounds=100, budget=300.0))
    assert np.allclose(solution.schedule.deadlines, alone.schedule.deadlines)
    assert np.array_equal(solution.schedule.batch_sizes(0)[1:], [0, 0])
    assert solution.schedule.p_empty(0) == pytest.approx(alone.schedule.p_empty(0))
    assert "3 of 1000 devices sit out" in solution.outcome


def test_strict_keeps_the_hopeless_device_and_fails():
    fleet = Fleet.of([16.0, 1e-4], [0.1, 0.1], [999, 1], ["good", "slow"])
    problem = Problem(fleet, layers=3, rounds=100, budget=300.0)
    with pytest.raises(InfeasibleBudgetError, match="slow") as caught:
        plan(problem, strict=True)
    served = plan(replace(problem, budget=caught.value.smallest_budget), strict=True)
    assert served.sitting_out == ()


@quick
@given(problems())
def test_the_smallest_budget_works_and_a_smaller_one_does_not(problem):
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(replace(problem, budget=1e-9 * problem.budget), strict=True)
    smallest = caught.value.smallest_budget
    assert_feasible(replace(problem, budget=smallest), plan(replace(problem, budget=smallest), strict=True))
    with pytest.raises(InfeasibleBudgetError):
        plan(replace(problem, budget=0.998 * smallest), strict=True)


@quick
@given(problems())
def test_without_strict_the_smallest_budget_serves_at_least_two_devices(problem):
    with pytest.raises(InfeasibleBudgetError) as caught:
        plan(replace(problem, budget=1e-9 * problem.budget))
    solution = plan(replace(problem, budget=caught.value.smallest_budget))
    assert solution.schedule.fleet.count[~solution.schedule.sits_out].sum() >= 2
    with pytest.raises(InfeasibleBudgetError):
        plan(replace(problem, budget=0.998 * caught.value.smallest_budget))


def test_a_device_left_out_raises_what_the_others_need():
    """Leaving devices out lowers U and so raises x_min: admission must repeat until nothing changes."""
    fleet = Fleet.of([1.0, 0.9, 0.2], 0.0, [2, 2, 100])
    problem = Problem(fleet, layers=3, rounds=1, budget=2.5)
    keep, _ = admit(problem)
    U = int(fleet.count[keep].sum())
    cost = exact_cost(problem, keep)
    assert U == cost.U < fleet.size
    assert np.all(cost.B + cost.x_min / cost.P < problem.uniform_deadline)


# --- cohorts and local iterations -----------------------------------------------------------------------------


def test_a_cohort_of_everybody_is_no_cohort():
    args = (MIXED.fleet, MIXED.layers, MIXED.rounds, MIXED.budget, MIXED.learning_rate)
    one, other = plan(MIXED), plan(Problem(*args, cohort=MIXED.fleet.size))
    assert one.excess == other.excess
    assert np.array_equal(one.schedule.deadlines, other.schedule.deadlines)


def test_a_cohort_of_a_large_fleet_plans_like_a_fleet_of_that_size():
    large = Fleet.of(MIXED.fleet.compute, MIXED.fleet.upload, MIXED.fleet.count * 1000)
    args = (MIXED.layers, MIXED.rounds, MIXED.budget, MIXED.learning_rate)
    one, other = plan(MIXED), plan(Problem(large, *args, cohort=30))
    assert np.allclose(one.schedule.deadlines, other.schedule.deadlines, rtol=1e-6)
    assert other.schedule.cohort == 30


def test_local_iterations_divide_the_speed():
    halved = Fleet.of(MIXED.fleet.compute / 2, MIXED.fleet.upload, MIXED.fleet.count)
    args = (MIXED.layers, MIXED.rounds, MIXED.budget, MIXED.learning_rate)
    one, other = plan(Problem(halved, *args)), plan(Problem(MIXED.fleet, *args, local_iterations=2))
    assert np.array_equal(one.schedule.deadlines, other.schedule.deadlines)
    assert np.array_equal(one.schedule.batch_sizes(), other.schedule.batch_sizes())


# --- pieces -------------------------------------------------------------------------------------------------


def test_pooling_gives_the_non_increasing_regression():
    means, lengths = pool_non_increasing(np.array([3.0, 1.0, 2.0, 2.0, 0.5, 0.7]))
    assert means.tolist() == pytest.approx([3.0, 5 / 3, 0.6])
    assert lengths.tolist() == [1, 3, 2]


def test_when_newton_does_not_settle_the_reference_takes_over(monkeypatch):
    def give_up(*_args, **_kwargs):
        raise exact.NotConverged("made to fail")

    monkeypatch.setattr(exact, "minimise", give_up)
    solution = plan(MIXED)
    assert solution.method == "trust-region"
    assert "did not converge" in solution.warnings[-1]
    assert_feasible(MIXED, solution)
    monkeypatch.undo()
    assert solution.excess <= 1.001 * plan(MIXED).excess


def test_newton_settles_from_the_table_when_the_last_start_is_useless():
    cost = exact_cost(MIXED, np.ones(3, dtype=bool))
    a = bound.weights(MIXED.eta, MIXED.constants.rho_c)
    weight, length = pool_non_increasing(a / a.max())
    cold, spoilt = (exact._Blocks(cost, weight, length, MIXED.budget) for _ in range(2))
    spoilt.start = np.linspace(-30.0, 5.0, weight.size)
    m = plan(MIXED).m
    assert np.allclose(cold.deadlines(m), spoilt.deadlines(m), rtol=1e-9)


def test_theorem_conditions_that_fail_are_warnings():
    solution = plan(Problem(PAPER.fleet, 3, 10, 30.0, ConstantRate(0.9)))
    assert any("1/(4 rho_s)" in w for w in solution.warnings)
    assert plan(PAPER).warnings == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"layers": 0}, "layers"),
        ({"budget": math.nan}, "budget"),
        ({"budget": -1.0}, "budget"),
        ({"fleet": Fleet.of(1.0)}, "one device"),
        ({"cohort": 31}, "cohort"),
        ({"constants": Constants(sigma2=(1.0, 2.0))}, "sigma2"),
        ({"constants": None}, "constants must be Constants"),
        ({"latency": "gamma"}, "latency must be a latency model"),
        ({"learning_rate": ConstantRate(20.0)}, "rho_c"),
    ],
)
def test_impossible_problems_are_refused_by_name(change, message):
    values = {"fleet": PAPER.fleet, "layers": 3, "rounds": 100, "budget": 300.0} | change
    with pytest.raises(ConfigError, match=message):
        plan(Problem(**values))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Constants(sigma2=0.0),
        lambda: Constants(G2=math.inf),
        lambda: InverseDecay(-1),
        lambda: ConstantRate("x"),
        lambda: plan(PAPER.fleet),
    ],
)
def test_constants_out_of_range_are_refused(build):
    with pytest.raises(ConfigError):
        build()


def test_unknown_method_is_refused():
    with pytest.raises(ConfigError, match="trust-region"):
        plan(PAPER, method="magic")  # type: ignore[arg-type]
