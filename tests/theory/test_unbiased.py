"""Lemma 2: with equal rates eq. (5) is FedAvg in expectation; with one batch size for all it favours fast devices."""

from itertools import pairwise, product

import numpy as np
import pytest

from adelfl.fleet import Fleet
from adelfl.schedule import Schedule
from adelfl.seeds import rng_for
from adelfl.theory.participation import delivery, log_p_empty
from support.simulate import finished_layers, merge_weights, standard_error

DRAWS = 200_000

EQUAL = {
    # name: (L, fleet, T, m); m P (T − B)/T is a whole number for every device, so λ = T/m for all of them
    "three devices": (7, Fleet.of([3.0, 2.5, 4.0], [0.0, 2.0, 5.0]), 10.0, 2.0),
    "two, often empty": (4, Fleet.of([2.0, 16.0], [0.0, 6.0]), 8.0, 4.0),
    "ten alike": (3, Fleet.of(np.full(10, 2.0)), 3.0, 4.0),
}


def gradients(U, L, name):
    """One fixed number per device and layer: far apart, so that a bias shows."""
    return rng_for(3, "gradients", name).normal(1.0, 2.0, (U, L))


def mean_weights(L, rate, p):
    """E[A[u, l]] by going through every set of contributors; shape (U, L)."""
    arrives = delivery(L, rate)
    mean = np.zeros_like(arrives)
    for who in product([0.0, 1.0], repeat=rate.size):
        here = np.array(who)[:, None]
        chance = np.prod(np.where(here == 1, arrives, 1 - arrives), axis=0)
        mean += chance * here / (max(1.0, sum(who)) * (1.0 - p))
    return mean


def simulate(schedule, p, name, g=None):
    L, fleet, T = schedule.layers, schedule.fleet, schedule.deadlines[0]
    rng = rng_for(4, "deliveries", name)
    z = finished_layers(rng, DRAWS, L, fleet.compute, fleet.upload, schedule.batch_sizes(0), T)
    g = gradients(fleet.size, L, name) if g is None else g
    return np.einsum("nul,ul->nl", merge_weights(z, L, p), g), g


@pytest.fixture(params=EQUAL, ids=lambda name: name.replace(" ", "-").replace(",", ""))
def equal(request):
    L, fleet, T, m = EQUAL[request.param]
    schedule = Schedule(fleet, L, np.array([T]), m=m)
    np.testing.assert_allclose(schedule.rates(0), T / m, rtol=1e-14)
    return request.param, schedule


def test_eq_5_is_the_mean_gradient_on_average_under_b3(equal):
    """Within 4 standard errors in every layer."""
    name, schedule = equal
    update, g = simulate(schedule, schedule.p_empty(0), name)
    assert np.all(np.abs(update.mean(0) - g.mean(0)) <= 4 * standard_error(update))


def test_every_device_counts_1_over_u_on_average_under_b3(equal):
    """The same without luck: the mean over all 2^U sets of contributors."""
    _, schedule = equal
    weights = mean_weights(schedule.layers, schedule.rates(0), schedule.p_empty(0))
    np.testing.assert_allclose(weights, 1.0 / schedule.fleet.size, rtol=1e-11)


def test_without_the_correction_a_starved_layer_takes_too_small_a_step(equal):
    """The factor 1/(1−p) is needed: without it the mean step is (1−p) ḡ, more than 10 standard errors off."""
    name, schedule = equal
    p = schedule.p_empty(0)
    update, g = simulate(schedule, np.zeros_like(p), name)
    se = standard_error(update)
    assert np.all(np.abs(update.mean(0) - (1 - p) * g.mean(0)) <= 4 * se)
    assert abs(update.mean(0) - g.mean(0))[0] > 10 * se[0]


def test_p_may_be_large_and_eq_5_stays_unbiased():
    fleet = Fleet.of([1.0, 2.0, 4.0])
    schedule = Schedule(fleet, 9, np.array([4.0]), m=2.0)
    p = schedule.p_empty(0)
    assert p[0] > 0.99
    np.testing.assert_allclose(mean_weights(9, schedule.rates(0), p), 1 / 3, rtol=1e-9)


SPEEDS = np.array([1.0, 2.0, 8.0])


def test_one_batch_size_for_unequal_speeds_is_biased_towards_fast_devices():
    """More than 10 standard errors, in every layer, from the mean gradient towards the fastest device's gradient."""
    L = 4
    schedule = Schedule.uniform(Fleet.of(SPEEDS, [0.0, 0.5, 0.5]), L, 1, 4.0, batch=4)
    g = np.array([-1.0, 0.0, 1.0])[:, None] + np.arange(L)  # the faster the device, the larger
    update, _ = simulate(schedule, schedule.p_empty(0), "unequal", g)
    assert np.all(update.mean(0) - g.mean(0) > 10 * standard_error(update))


@pytest.mark.parametrize("L", [1, 3, 11])
@pytest.mark.parametrize("T", [2.0, 4.0, 8.0])
def test_with_one_batch_size_a_faster_device_counts_more_and_the_first_layer_is_the_worst(L, T):
    schedule = Schedule.uniform(Fleet.of(SPEEDS), L, 1, T, batch=4)
    weights = mean_weights(L, schedule.rates(0), schedule.p_empty(0))
    np.testing.assert_allclose(weights.sum(0), 1.0, rtol=1e-9)  # steps have the right length, in the wrong direction
    assert np.all(np.diff(weights, axis=0) > 0)
    assert np.all(np.diff(weights[-1]) < 0)


def test_the_floor_of_b3_leaves_a_bias_that_vanishes_as_batches_grow():
    """λ_u differ by less than 1/S_u (relative), and so does what a device counts."""
    fleet = Fleet.of(SPEEDS * np.pi, [0.0, 0.3, 0.7])
    bias = []
    for m in (2.0, 20.0, 200.0, 2000.0):
        schedule = Schedule(fleet, 5, np.array([3.0 * m]), m=m)
        rate, S = schedule.rates(0), schedule.batch_sizes(0)
        assert np.all((rate >= 3.0 * (1 - 1e-12)) & (rate <= 3.0 * (1 + 1 / S)))
        bias.append(np.abs(3 * mean_weights(5, rate, np.exp(log_p_empty(5, rate))) - 1).max())
    assert bias[0] > 0.02
    assert all(later < earlier for earlier, later in pairwise(bias))
    assert bias[-1] < 1e-3
