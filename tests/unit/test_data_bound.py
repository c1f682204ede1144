"""A batch is at most the data of its device, in the planner, the simulator and on Flower; more is drawn on request."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl import ConstantRate, Fleet, Problem, plan
from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.data import Partition
from adelfl.errors import ConfigError
from adelfl.schedule import Schedule
from adelfl.simulation import simulate
from adelfl.strategies import Orders, find_strategy
from support.problems import recorded_schedule
from support.small_worlds import EVERY_STRATEGY, dataset_of, experiment_of, run, same_bits, setting_of, typed

SIZES = np.array([3, 30, 8, 40, 15])
RICH = {"budget": 400.0, "rounds": 4, "batch": 20}
"""So much time that batches would exceed every device's data."""


def unequal() -> Partition:
    """96 samples on five devices: 3, 30, 8, 40 and 15."""
    return Partition.of(np.split(np.arange(96), np.cumsum(SIZES)[:-1]), 96)


def rich_experiment(words="adel", *, knows=True, **others):
    """A run with far more time than data; ``knows``: whether the strategy is told of the data."""
    setting = setting_of(3, **RICH)
    if knows:
        setting = replace(setting, samples=SIZES)
    experiment = experiment_of(words, setting=setting)
    return replace(experiment, partition=unequal(), **others)


def batches(memory) -> np.ndarray:
    return np.array([row.batch for row in memory.rows if row.batch])


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("words", EVERY_STRATEGY)
def test_no_batch_exceeds_the_data_of_its_device(words, knows):
    found = batches(run(rich_experiment(words, knows=knows)))
    assert np.all(found <= SIZES)
    assert np.all(found[:, 0] <= 3)
    if words in ("adel", "adel-paper"):
        assert np.array_equal(found[0], SIZES)  # there is time for everything


@pytest.mark.parametrize("words", ["wait", "salf", "adel"])
def test_oversampling_lifts_the_bound(words):
    found = batches(run(rich_experiment(words, knows=False, oversample=True)))
    assert found[:, 0].max() >= RICH["batch"]


def test_time_is_charged_for_samples_that_exist():
    """Waiting for devices whose batch is cut takes as long as asking for that many samples."""
    cut = run(rich_experiment("wait"))

    class Few(find_strategy("wait")):
        def orders(self, t, devices):
            return Orders(np.inf, np.minimum(20, SIZES[devices]))

    known = rich_experiment("wait")
    asked = run(replace(known, strategy=Few(known.strategy.problem)))
    assert [r.time for r in cut.rows] == [r.time for r in asked.rows]
    assert same_bits(cut.weights, asked.weights)
    repeated = run(rich_experiment("wait", knows=False, oversample=True))
    assert repeated.rows[1].time > cut.rows[1].time


@pytest.mark.parametrize("words", EVERY_STRATEGY)
def test_runs_within_the_data_are_unchanged_to_the_bit(words):
    """Knowing the amounts of data changes nothing where no batch comes near them."""
    plain = experiment_of(words, depth=0.5)
    most = max(max(row.batch) for row in run(plain).rows if row.batch)
    assert most <= plain.partition.sizes.min()
    name, options = EVERY_STRATEGY[words]
    told = replace(plain.strategy.problem, samples=plain.partition.sizes)
    one, other = run(plain), run(replace(plain, strategy=find_strategy(name)(told, **options)))
    assert one.rows == other.rows
    assert same_bits(one.weights, other.weights)
    repeating = run(replace(plain, oversample=True))
    assert one.rows == repeating.rows
    assert same_bits(one.weights, repeating.weights)


@pytest.mark.parametrize("objective", ["tight", "paper"])
def test_a_plan_asks_for_no_more_than_devices_hold(objective):
    fleet = Fleet.of([30.0, 12.0, 5.0], 0.1, [4, 5, 6], ["fast", "middle", "slow"], samples=[20, 47, np.inf])
    problem = Problem(fleet, layers=3, rounds=10, budget=3000.0, learning_rate=0.1)
    bound, free = (
        plan(p, objective=objective) for p in (problem, replace(problem, fleet=replace(fleet, samples=None)))
    )
    assert np.all(free.schedule.batch_sizes()[:, :2] > [20, 47])
    assert np.all(bound.schedule.batch_sizes()[:, :2] == [20, 47])
    assert "data: fast" in bound.binding
    assert bound.excess > free.excess  # fewer samples, more noise
    assert np.all(bound.schedule.rates()[:, :2] > free.schedule.rates()[:, :2])


