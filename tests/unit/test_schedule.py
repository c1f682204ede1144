"""A schedule says when rounds close and what devices do in them, and survives a trip through JSON."""

import json

import numpy as np
import pytest

from adelfl import ConfigError, Fleet, Schedule
from support.problems import MIXED, PAPER, plan, recorded_schedule


def test_batch_sizes_follow_rule_b3():
    solution = plan(MIXED)
    T, m = solution.schedule.deadlines, solution.m
    P, B = MIXED.fleet.compute, MIXED.fleet.upload
    for t in range(MIXED.rounds):
        for u in range(MIXED.fleet.groups):
            expected = max(1, int(np.floor(m * P[u] * (T[t] - B[u]) / T[t])))
            assert solution.schedule.batch_sizes(t)[u] == expected
    assert np.array_equal(solution.schedule.batch_sizes()[3], solution.schedule.batch_sizes(3))


def test_a_device_whose_upload_outlasts_the_deadline_sits_that_round_out():
    schedule = Schedule(Fleet.of([10.0, 10.0], [0.1, 2.0]), 3, np.array([3.0, 1.0]), m=1.0)
    assert schedule.batch_sizes()[:, 1].tolist() == [3, 0]
    assert schedule.rates(1)[1] == 0.0
    alone = Schedule(Fleet.of(10.0, 0.1), 3, np.array([3.0, 1.0]), m=1.0)
    assert schedule.p_empty(1) == pytest.approx(alone.p_empty(1))


def test_exact_p_empty_never_exceeds_lemma_1():
    schedule = plan(PAPER).schedule
    for t in (0, 50, 99):
        assert np.all(schedule.p_empty(t) <= schedule.p_empty_bound[t] * (1 + 1e-12))


def test_depth_is_the_sum_of_deliveries():
    schedule = plan(MIXED).schedule
    assert schedule.delivery().sum(axis=1) == pytest.approx(schedule.expected_depth())


def test_schedule_survives_json():
    one = plan(MIXED).schedule
    other = recorded_schedule(json.loads(json.dumps(one.to_dict())))
    assert np.array_equal(one.deadlines, other.deadlines)
    assert np.array_equal(one.batch_sizes(), other.batch_sizes())
    assert np.array_equal(one.p_empty_bound, other.p_empty_bound)
    assert one.to_dict() == other.to_dict()


def test_uniform_schedule_has_one_deadline_and_one_batch():
    schedule = Schedule.uniform(MIXED.fleet, 5, 12, 30.0, batch=16)
    assert set(schedule.deadlines) == {2.5}
    assert set(schedule.batch_sizes().ravel()) == {16}
    with pytest.raises(ConfigError, match="B3"):
        _ = schedule.p_empty_bound


def test_a_schedule_needs_one_batch_rule():
    with pytest.raises(ConfigError, match="either"):
        Schedule(MIXED.fleet, 5, np.ones(3))


def test_a_thinned_schedule_shows_the_same_depth():
    fleet = Fleet.lognormal(5000, compute=16.0, sigma=0.5, upload=0.1, seed=3)
    schedule = Schedule.uniform(fleet, 5, 4, 4.0, batch=4)
    assert schedule.thinned(400).expected_depth([0]) == pytest.approx(schedule.expected_depth([0]), rel=0.01)


def test_a_cohort_misses_a_layer_as_often_as_random_cohorts_do():
    """Against the mean over all pairs of four devices, and of many devices like them."""
    few = Schedule(Fleet.of([1.0, 1.0, 20.0, 20.0]), 3, np.array([2.0]), batch=4, cohort=2)
    missed = 1.0 - few_deliveries(few)
    pairs = [missed[i] * missed[j] for i in range(4) for j in range(i)]
    assert np.all(few.p_empty(0) >= np.mean(pairs, axis=0))
    n = 10_000
    many = Schedule(Fleet.of([1.0, 20.0], 0.0, n), 3, np.array([2.0]), batch=4, cohort=2)
    slow, fast = missed[0], missed[2]
    exact = (n * (n - 1) * (slow**2 + fast**2) + 2 * n * n * slow * fast) / (2 * n * (2 * n - 1))
    assert many.p_empty(0) == pytest.approx(exact, rel=1e-4)


def few_deliveries(schedule: Schedule) -> np.ndarray:
    from adelfl.theory.participation import delivery

    return delivery(schedule.layers, schedule.rates(0))


def test_lemma_1_counts_only_devices_that_take_part_in_the_round():
    schedule = Schedule(Fleet.of([1.0, 2.0], [0.0, 9.0]), 3, np.array([5.0]), m=2.0)
    assert np.all(schedule.p_empty(0) <= schedule.p_empty_bound[0] * (1 + 1e-12))
