"""Who finishes what in time: the simulation of B1–B3, Lemma 1, and digits that mpmath confirms."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adelfl.fleet import Fleet
from adelfl.schedule import Schedule
from adelfl.seeds import rng_for
from adelfl.theory import participation as pt
from support import reference
from support.reference import log_uniform
from support.simulate import b3_batches, delivered, finished_layers, standard_error

DRAWS = 40_000
SE = 4.0  # every Monte Carlo tolerance below, in standard errors

FLEETS = {
    # name: (L, compute, upload, batch, T); in the last two somebody's upload outlasts the deadline
    "alike": (3, np.full(4, 2.0), np.zeros(4), np.full(4, 6.0), 5.0),
    "unequal": (5, np.array([1.0, 3.0, 9.0]), np.array([0.0, 0.5, 2.0]), np.array([4.0, 4.0, 16.0]), 6.0),
    "one layer": (1, np.array([0.5, 0.7]), np.array([0.1, 0.2]), np.array([3.0, 2.0]), 1.0),
    "one sits out": (4, np.array([2.0, 2.0, 5.0]), np.array([0.0, 3.0, 1.0]), np.array([3.0, 3.0, 3.0]), 3.0),
    "most sit out": (2, np.array([1.0, 9.0, 9.0]), np.array([0.5, 8.0, 9.0]), np.array([2.0, 1.0, 1.0]), 4.0),
}


@pytest.fixture(params=FLEETS, ids=lambda name: name.replace(" ", "-"))
def simulated(request):
    L, P, B, S, T = FLEETS[request.param]
    z = finished_layers(rng_for(1, "participation", request.param), DRAWS, L, P, B, S, T)
    return L, P, B, S, T, P * (T - B) / S, z


def assert_frequency(measured, probability):
    se = np.sqrt(probability * (1.0 - probability) / DRAWS)
    assert np.all(np.abs(measured - probability) <= SE * se + 1e-15)


def test_delivery_is_how_often_a_layer_arrives(simulated):
    L, *_, rate, z = simulated
    assert_frequency(delivered(z, L).mean(0), pt.delivery(L, rate))


def test_exact_p_is_how_often_nobody_delivers_a_layer(simulated):
    L, *_, rate, z = simulated
    assert_frequency((~delivered(z, L).any(1)).mean(0), np.exp(pt.log_p_empty(L, rate)))


def test_expected_depth_is_the_mean_number_of_finished_layers(simulated):
    L, P, B, S, T, rate, z = simulated
    assert np.all(np.abs(z.mean(0) - pt.expected_depth(L, rate)) <= SE * standard_error(z))
    share = z.mean(1) / L
    assert abs(share.mean() - pt.mean_depth(L, T, P, B, S)) <= SE * standard_error(share)


@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.85, 0.999])
def test_at_the_deadline_for_a_depth_devices_reach_that_depth(simulated, fraction):
    L, P, B, S, *_ = simulated
    T = pt.deadline_for_depth(fraction, L, P, B, S)
    assert pt.mean_depth(L, T, P, B, S) == pytest.approx(fraction, rel=1e-10)
    share = finished_layers(rng_for(2, "depth"), DRAWS, L, P, B, S, T).mean(1) / L
    assert abs(share.mean() - fraction) <= SE * standard_error(share)


def test_alike_devices_may_be_counted_instead_of_listed():
    rate, count = np.array([0.7, 2.0, 5.0]), np.array([3, 1, 4])
    listed = pt.log_p_empty(6, np.repeat(rate, count))
    np.testing.assert_allclose(pt.log_p_empty(6, rate, count), listed, rtol=1e-13)
    by_group = pt.mean_depth(6, 3.0, [1.0, 2.0, 5.0], [0.0, 1.0, 4.0], 2.0, count)
    by_device = pt.mean_depth(6, 3.0, np.repeat([1.0, 2.0, 5.0], count), np.repeat([0.0, 1.0, 4.0], count), 2.0)
    assert by_group == pytest.approx(by_device, rel=1e-13)


@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_q_to_the_u_bounds_the_exact_p(data):
    """Lemma 1, for batch sizes rounded down, wherever every device gets at least one sample."""
    groups = data.draw(st.integers(1, 5))
    P = np.array([data.draw(log_uniform(0.05, 1e3)) for _ in range(groups)])
    B = np.array([data.draw(st.one_of(st.just(0.0), log_uniform(1e-3, 10.0))) for _ in range(groups)])
    count = np.array([data.draw(st.integers(1, 1000)) for _ in range(groups)])
    T = (B.max() + data.draw(log_uniform(1e-2, 1e2))) * np.array([3.0, 1.5, 1.0])
    least = np.max(T[:, None] / (P * (T[:, None] - B)))
    m = least * data.draw(st.one_of(st.just(1.0), log_uniform(1.0, 100.0)))
    cohort = data.draw(st.one_of(st.just(int(count.sum())), st.integers(1, int(count.sum()))))
    schedule = Schedule(Fleet.of(P, B, count), data.draw(st.integers(1, 12)), T, m=m, cohort=cohort)
    for t in range(3):
        np.testing.assert_array_equal(schedule.batch_sizes(t), b3_batches(m, P, B, T[t]))
        assert np.all(schedule.p_empty(t) <= schedule.p_empty_bound[t] * (1 + 1e-9))


def test_q_to_the_u_is_the_exact_p_where_the_floor_does_not_bite():
    fleet = Fleet.of([3.0, 2.5, 4.0], [0.0, 2.0, 5.0])
    schedule = Schedule(fleet, 7, np.array([10.0]), m=2.0)
    np.testing.assert_array_equal(schedule.batch_sizes(0), [6, 4, 4])
    np.testing.assert_allclose(schedule.p_empty(0), schedule.p_empty_bound[0], rtol=1e-13)


def test_lemma_1_needs_a_whole_sample_for_every_device():
    """Why the plan has the constraint m P (T − B)/T > 1: a batch of 1 is more than B3's 0.5, and then p is larger."""
    schedule = Schedule(Fleet.of([0.5, 0.5]), 3, np.array([4.0]), m=1.0)
    np.testing.assert_array_equal(schedule.batch_sizes(0), [1, 1])
    assert np.all(schedule.p_empty(0) > schedule.p_empty_bound[0])