@pytest.mark.parametrize("objective", ["tight", "paper"])
def test_a_plan_within_the_data_is_the_plan_without_the_bound(objective):
    fleet = Fleet.of([30.0, 12.0, 5.0], 0.1, [4, 5, 6])
    problem = Problem(fleet, layers=3, rounds=10, budget=20.0, learning_rate=0.1)
    free = plan(problem, objective=objective)
    most = int(free.schedule.batch_sizes().max())
    bound = plan(replace(problem, fleet=replace(fleet, samples=np.full(3, float(most)))), objective=objective)
    assert np.array_equal(bound.schedule.deadlines, free.schedule.deadlines)
    assert np.array_equal(bound.m, free.m)
    assert bound.excess == free.excess
    assert not [b for b in bound.binding if b.startswith("data")]


def test_knowing_the_data_gives_a_better_plan_than_cutting_batches_afterwards():
    """Devices that are short of data set no scale for the others: the noise of what is done is lower."""
    from adelfl.planner.noise_plan import Population, solve

    fleet = Fleet.of([200.0, 5.0], 0.0, [20, 20], samples=[10, 1000])
    problem = Problem(fleet, layers=3, rounds=10, budget=60.0, learning_rate=ConstantRate(0.1))
    population = Population.of(problem)
    told, untold = (
        solve(c, problem.eta, problem.budget, rho_c=0.1) for c in (population, replace(population, samples=None))
    )
    assert np.any(untold.m * population.P[0] > 10)
    done = [float(population.noise(p.T, np.broadcast_to(p.m, p.T.shape), 24).sum()) for p in (told, untold)]
    assert done[0] <= done[1] * (1 + 1e-6)


def test_a_budget_of_1e12_seconds_runs():
    built = build_experiment(load_run(None, ["training.budget=1e12", "training.rounds=3", "fleet.devices=6"]))
    result = simulate(built)
    assert result.rounds == 3
    assert np.all(built.strategy.orders(0, np.arange(6)).batch == built.partition.sizes)


def test_oversampling_without_end_is_one_sentence():
    changes = ["training.budget=1e12", "training.rounds=3", "fleet.devices=6", "training.oversample=true"]
    with pytest.raises(ConfigError, match=r"round 1 has 6 devices and batches of up to .* too many to draw"):
        simulate(build_experiment(load_run(None, changes)))


def test_a_group_may_hold_unequal_amounts():
    """Devices that are alike in speed and differ in data: each keeps to its own."""
    fleet = Fleet.of([40.0, 10.0], 0.0, [3, 2])
    setting = Problem(fleet, 3, 4, 400.0, 0.05, batch=20, samples=SIZES)
    for name in ("adel", "adel-paper"):
        strategy = find_strategy(name)(setting)
        assert np.array_equal(strategy.orders(0, np.arange(setting.devices)).batch, SIZES)
        assert strategy.schedule.fleet.samples.tolist() == [30.0, 40.0]


@pytest.mark.parametrize("samples", [0, [1, 2], np.nan])
def test_amounts_of_data_that_cannot_be_are_refused(samples):
    with pytest.raises(ConfigError, match="samples must be one number of at least 1, or 5 of them"):
        replace(setting_of(3), samples=samples)
    with pytest.raises(ConfigError, match="samples"):
        Fleet.of([1.0, 2.0, 3.0], samples=samples)


def test_files_say_how_much_data_there_is(tmp_path):
    path, table = tmp_path / "plan.toml", tmp_path / "fleet.csv"
    path.write_text(
        "[problem]\nrounds = 5\nbudget = 5000.0\nlayers = 3\n"
        "[[device]]\ncompute = 16.0\ncount = 4\nsamples = 47\n[[device]]\ncompute = 4.0\ncount = 4\n"
    )
    table.write_text("compute,upload,count,samples\n16,0,4,47\n4,0,4,100\n")
    for arguments in ((path,), (path, "--fleet", path), (path, "--fleet", table)):
        answer = typed("plan", *arguments)
        assert answer.code == 0
        assert "data: " in answer.out
        row = next(line for line in answer.out.splitlines() if line.startswith(("device #1", "row 2")))
        assert set(row.split()[3:]) == {"47"}


def test_a_schedule_with_data_survives_json():
    fleet = Fleet.of([30.0, 12.0], samples=[20, np.inf])
    schedule = Schedule(fleet, 3, np.array([100.0, 50.0]), m=10.0)
    again = recorded_schedule(schedule.to_dict())
    assert np.array_equal(again.batch_sizes(), schedule.batch_sizes())
    assert schedule.batch_sizes()[0].tolist() == [20, 120]


def test_a_device_with_one_sample_trains_with_it():
    partition = Partition.of(np.split(np.arange(96), [1, 30, 50, 80]), dataset_of((1, 4, 4)).y_train.size)
    experiment = replace(rich_experiment("adel", knows=False), partition=partition)
    assert np.all(batches(run(experiment))[:, 0] == 1)
