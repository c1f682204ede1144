"""Lemma 3 and Theorem 1 against measured errors, on quadratics whose constants are known (quadratics.py).

Every comparison is of the measured mean plus 3 standard errors. The bounds have much to spare (a factor of 29 at best),
so the last tests show that the measurement is right, and that it notices a bound that is too small. Where the floor
of B3 makes rates unequal (long uploads, a crowd), Lemma 2 and with it the paper's proof hold only approximately; the
bounds dominate there too.
"""

from itertools import product
from math import comb

import numpy as np
import pytest

from adelfl.fleet import Fleet
from adelfl.learning_rate import ConstantRate, InverseDecay
from adelfl.schedule import Schedule
from adelfl.seeds import rng_for
from adelfl.theory import bound
from adelfl.theory.participation import delivery, p_empty_bound, smallest_rate
from support.quadratics import Quadratics, train
from support.reference import C, round_cost
from support.simulate import standard_error

REPLICAS, ROUNDS = 400, 25

FLEETS = {
    # name: (L, fleet, m)
    "a pair": (5, Fleet.of([2.0, 7.0]), 3.0),
    "long uploads": (3, Fleet.of(np.arange(1.0, 9.0), np.linspace(2.0, 0.0, 8)), 4.0),
    "a crowd": (4, Fleet.lognormal(30, compute=3.0, sigma=0.6, upload=0.5, upload_sigma=0.5, seed=5), 5.0),
}
RATES = {
    "constant": lambda rho_s: ConstantRate(0.25 / rho_s),
    "inverse": lambda rho_s: InverseDecay(0.5 / rho_s),
}
DEADLINES = {  # in units of the smallest one that the bound allows at this m; p of the first layer is 0.12 to 0.19
    "uniform": np.full(ROUNDS, 1.1),
    "decreasing": np.linspace(2.0, 1.05, ROUNDS),
}


def cost_of(quadratics, schedule, G2=1.0):
    fleet = schedule.fleet
    sigma2 = np.full(fleet.size, quadratics.sigma2)
    return round_cost(schedule.layers, np.ones(fleet.size), fleet.compute, fleet.upload, sigma2, G2)


class Measured:
    """One training, and what Lemma 3 and Theorem 1 say of it."""

    def __init__(self, quadratics, schedule, eta, w1, rng, replicas=REPLICAS):
        q, T, m = quadratics, schedule.deadlines, schedule.m
        assert bound.violated_conditions(eta, q.rho_s) == ()
        assert np.all(np.diff(T) <= 0)
        self.run = train(q, schedule, eta, w1, rng, replicas)
        cost = cost_of(q, schedule, self.run.G2)
        assert cost.in_domain(T, m)
        self.deviation, self.deviation_se = self.run.deviation.mean(1), standard_error(self.run.deviation.T)
        self.error, self.error_se = self.run.error.mean(), standard_error(self.run.error)
        self.lemma_3 = eta**2 * C(cost, T, m)
        Delta1 = float(np.square(w1 - q.w_opt).sum())
        self.theorem_1 = bound.J(cost, eta, T, m, rho_c=q.rho_c, rho_s=q.rho_s, Gamma=q.Gamma, Delta1=Delta1)
        self.initial = bound.initial_error_left(eta, q.rho_c) * Delta1
        self.truncation = float(bound.weights(eta, q.rho_c) @ C(cost, T, m))


@pytest.fixture(scope="module")
def measured(request):
    name, rate, deadlines, start, _ = request.param
    L, fleet, m = FLEETS[name]
    rng = rng_for(11, *request.param)
    q = Quadratics.draw(rng, fleet.size, L)
    schedule = Schedule(fleet, L, np.ones(1), m=m)
    T = cost_of(q, schedule).smallest_deadline(m) * DEADLINES[deadlines]
    w1 = q.w_opt + (start == "far") * 3.0 * rng.standard_normal(q.w_opt.shape)
    return Measured(q, Schedule(fleet, L, T, m=m), RATES[rate](q.rho_s).values(ROUNDS), w1, rng)


CASES = list(product(FLEETS, RATES, DEADLINES, ("far", "at the optimum"), ("seed 1", "seed 2")))
every_case = pytest.mark.parametrize("measured", CASES, indirect=True, ids=", ".join)


@every_case
def test_lemma_3_dominates_the_measured_deviation_from_fedavg_in_every_round(measured):
    assert np.all(measured.deviation > 0)
    assert np.all(measured.deviation + 3 * measured.deviation_se <= measured.lemma_3)


@every_case
def test_theorem_1_dominates_the_measured_error(measured):
    assert 0 < measured.error + 3 * measured.error_se <= measured.theorem_1


