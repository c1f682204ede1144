"""What is believed of devices while training goes on."""

import numpy as np
import pytest

from adelfl.fleet import Fleet
from adelfl.latency import Exponential, Latency, Law
from adelfl.learning_rate import ConstantRate
from adelfl.planner import Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.seeds import rng_for
from adelfl.simulation.world import World
from adelfl.strategies.adel import Adel
from adelfl.strategies.rounds import Outcome
from support.small_worlds import draw_round

N, L = 40, 3
EVERYBODY = np.arange(N)
TRUE = 16.0 * np.exp(0.5 * rng_for(1, "speeds").standard_normal(N))


class Rounds:
    """Rounds of a fleet with exponential layer times: a rate of three layers by what is believed."""

    def __init__(self, believed, true=TRUE, upload=0.1, seed=2):
        self.beliefs = Beliefs(believed, np.full(N, upload))
        self.true, self.upload = true, upload
        self.rng = rng_for(seed, "rounds")

    def go(self, rounds, there=None, true=None, devices=EVERYBODY):
        true = self.true if true is None else true
        for _ in range(rounds):
            P = self.beliefs.compute(devices)
            S = np.maximum(1, np.floor(P * 1.0 / 3.0)).astype(int)
            times = np.cumsum(self.rng.exponential(1.0, (devices.size, L)) * (S / true[devices])[:, None], axis=1)
            z = (times <= 1.0).sum(axis=1)
            if there is not None:
                z = np.where(there[devices], z, 0)
            seconds = np.where(z == L, times[:, -1], 1.0)
            upload = np.where(z > 0, self.upload, np.nan)
            self.beliefs.observe(devices, S, z.astype(float), seconds, upload, z == L)
        return self.beliefs


def off(beliefs, true=TRUE):
    """Root mean square of the log of how far speeds are off."""
    return float(np.sqrt(np.mean(np.log(beliefs.compute(EVERYBODY) / true) ** 2)))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_fleet_that_is_misjudged_as_a_whole_is_known_after_a_few_rounds_even_who_was_never_asked(factor):
    rounds = Rounds(factor * TRUE)
    beliefs = rounds.go(3, devices=np.arange(20))
    assert beliefs.faster == pytest.approx(1 / factor, rel=0.25)
    assert off(rounds.go(10, devices=np.arange(20))) < 0.2
    assert beliefs.compute(np.arange(20, N)) / TRUE[20:] == pytest.approx(1.0, abs=0.2)


def test_devices_that_are_misjudged_each_for_itself_are_told_apart():
    wrong = TRUE * 2.0 ** rng_for(5, "signs").choice([-1.0, 1.0], N)
    rounds = Rounds(wrong)
    assert off(rounds.beliefs) == pytest.approx(np.log(2.0))
    beliefs = rounds.go(15)
    assert off(beliefs) < 0.3
    assert beliefs.firmness < 20


def test_what_is_right_at_first_is_held_on_to():
    beliefs = Rounds(TRUE).go(30)
    assert off(beliefs) < 0.15
    assert beliefs.firmness > 20


def test_one_odd_round_moves_little():
    rounds = Rounds(TRUE)
    before = rounds.go(10).compute(EVERYBODY)
    S = np.maximum(1, np.floor(before / 3.0)).astype(int)
    z, seconds = np.full(N, 2), np.ones(N)
    z[0], seconds[0] = L, 0.02  # through in no time
    rounds.beliefs.observe(EVERYBODY, S, z.astype(float), seconds, np.full(N, 0.1), z == L)
    after = rounds.beliefs.compute(EVERYBODY)
    assert after[0] / before[0] < 1.5
    assert np.all(np.abs(np.log(after[1:] / before[1:])) < 0.15)


def test_who_is_throttled_is_noticed_and_the_others_are_not_blamed():
    slower = TRUE.copy()
    slower[:10] /= 3.0
    rounds = Rounds(TRUE)
    rounds.go(10)
    beliefs = rounds.go(25, true=slower)
    found = beliefs.compute(EVERYBODY) / TRUE
    assert np.mean(found[:10]) < 0.5
    assert np.mean(found[10:]) == pytest.approx(1.0, abs=0.15)


def test_silence_is_taken_for_absence_where_it_cannot_be_slowness_and_forgotten_when_they_are_back():
    there = np.ones(N, dtype=bool)
    there[:5] = False
    rounds = Rounds(TRUE)
    rounds.go(5)
    beliefs = rounds.go(12, there=there)
    assert np.all(beliefs.away(np.arange(5)) > 0.5)
    assert np.all(beliefs.away(np.arange(5, N)) < 0.25)
    assert np.all(beliefs.compute(np.arange(5)) > 0.4 * TRUE[:5])  # away, not slow
    rounds.go(40)
    assert np.all(beliefs.away(np.arange(5)) < 0.3)


def test_uploads_are_learned():
    rounds = Rounds(TRUE, upload=0.1)
    rounds.upload = 0.4
    assert rounds.go(20).upload(EVERYBODY) == pytest.approx(0.4, rel=0.1)


def test_nothing_is_learned_of_who_was_not_asked():
    beliefs = Beliefs(TRUE, np.zeros(N))
    zero = np.zeros(N, dtype=int)
    beliefs.observe(EVERYBODY, zero, zero.astype(float), np.ones(N), np.full(N, np.nan), zero > 0)
    assert beliefs.compute(EVERYBODY) == pytest.approx(TRUE)
    assert beliefs.faster == 1.0


def test_what_is_summed_up_as_rounds_pass_is_the_sum_over_devices():
    rounds = Rounds(1.4 * TRUE)
    for t in range(12):
        rounds.go(1, devices=rng_for(9, t).permutation(N)[:15])
    kept = rounds.beliefs._sums.copy()
    assert kept == pytest.approx(rounds.beliefs._share(EVERYBODY))


LATENCIES = {
    "exponential": Exponential(),
    "constant": Latency(Law("constant")),
    "steady": Latency(Law("gamma", 0.3)),
    "wild": Latency(Law("lognormal", 1.3)),
    "the last layer dear": Latency(Law("gamma", 0.8), costs=(0.1, 1.0, 10.0)),
    "the first layer dear": Latency(Law("gamma", 0.8), costs=(10.0, 1.0, 0.1)),
    "a forward pass": Latency(Law("gamma", 0.5), forward=2.0),
    "uploads by size": Latency(Law("exponential"), shares=(8.0, 4.0, 1.0)),
}


@pytest.mark.parametrize("name", LATENCIES)
def test_a_fleet_that_is_known_stays_known_whatever_its_law(name):
    """As far as counting renewals can tell: dear layers under way count as not begun."""
    fleet, latency = Fleet.of(TRUE, 0.05), LATENCIES[name]
    setting = Problem(fleet, L, 60, 60 * 0.8, ConstantRate(0.1), batch=16, latency=latency)
    strategy, world = Adel(setting), World(fleet, 4, setting.budget, latency)
    now = 0.0
    for t in range(40):
        orders = strategy.orders(t, EVERYBODY)
        drawn = draw_round(strategy, world, t, now, EVERYBODY, orders)
        now += drawn.length
        z = drawn.progress.z
        strategy.observe(Outcome(t, EVERYBODY, orders.batch, z, drawn.seconds, drawn.upload, setting.budget - now))
    assert 0.6 < strategy.beliefs.faster < 1.6
    assert strategy.beliefs.upload(EVERYBODY) == pytest.approx(np.full(N, 0.05))
