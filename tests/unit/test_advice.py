"""What a solution says of the first layer is what happens: Monte Carlo with the problem's own latency model."""

import re

import numpy as np
import pytest

from adelfl import ConstantRate, Fleet, Problem, plan
from adelfl.latency import Exponential, Latency, Law
from adelfl.schedule import Schedule
from adelfl.seeds import rng_for

FLEET = Fleet.of([12.0, 20.0, 30.0], [0.1, 0.0, 0.2], [3, 4, 3])
LATENCIES = {
    "exponential": Exponential(),
    "a long forward pass": Latency(forward=10.0),
    "unequal costs": Latency(costs=(10.0, 1.0, 1.0)),
    "steady layers": Latency(Law("gamma", 0.2), forward=1.0),
    "random uploads": Latency(upload=Law("exponential")),
}
DRAWS = 4000


def problem_with(latency, **others) -> Problem:
    values = {"layers": 3, "rounds": 12, "budget": 18.0, "learning_rate": ConstantRate(0.1), "batch": 16}
    return Problem(FLEET, **values | others, latency=latency)


def empty_rounds(schedule: Schedule, t: int) -> float:
    """Share of simulated rounds t in which no device finishes the first layer in time."""
    group = np.repeat(np.arange(schedule.fleet.groups), schedule.fleet.count)
    S, L, T = schedule.batch_sizes(t)[group], schedule.layers, schedule.deadlines[t]
    P, B = schedule.fleet.compute[group], schedule.fleet.upload[group]
    rng = rng_for(5, "advice")
    many = np.tile(np.arange(group.size), DRAWS)
    took = schedule.latency.layer_times(rng, (S / P)[many], L, L).sum(axis=1)
    sent = schedule.latency.upload_times(rng, B[many], L)
    arrived = (took + sent <= T) & (S > 0)[many]
    return float(1.0 - arrived.reshape(DRAWS, -1).any(axis=1).mean())


def agree(said: float, seen: float) -> bool:
    """Within four standard errors of the draws, and what 400 quantiles of a table can say."""
    return abs(said - seen) <= 4.0 * np.sqrt(max(said * (1 - said), 1e-3) / DRAWS) + 0.01


@pytest.mark.parametrize("words", LATENCIES)
def test_the_probabilities_of_the_advice_match_simulation(words):
    solution = plan(problem_with(LATENCIES[words]))
    without, with_plan = solution.first_layer_empty
    assert agree(without, empty_rounds(solution.baseline, 0))
    assert agree(with_plan, np.mean([empty_rounds(solution.schedule, t) for t in range(12)]))
    told = re.search(r"empty in ([\d.]+)% of rounds .* with it in (?:less than )?([\d.]+)%", solution.advice)
    assert told is not None
    assert float(told[1]) == pytest.approx(100 * without, abs=0.51)
    assert float(told[2]) == pytest.approx(100 * with_plan, abs=0.51)
    assert solution.advice in solution.outcome


def test_the_outcome_of_one_round_is_in_the_singular_and_is_the_repr():
    solution = plan(problem_with(LATENCIES["exponential"], rounds=1))
    assert solution.outcome.startswith("The deadline is 18 s; ")
    assert repr(solution) == f"Solution({solution.outcome!r})"


def test_a_forward_pass_that_takes_all_the_time_changes_the_advice():
    plain, forward = (plan(problem_with(LATENCIES[words])) for words in ("exponential", "a long forward pass"))
    assert forward.first_layer_empty[0] > 0.8 > 0.5 > plain.first_layer_empty[0]
    assert "a plan gains most here" in forward.advice
    assert "a plan gains most here" not in plain.advice


@pytest.mark.parametrize("cohort", [None, 5])
def test_a_latency_model_equal_to_the_papers_says_the_same(cohort):
    """A table of exponential times gives what the closed form gives, with and without a cohort."""
    schedules = [
        Schedule.uniform(FLEET, 3, 12, 18.0, 16, cohort=cohort, latency=latency)
        for latency in (Exponential(), Latency(Law("exponential")))
    ]
    one, other = (s.p_empty(0) for s in schedules)
    np.testing.assert_allclose(one, other, atol=0.02)
    one, other = (s.expected_depth([0]) for s in schedules)
    np.testing.assert_allclose(one, other, atol=0.03)
    one, other = (s.delivery([0]) for s in schedules)
    np.testing.assert_allclose(one, other, atol=0.02)


def test_with_exponential_layers_the_plan_keeps_to_lemma_1():
    solution = plan(problem_with(Exponential()), objective="paper")
    assert solution.first_layer_empty[1] <= solution.schedule.p_empty_bound[:, 0].mean() * (1 + 1e-9)