def test_a_device_that_sits_out_does_not_change_the_exact_p():
    some = Schedule(Fleet.of([1.0, 2.0], [0.0, 1.0]), 3, np.array([5.0]), m=4.0)
    more = Schedule(Fleet.of([1.0, 2.0, 9.0], [0.0, 1.0, 5.0]), 3, np.array([5.0]), m=4.0)
    assert more.batch_sizes(0)[2] == 0
    np.testing.assert_allclose(more.p_empty(0), some.p_empty(0), rtol=1e-14)


@pytest.mark.parametrize("L", [1, 2, 3, 11, 50])
def test_expected_depth_is_the_sum_of_delivery_probabilities(L):
    rate = np.geomspace(1e-12, 1e4, 200)
    np.testing.assert_allclose(pt.expected_depth(L, rate), pt.delivery(L, rate).sum(-1), rtol=1e-12)


@pytest.mark.parametrize("L", [1, 3, 11, 50])
def test_log_q_and_hazard_have_twelve_digits_from_x_1e_minus_12_to_5000(L):
    x = np.concatenate([np.geomspace(1e-12, 5000.0, 33), [0.5, 1.0, 3.0, 11.0, 49.0, 50.0, 51.0]])
    log_Q, hazard = pt.survival(L, x)
    with mp.workdps(720):  # 1 − Q(50, 1e-12) is 1e-665
        Q = [reference.survival(L, mp.mpf(float(v))) for v in x]
        q = [[a - b for a, b in zip(row, [mp.mpf(0), *row[:-1]], strict=True)] for row in Q]  # Q(s) − Q(s−1)
        expected_log = np.array([[float(mp.log(v)) for v in row] for row in Q])
        expected_hazard = np.array(
            [[float(a / b) for a, b in zip(*rows, strict=True)] for rows in zip(q, Q, strict=True)]
        )
    np.testing.assert_allclose(log_Q, expected_log, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(hazard, expected_hazard, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("L", [1, 3, 11, 50])
@pytest.mark.parametrize("p", [0.2, 0.1, 1e-3, 1e-18, 1e-100, 1e-300])
def test_log_p_of_a_million_devices_has_ten_digits_and_smallest_rate_is_its_inverse(L, p):
    U = 10**6
    x = pt.smallest_rate(L, U, p)
    with mp.workdps(60):
        log_p = [float(U * mp.log(Q)) for Q in reference.survival(L, mp.mpf(x))]
        assert log_p[-1] == pytest.approx(float(mp.log(mp.mpf(p))), rel=1e-10)
    np.testing.assert_allclose(pt.log_p_empty(L, [x], U)[::-1], log_p, rtol=1e-10)
    assert pt.p_empty_bound(L, x, U)[0] == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize("U", [2, 30, 10**4, 10**6])
@pytest.mark.parametrize("L", [1, 3, 11, 50])
def test_the_first_layer_is_empty_with_probability_0_2_at_the_smallest_rate(L, U):
    x = pt.smallest_rate(L, U)
    assert pt.p_empty_bound(L, x, U)[0] == pytest.approx(pt.P_EMPTY_LIMIT, rel=1e-10)
    assert pt.p_empty_bound(L, x * (1 - 1e-6), U)[0] > pt.P_EMPTY_LIMIT > pt.p_empty_bound(L, x * (1 + 1e-6), U)[0]


@pytest.mark.parametrize("L", [1, 4, 50])
def test_no_time_delivers_nothing_and_endless_time_everything(L):
    for rate in (0.0, -3.0):
        np.testing.assert_allclose(pt.delivery(L, rate), 0.0, atol=1e-299)
        np.testing.assert_array_equal(np.exp(pt.log_p_empty(L, [rate])), 1.0)
        assert pt.expected_depth(L, rate) == 0.0
    np.testing.assert_array_equal(pt.delivery(L, np.inf), 1.0)
    np.testing.assert_array_equal(np.exp(pt.log_p_empty(L, [np.inf, 0.0])), 0.0)
    assert pt.expected_depth(L, np.inf) == L
    assert pt.mean_depth(L, 1.0, [3.0, 5.0], [1.0, 2.0], 4.0) == 0.0


@pytest.mark.parametrize("L", [3, 11, 50])
def test_later_layers_and_longer_deadlines_deliver_more(L):
    T = np.geomspace(1.01, 500.0, 400)
    rate = np.array([1.0, 2.5, 7.0]) * (T[:, None] - np.array([0.0, 1.0, 4.0])) / 6.0
    p, arrives, depth = pt.log_p_empty(L, rate), pt.delivery(L, rate), pt.expected_depth(L, rate)
    slack = 1e-13
    for axis in (0, 1):
        assert np.all(np.diff(p, axis=axis) <= slack * np.abs(p).max())
    for axis in (0, 2):
        assert np.all(np.diff(arrives, axis=axis) >= -slack)
    assert np.all(np.diff(depth, axis=0) >= -slack * L)
