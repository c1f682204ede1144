"""Plans by the noise itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from adelfl import ConstantRate, Constants, Fleet, InfeasibleBudgetError, InverseDecay, Problem, plan
from adelfl.planner.beliefs import Beliefs
from adelfl.planner.noise_plan import Population, grouping_error, solve
from adelfl.seeds import rng_for
from adelfl.strategies.adel import Adel
from adelfl.theory import bound
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.participation import deadline_for_depth
from support.problems import BY_HAND, PAPER, problems
from support.problems import plan as paper_plan

quick = settings(max_examples=25, deadline=None, derandomize=True)


def lognormal(U=30, L=3, depth=0.15, rounds=100, rate=None, **others):
    fleet = Fleet.lognormal(U, compute=16.0, sigma=0.5, seed=1)
    T = deadline_for_depth(depth, L, fleet.compute, fleet.upload, 16)
    return Problem(fleet, L, rounds, rounds * T, rate or ConstantRate(0.3), **others)


def solved(problem, **others):
    return solve(Population.of(problem), problem.eta, problem.budget, rho_c=problem.constants.rho_c, **others)


def true_excess(problem, T, m):
    """Σ a_t N(T_t, m_t) for every device, with fine integrals."""
    a = bound.weights(problem.eta, problem.constants.rho_c)
    return float(a @ Population.of(problem).noise(T, np.broadcast_to(m, T.shape), 64))


@quick
@given(problems())
def test_a_plan_uses_the_whole_budget_and_is_no_worse_than_a_uniform_one(problem):
    found = plan(problem)
    assert found.schedule.deadlines.sum() == pytest.approx(problem.budget)
    assert found.schedule.deadlines.min() > 0
    uniform = np.full(problem.rounds, problem.uniform_deadline)
    level = true_excess(problem, uniform, found.uniform.m)
    assert true_excess(problem, found.schedule.deadlines, found.m) <= level * 1.02
    assert found.objective == "tight"
    assert found.bound > found.excess


WORLDS = {
    **BY_HAND,
    "few": lognormal(U=5),
    "deep": lognormal(L=8),
    "half the depth": lognormal(depth=0.5),
    "a falling rate": lognormal(rate=InverseDecay(0.5, 20.0)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_near_a_plan_is_better(name):
    problem = WORLDS[name]
    found = solved(problem)
    slack = 0.12 if name == "tight" else 0.01  # there most devices take one sample in a round
    best, rng = true_excess(problem, found.T, found.m), rng_for(7, name)
    assert found.excess == pytest.approx(best, rel=0.05)
    for size in (0.05, 0.2, 0.5):
        for _ in range(10):
            T = found.T * np.exp(size * rng.standard_normal(found.T.size))
            shared = size * rng.standard_normal(found.T.size)
            other = true_excess(problem, T * problem.budget / T.sum(), found.m * np.exp(shared))
            assert other > best * (1 - slack)


@pytest.mark.parametrize("name", WORLDS)
def test_no_other_slope_of_deadlines_is_better(name):
    """Deadlines that differ half, twice or three times as much, or the other way round, with the best rate of each."""
    problem = WORLDS[name]
    found, equal = solved(problem), np.full(problem.rounds, problem.uniform_deadline)
    best, lag = true_excess(problem, found.T, found.m), np.median(problem.fleet.upload)
    for power in (-1.0, 0.0, 0.5, 2.0, 3.0):
        share = ((found.T - lag) / (equal - lag)) ** power
        T = lag + (equal - lag) * share / share.mean()
        for rate in np.geomspace(0.5, 2.0, 5) * found.T[0] / found.m[0]:
            assert true_excess(problem, T, T / rate) > best * (1 - 0.01)


def test_deadlines_rise_with_a_constant_rate_and_fall_with_a_falling_one():
    rising, falling = solved(lognormal()), solved(lognormal(rate=InverseDecay(0.5, 1.0)))
    assert np.all(np.diff(rising.T) > 0)
    assert rising.T[-1] > 2 * rising.T[0]
    assert np.all(np.diff(falling.T[5:]) <= 1e-9 * falling.T[0])
    assert falling.T[5] > 1.5 * falling.T[-1]


def test_the_best_rate_for_alike_devices_and_data_is_that_of_the_specification():
    """λ = T/m ≈ 3.4 at L = 3, whatever σ² and G² are: it brings most samples to the first layer."""
    for sigma2, G2 in ((20.0, 1.5), (200.0, 0.1), (1.0, 1.0)):
        problem = Problem(Fleet.of(1000.0, 0.0, 100), 3, 4, 4.0, ConstantRate(0.1), Constants(sigma2, G2))
        population = Population.of(problem)
        found = solve(population, problem.eta, 4.0, rho_c=0.1, shortest=1.0)
        first_layer_only = replace(
            population, spread=GradientStats(*(np.eye(3)[0] + 1e-9) * np.array([[sigma2], [0.0], [G2]]))
        )
        alone = solve(first_layer_only, problem.eta, 4.0, rho_c=0.1, shortest=1.0)
        assert 1.0 / alone.m[0] == pytest.approx(3.4, abs=0.25)
        assert 1.0 / found.m[0] < 1.0 / alone.m[0]  # later layers ask for less


def test_more_different_data_asks_for_more_contributors():
    different = GradientStats(np.full(3, 5.0), np.full(3, 5.0), np.full(3, 1.0))
    other = lognormal(depth=0.7, constants=Constants(spread=different))
    alike = lognormal(depth=0.7, constants=Constants(spread=replace(different, zeta2=np.zeros(3))))
    assert (solved(other).T / solved(other).m)[0] > (solved(alike).T / solved(alike).m)[0]


def test_a_budget_that_the_papers_bound_has_no_plan_for_is_planned():
    problem = lognormal(U=3, L=8, depth=0.02)
    with pytest.raises(InfeasibleBudgetError):
        paper_plan(problem)
    found = plan(problem)
    assert np.isfinite(found.excess)
    assert found.sitting_out == ()
    assert any(word.startswith("one sample") for word in found.binding)


def test_uploads_that_outlast_every_round_leave_no_plan_and_say_what_would_do():
    problem = Problem(Fleet.of([10.0, 20.0], [2.0, 3.0]), 3, 10, 15.0)
    with pytest.raises(InfeasibleBudgetError, match="smallest feasible budget is") as caught:
        plan(problem)
    assert plan(replace(problem, budget=caught.value.smallest_budget * 1.01)).excess > 0


def test_a_device_whose_upload_never_fits_sits_out_and_strict_refuses():
    problem = Problem(Fleet.of([10.0, 20.0, 10.0], [0.1, 0.1, 500.0]), 3, 10, 50.0)
    found = plan(problem)
    assert [s.group for s in found.sitting_out] == [2]
    assert found.schedule.batch_sizes()[:, 2].tolist() == [0] * 10
    with pytest.raises(InfeasibleBudgetError, match="sit out"):
        plan(problem, strict=True)


class Steady:
    """Layers that take exactly their mean."""

    def delivery(self, mean, upload, deadline, layers):
        left = np.asarray(deadline) - upload
        return (mean[..., None] * np.arange(layers, 0, -1) <= left[..., None]).astype(float)


def test_whatever_gives_a_chance_of_delivery_can_be_planned_with():
    found = solved(replace(lognormal(), latency=Steady()), shortest=1.0)
    # Who needs exactly its mean for a layer is given batches that it finishes: a rate of no less than three layers.
    # Rule B3 rounds batches of about five samples down, by half a sample on average.
    assert 2.7 <= (found.T / found.m)[0] < 4.5


def test_a_cohort_is_planned_as_that_many_devices_of_the_whole_fleet():
    large = Fleet.lognormal(3000, compute=16.0, sigma=0.5, seed=1)
    T = deadline_for_depth(0.15, 3, large.compute, large.upload, 16)
    drawn = Problem(large, 3, 50, 50 * T, ConstantRate(0.3), cohort=30)
    alone = replace(lognormal(rounds=50), budget=50 * T)
    one, other = solved(drawn), solved(alone)
    assert one.T == pytest.approx(other.T, rel=0.1)
    assert one.excess == pytest.approx(other.excess, rel=0.25)


def test_near_devices_can_be_planned_together():
    problem = lognormal(U=1000)
    population, found = Population.of(problem), solved(problem)
    assert grouping_error(population, found) < 0.03
    small = population.condensed(32)
    assert small.P.size <= 32
    assert small.count.sum() == 1000
    assert (small.count @ (1 / small.P)) == pytest.approx(np.sum(1 / population.P))


def test_rounds_that_are_all_but_forgotten_have_a_deadline_too():
    for rounds, rate in ((8000, 1.0), (30_000, 0.3), (400, 9.0)):
        found = solved(Problem(Fleet.of(16.0, 0.0, 5), 3, rounds, 0.4 * rounds, ConstantRate(rate)))
        assert np.isfinite(found.T).all()
        assert found.T.min() > 0
        assert found.T.sum() == pytest.approx(0.4 * rounds)


def test_devices_whose_uploads_never_fit_do_not_spoil_the_plan_of_the_others():
    alone = Problem(Fleet.of(16.0, 0.01, 10), 3, 20, 20.0)
    crowd = Problem(Fleet.of(np.full(1000, 16.0), np.repeat([0.01, 100.0], [10, 990])), 3, 20, 20.0)
    assert solved(crowd).T == pytest.approx(solved(alone).T, rel=0.02)
    assert solved(crowd).m == pytest.approx(solved(alone).m, rel=0.05)


def test_a_plan_says_in_words_which_way_deadlines_go():
    assert "Deadlines rise from" in plan(lognormal()).outcome
    assert "noise of training is" in plan(lognormal()).outcome
    assert "Deadlines fall from" in plan(PAPER).outcome


def test_a_plan_that_cannot_be_made_again_with_the_beliefs_stays_as_it_is():
    problem = Problem(Fleet.of([4.0, 8.0], 0.1), layers=3, rounds=10, budget=40.0, learning_rate=ConstantRate(0.1))
    older, newer = Adel(problem), Adel(problem)
    before = newer.planned(0)
    newer.inherit(older, Beliefs(np.array([4.0, 8.0]), np.array([100.0, 100.0])))  # uploads outlast the budget
    assert newer.planned(0) == before
