"""A layer takes (S + s₀)/P on average, with a spread of the device's own; without either all is the paper's."""

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, GammaLayers, Latency, Law
from adelfl.planner import Problem
from adelfl.simulation.draws import draw_work
from adelfl.simulation.world import World
from adelfl.strategies import find_strategy
from adelfl.strategies.actions import Tasks

L = 3


def world_of(fleet: Fleet, seed: int = 0) -> World:
    return World(fleet, seed, 100.0)


def asked(fleet: Fleet, batch: int, cutoff: float) -> Tasks:
    return Tasks(np.arange(fleet.size), np.full(fleet.size, batch), 1, 0.1, cutoff)


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.7, 1.0, 1.5])
def test_layers_arrive_as_often_as_the_law_says(spread):
    fleet = Fleet.of([20.0, 12.0, 6.0], [0.0, 0.1, 0.2], overhead=[0.0, 3.0, 5.0], spread=[spread, 0.4, spread])
    problem = Problem(fleet, L, 1, 2.0, 0.1, batch=8)
    draws, T = 4000, 2.0
    z = np.stack([draw_work(world_of(fleet, s), asked(fleet, 8, T), 0, 0.0, L).z for s in range(draws)])
    seen = (z[..., None] >= np.arange(L, 0, -1)).mean(axis=0)
    mean = (8 + problem.overhead) / problem.compute
    expected = problem.latency.delivery(mean, problem.upload, np.full(3, T), L)
    error = np.sqrt(expected * (1 - expected) / draws)
    assert np.all(np.abs(seen - expected) <= 4 * error + 1e-12)


def test_a_spread_of_one_has_the_papers_chances():
    rng = np.random.default_rng(0)
    mean, upload, T = rng.uniform(0.1, 2.0, 20), rng.uniform(0.0, 0.5, 20), np.full(20, 3.0)
    ours = GammaLayers(np.ones(20)).delivery(mean, upload, T, L)
    assert ours == pytest.approx(Exponential().delivery(mean, upload, T, L), abs=1e-12)


def test_no_overhead_and_a_spread_of_one_are_the_paper_to_the_bit():
    plain = Fleet.of([20.0, 12.0, 6.0])
    same = Fleet.of([20.0, 12.0, 6.0], overhead=0.0, spread=1.0)
    assert type(Problem(same, L, 1, 2.0, 0.1).latency) is Exponential
    one, other = (draw_work(world_of(f), asked(f, 8, 2.0), 0, 0.0, L) for f in (plain, same))
    assert np.array_equal(one.z, other.z)
    assert np.array_equal(one.done, other.done)


def test_steady_layers_take_their_mean():
    fleet = Fleet.of([10.0, 5.0], overhead=2.0, spread=0.0)
    work = draw_work(world_of(fleet), asked(fleet, 8, np.inf), 0, 0.0, L)
    assert work.seconds == pytest.approx([3.0, 6.0], rel=0.01)


def test_a_plan_pays_for_overhead_with_smaller_batches():
    def batches(overhead: float) -> np.ndarray:
        fleet = Fleet.of(np.linspace(40.0, 80.0, 10), overhead=overhead)
        strategy = find_strategy("adel")(Problem(fleet, L, 10, 20.0, 0.1))
        return strategy.orders(0, np.arange(10)).batch

    assert np.all(batches(8.0) < batches(0.0))
    assert np.all(batches(8.0) >= 1)


def test_a_fleet_with_a_spread_refuses_another_law():
    with pytest.raises(ConfigError, match="remove the spreads or the latency model"):
        Problem(Fleet.of([1.0, 2.0], spread=0.5), L, 1, 2.0, 0.1, latency=Latency(Law("lognormal")))


def test_a_file_says_overhead_and_spread(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("compute,overhead,spread\n10,4,0.2\n20,0,1\n")
    fleet = Fleet.from_csv(path)
    assert fleet.overhead.tolist() == [4.0, 0.0]
    assert fleet.spread.tolist() == [0.2, 1.0]


@pytest.mark.parametrize(("key", "value"), [("overhead", -1.0), ("spread", -0.1), ("spread", 11.0)])
def test_costs_that_cannot_be_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key} of device #1 must be zero or a positive number"):
        Fleet.of([1.0, 2.0], **{key: value})
