"""What really happens to devices, and rounds that close before their deadline."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, Latency, Law
from adelfl.simulation.world import World, misjudged
from adelfl.strategies import Orders, find_strategy
from adelfl.strategies.rounds import Outcome
from support.small_worlds import draw_round, experiment_of, run, same_bits, setting_of

FLEET = Fleet.lognormal(200, compute=16.0, sigma=0.5, seed=1)
EVERYBODY = np.arange(200)


def world(**more):
    return World(FLEET, 3, 100.0, **more)


def test_a_calm_world_is_as_the_fleet_says():
    calm = world()
    for now in (0.0, 50.0, 100.0):
        assert np.array_equal(calm.speed(EVERYBODY, now), FLEET.compute)
        assert calm.there(EVERYBODY, 0, now).all()


def test_speeds_walk_as_far_as_said_and_begin_where_they_were():
    drifting = world(drift=0.7)
    assert np.array_equal(drifting.speed(EVERYBODY, 0.0), FLEET.compute)
    log = np.log(drifting.speed(EVERYBODY, 100.0) / FLEET.compute)
    assert abs(log.std() - 0.7) < 4 * 0.7 / np.sqrt(2 * 200)
    half = np.log(drifting.speed(EVERYBODY, 50.0) / FLEET.compute)
    assert abs(half.std() - 0.7 / np.sqrt(2)) < 4 * 0.7 / np.sqrt(4 * 200)


def test_who_is_throttled_stays_so_and_the_share_is_as_said():
    slow = world(throttled=0.25)
    ratio = np.array([slow.speed(EVERYBODY, now) / FLEET.compute for now in np.linspace(0, 100, 30)])
    assert set(np.unique(ratio.round(6))) == {1.0, round(1 / 3, 6)}
    assert np.all(np.diff(ratio, axis=0) <= 0)
    assert (ratio[0] == 1).all()
    assert (ratio[-1] < 1).sum() == 50


def test_some_leave_and_as_many_come():
    changing = world(churn=0.2)
    there = np.array([changing.there(EVERYBODY, 0, now) for now in np.linspace(0, 100, 30)])
    assert (~there[0]).sum() == 40  # who will come
    assert (~there[-1]).sum() == 40  # who has left
    assert not (~there[0] & ~there[-1]).any()
    assert np.all(np.abs(np.diff(there.astype(int), axis=0)).sum(axis=0) <= 1)


def test_who_drops_out_is_drawn_for_the_cohort_alone_however_large_the_fleet(monkeypatch):
    asked = []

    class Counting:
        def random(self, size):
            asked.append(size)
            return np.linspace(0.0, 0.9, size)

    monkeypatch.setattr("adelfl.simulation.world.rng_for", lambda *path: Counting())
    there = world(dropout=0.45).there(np.array([3, 77, 150, 199]), 5, 0.0)
    assert asked == [4]
    assert there.tolist() == [False, False, True, True]


def test_a_misjudged_fleet_differs_by_the_factors_alone():
    assert misjudged(FLEET, 1.0, 1.0, 0) is FLEET
    assert misjudged(FLEET, 2.0, 1.0, 0).compute == pytest.approx(2.0 * FLEET.compute)
    each = misjudged(FLEET, 1.0, 2.0, 0).compute / FLEET.compute
    assert set(each.round(9)) == {0.5, 2.0}
    assert abs((each == 2.0).mean() - 0.5) < 4 * 0.5 / np.sqrt(200)


def test_strategies_are_told_what_is_believed_and_time_passes_as_it_is():
    said = load_run(None, ["fleet.misjudged=2.0", "latency.law=gamma", "latency.known=false", "fleet.dropout=0.1"])
    experiment = build_experiment(said)
    setting, real = experiment.strategy.problem, experiment.world
    assert setting.compute == pytest.approx(2.0 * real.compute)
    assert isinstance(setting.latency, Exponential)
    assert real.latency.law.name == "gamma"
    assert real.dropout == 0.1
    assert real.budget == setting.budget
    calm = build_experiment(load_run(None, []))
    assert calm.strategy.problem.budget == setting.budget  # mean depth is that of the real fleet


def test_layers_cost_what_their_multiplications_do():
    experiment = build_experiment(load_run(None, ["latency.costs=flops", "latency.upload_by_layers=true"]))
    latency = experiment.world.latency
    assert latency.costs == (64 * 32, 32 * 16, 16 * 10)
    assert latency.shares == tuple(4.0 * n for n in (64 * 32 + 32, 32 * 16 + 16, 16 * 10 + 10))
    assert experiment.strategy.problem.latency is latency


def test_a_run_with_other_laws_keeps_its_budget_and_learns():
    changes = ["training.rounds=10", "training.depth=0.5", "fleet.upload=0.05", "latency.law=lognormal"]
    changes += ["latency.forward=0.5", "latency.upload_law=gamma", "latency.costs=[3.0,1.0,1.0]", "fleet.drift=0.5"]
    memory = run(build_experiment(load_run(None, changes)))
    assert memory.result.rounds == 10
    assert memory.rows[-1].time <= build_experiment(load_run(None, changes)).strategy.problem.budget * (1 + 1e-9)
    assert memory.result.final_accuracy > 0.15


# -- early close


class Steady(Latency):
    def __init__(self):
        super().__init__(Law("constant"))


def test_a_round_ends_when_everybody_has_delivered_everything_if_that_is_wanted():
    setting = replace(setting_of(3, budget=100.0, rounds=10, batch=4), latency=Steady())
    strategy = find_strategy("salf")(setting)
    real, devices = World(setting.fleet, 0, 100.0, Steady()), np.arange(5)
    batch = np.full(5, 4)
    last = float(np.max(3 * 4 / setting.compute + setting.upload))
    assert draw_round(strategy, real, 0, 0.0, devices, Orders(10.0, batch, early=True)).length == pytest.approx(last)
    assert draw_round(strategy, real, 0, 0.0, devices, Orders(10.0, batch)).length == 10.0
    # One that was not asked is not waited for; one that is late, or away, is.
    batch[0] = 0
    some = draw_round(strategy, real, 0, 0.0, devices, Orders(10.0, batch, early=True))
    assert some.length == pytest.approx(float(np.max((3 * 4 / setting.compute + setting.upload)[1:])))
    batch[0] = 4000
    assert draw_round(strategy, real, 0, 0.0, devices, Orders(10.0, batch, early=True)).length == 10.0
    away = World(setting.fleet, 0, 100.0, Steady(), dropout=0.99)
    assert draw_round(strategy, away, 0, 0.0, devices, Orders(10.0, np.full(5, 4), early=True)).length == 10.0


@pytest.mark.parametrize("replan", [True, False])
def test_time_that_is_saved_goes_to_the_rounds_to_come(replan):
    setting = replace(setting_of(3, depth=0.9, rounds=12), latency=Steady())
    memory = run(experiment_of("adel", setting=setting, options={"replan": replan}))
    assert memory.result.rounds == 12
    T = np.array([row.deadline for row in memory.rows[1:]])
    strategy = find_strategy("adel")(setting, replan=replan)
    assert T[0] < strategy.schedule.deadlines[0]  # closed early
    assert T.sum() <= setting.budget * (1 + 1e-9)
    devices, left = np.arange(5), 0.97 * setting.budget
    batch = strategy.orders(0, devices).batch
    strategy.observe(Outcome(0, devices, batch, np.full(5, 3), 3 * batch / setting.compute, setting.upload, left))
    assert strategy.planned(1) == pytest.approx(left)
    assert strategy.planned(1) > strategy.schedule.deadlines[1:].sum()


# -- adel


def test_an_experiment_can_be_run_twice_though_its_strategy_learns():
    experiment = experiment_of("adel", depth=0.3, rounds=8)
    one, other = run(experiment), run(experiment)
    assert one.rows == other.rows
    assert same_bits(one.weights, other.weights)


def test_adel_follows_devices_that_are_not_as_believed():
    setting = setting_of(3, depth=0.9, rounds=40, batch=16)
    slower = replace(setting.fleet, compute=setting.fleet.compute / 2)
    experiment = experiment_of("adel", setting=setting)
    changes = {"world": World(slower, experiment.seed, setting.budget), "oversample": True}
    learned = run(replace(experiment, **changes)).rows[-1].batch
    stubborn = run(replace(experiment_of("adel", setting=setting, options={"replan": False}), **changes)).rows
    assert sum(learned) < 0.8 * sum(stubborn[-1].batch)


def test_gradients_are_looked_at_ten_times_and_written_down():
    memory = run(experiment_of("adel", depth=0.6, rounds=40))
    looked = [row.round for row in memory.rows if row.gradients is not None]
    assert looked == [4, 8, 12, 16, 20, 24, 28, 32, 36]
    seen = next(row for row in memory.rows if row.gradients is not None).gradients
    assert set(seen) == {"sigma2", "zeta2", "norm2"}
    assert all(len(values) == 3 for values in seen.values())
    assert not any(row.gradients for row in run(experiment_of("salf", depth=0.6, rounds=40)).rows)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"replan": "yes"}, "replan must be true or false"),
        ({"weigh": "some"}, "weigh must be one of"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, sentence):
    with pytest.raises(Exception, match=sentence):
        find_strategy("adel")(setting_of(3), **options)