def alike(U, L, share=1.1, samples=8.0):
    """Devices of equal speed, T/m = share · x_min, batches of a whole number: equal rates, p known exactly."""
    m = samples
    return Schedule(Fleet.of(np.ones(U)), L, np.array([share * m * smallest_rate(L, U)]), m=m)


def repeated(schedule, rounds):
    return Schedule(schedule.fleet, schedule.layers, np.repeat(schedule.deadlines, rounds), m=schedule.m)


@pytest.mark.parametrize(("U", "L"), [(2, 1), (5, 3), (12, 4)])
def test_the_measured_deviation_is_the_one_that_equal_rates_imply(U, L):
    """η² Σ_l [D_l²/(1−p) (E[1/K | K>0] − 1/U) + p/(1−p) ‖ḡ_l‖²] with K ~ Binomial(U, 1−Q): within 4 standard errors.

    (SPEC section 5.) D_l² is the spread of the devices' stochastic gradients. So the simulation is right, and what
    the bounds are compared with is the truth.
    """
    rng, schedule = rng_for(12, U, L), alike(U, L)
    q = Quadratics.draw(rng, U, L)
    w1, eta = q.w_opt + 1.0, np.array([0.1])
    run = train(q, schedule, eta, w1, rng, replicas=20_000)
    g = q.gradients(w1[None])[0]
    noise = q.sigma2 / (L * schedule.batch_sizes(0)[0])  # of one layer
    spread = np.square(g - g.mean(0)).sum((0, 2)) / (U - 1) + noise
    mean_square = np.square(g.mean(0)).sum(-1) + noise / U
    arrives, p = delivery(L, schedule.rates(0)[0]), schedule.p_empty(0)
    one_over_K = sum(comb(U, k) * arrives**k * (1 - arrives) ** (U - k) / k for k in range(1, U + 1)) / (1 - p)
    expected = eta[0] ** 2 * np.sum(spread / (1 - p) * (one_over_K - 1 / U) + p / (1 - p) * mean_square)
    assert abs(run.deviation[0].mean() - expected) <= 4 * standard_error(run.deviation[0])


def test_lemma_3_is_within_a_factor_of_40_of_the_truth():
    """Two devices that pull in opposite directions, one layer, p = 1/16.

    If one of the two arrives, probability 2·¾·¼, the step is off by η g/(1−p); if both or none, by nothing. So the
    deviation is η² G² (3/8)/(15/16)² = 0.427 η² G², and Lemma 3 says η² G² · 8 (17/16)/(11/16) = 12.4 η² G².
    """
    L, m = 1, 64.0
    T = -np.log(0.25) * m
    assert p_empty_bound(L, T / m, 2)[0] == pytest.approx(1 / 16)
    q = Quadratics(np.ones((2, 1)), np.array([[[1.0]], [[-1.0]]]), sigma2=1e-9)
    schedule = Schedule(Fleet.of([1.0, 1.0]), L, np.array([T]), m=m)
    found = Measured(q, schedule, np.array([0.25]), q.w_opt, rng_for(13, "opposite"), replicas=4000)
    assert abs(found.deviation[0] - 0.25**2 * 0.375 / (15 / 16) ** 2) <= 4 * found.deviation_se[0]
    assert found.deviation[0] + 3 * found.deviation_se[0] <= found.lemma_3[0]
    assert found.deviation[0] - 3 * found.deviation_se[0] > found.lemma_3[0] / 40


def test_theorem_1_without_its_first_term_is_violated():
    """Ten small steps from afar: most of the initial error is left."""
    rng, schedule = rng_for(14, "first term"), repeated(alike(12, 3), 10)
    q = Quadratics.draw(rng, 12, 3, spread=0.1)
    found = Measured(q, schedule, np.full(10, 0.002 / q.rho_s), q.w_opt + 5.0, rng)
    assert found.error + 3 * found.error_se <= found.theorem_1
    assert found.error - 3 * found.error_se > found.theorem_1 - found.initial


def test_theorem_1_with_a_truncation_term_ten_thousand_times_smaller_is_violated():
    """Alike devices (Γ = 0) that start at the optimum: all error is noise, and most of it is missing contributors'."""
    rng, schedule = rng_for(15, "truncation"), repeated(alike(30, 3, samples=32.0), 10)
    q = Quadratics(np.ones((30, 3)), np.zeros((30, 3, 3)), sigma2=2.0)
    found = Measured(q, schedule, np.full(10, 0.05), q.w_opt, rng)
    assert found.error + 3 * found.error_se <= found.theorem_1
    assert found.error - 3 * found.error_se > found.theorem_1 - (1 - 1e-4) * found.truncation
