"""Rounds on a virtual clock: the budget holds, luck is shared, and Algorithm 1 is what runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.special import gammaincc
from scipy.stats import poisson
from torch.nn import functional

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.data import iid
from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential
from adelfl.learning_rate import ConstantRate
from adelfl.planner import Problem
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.records.summary import FINAL_MOMENTS, Summary
from adelfl.simulation import TrainingError, simulate
from adelfl.simulation.draws import draw_rows
from adelfl.simulation.engine import Simulation
from adelfl.simulation.world import World
from adelfl.strategies import Orders, find_strategy
from adelfl.theory.participation import delivery, expected_depth
from support.small_worlds import (
    EVERY_STRATEGY,
    cohort_of,
    dataset_of,
    draw_progress,
    draw_round,
    experiment_of,
    furthest,
    run,
    same_bits,
    setting_of,
)

# -- time


@st.composite
def fleets_and_budgets(draw):
    U = draw(st.integers(2, 6))
    speeds = draw(st.lists(st.floats(2.0, 200.0), min_size=U, max_size=U))
    uploads = draw(st.lists(st.floats(0.0, 2.0), min_size=U, max_size=U))
    rounds, budget = draw(st.integers(1, 7)), draw(st.floats(0.1, 50.0))
    cohort = draw(st.one_of(st.none(), st.integers(2, U)))
    return Fleet.of(speeds, uploads), rounds, budget, cohort


@pytest.mark.parametrize("words", EVERY_STRATEGY)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(world=fleets_and_budgets(), iterations=st.integers(1, 2), seed=st.integers(0, 9))
def test_virtual_time_never_exceeds_the_budget(words, world, iterations, seed):
    fleet, rounds, budget, cohort = world
    shape = {"rounds": rounds, "budget": budget, "cohort": cohort, "local_iterations": iterations}
    setting = setting_of(3, fleet=fleet, rate=0.01, **shape)
    try:
        memory = run(experiment_of(words, setting=setting, seed=seed))
    except InfeasibleBudgetError:
        assert words in ("adel", "adel-paper")
        reject()  # hypothesis complains if this is all that happens
    first, *rows = memory.rows
    assert (first.round, first.time) == (0, 0.0)
    times = np.array([row.time for row in rows])
    assert np.all(times <= budget * (1 + 1e-9))
    assert np.allclose(np.cumsum([row.deadline for row in rows]), times, rtol=1e-12)
    assert [row.round for row in rows] == list(range(1, len(rows) + 1))
    # Only waiting may leave rounds undone; a plan that fits is carried out to its end.
    assert len(rows) == memory.result.rounds <= rounds
    assert words == "wait" or len(rows) == rounds
    assert memory.result.time == (times[-1] if rows else 0.0)
    assert 0.0 <= memory.result.depth <= 1.0


def test_a_round_without_deadline_ends_with_its_slowest_device():
    setting = setting_of(3, local_iterations=2)
    devices, batch = np.arange(5), np.array([4, 0, 2, 8, 1])
    spy = Spy()
    progress, length = draw_progress(setting, spy, 0, 3, devices, Orders(np.inf, batch))
    takes = (spy.unit[-1] * (batch / setting.compute)[:, None]).sum(axis=1) + setting.upload
    assert length == pytest.approx(takes[batch > 0].max())
    assert np.array_equal(progress.z, np.where(batch > 0, 6, 0))


def test_accuracy_is_measured_evenly_over_the_budget_at_its_quarters_and_in_its_last_tenth():
    memory = run(experiment_of("salf", rounds=24, evaluations=6))
    measured = [row.round for row in memory.rows if row.accuracy is not None]
    assert measured == sorted({0, 4, 8, 12, 16, 20, 24} | {6, 12, 18, 24} | {22, 23, 24})
    assert memory.result.accuracy["50%"] == memory.rows[12].accuracy
    assert memory.result.accuracy["100%"] == memory.rows[24].accuracy
    for row in memory.rows:
        assert (row.loss is None) == (row.accuracy is None)


def test_the_final_accuracy_is_the_mean_of_what_was_known_at_the_last_moments():
    memory = run(experiment_of("salf", rounds=50, evaluations=50))
    known = [memory.rows[round(50 * share)].accuracy for share in FINAL_MOMENTS]
    assert memory.result.final_accuracy == pytest.approx(np.mean(known))


@pytest.mark.parametrize("name", EVERY_STRATEGY)
@pytest.mark.parametrize("evaluations", [1, 7])
def test_a_summary_does_not_depend_on_how_often_accuracy_was_measured(name, evaluations):
    always = run(experiment_of(name, rounds=40, evaluations=20_000))
    assert all(row.accuracy is not None for row in always.rows)
    seldom = run(experiment_of(name, rounds=40, evaluations=evaluations))
    assert name == "wait" or sum(row.accuracy is not None for row in seldom.rows) < 20
    assert seldom.result == always.result


def test_before_the_first_evaluation_nothing_is_known():
    summary = Summary(100.0, 3)
    for t, accuracy in ((10, None), (40, None), (60, 0.5), (100, 0.7)):
        summary.add(Row(t, float(t), accuracy=accuracy, depth=[3]))
    assert summary.result().accuracy == {"25%": None, "50%": None, "75%": 0.5, "100%": 0.7}
    assert summary.result().final_accuracy == pytest.approx((4 * 0.5 + 0.7) / 5)


def test_a_device_that_does_more_than_everything_counts_as_one_that_does_everything():
    summary = Summary(100.0, 3)
    summary.add(Row(1, 10.0, depth=[15, 0]))
    assert summary.result().depth == 0.5


# -- luck


class Spy(Exponential):
    """Remembers the draws of layer times, in units of their means."""

    def __init__(self):
        self.unit = []

    def layer_times(self, rng, mean, steps, layers):
        self.unit.append(rng.standard_exponential((mean.size, steps)))
        return mean[:, None] * self.unit[-1]


def test_all_strategies_meet_the_same_device_times_and_the_same_cohorts():
    fleet = Fleet.lognormal(40, compute=20.0, sigma=0.5, seed=0)
    setting = setting_of(3, fleet=fleet, cohort=6, rounds=8, depth=0.7, rate=0.01)
    times, cohorts, batches = {}, {}, {}
    for words in EVERY_STRATEGY:
        experiment = experiment_of(words, setting=setting)
        spy = Spy()
        experiment = replace(experiment, world=World(setting.fleet, experiment.seed, setting.budget, spy))
        rows = run(experiment).rows[1:]
        times[words] = spy.unit
        cohorts[words] = [row.devices for row in rows]
        batches[words] = [row.batch for row in rows]
    for words in EVERY_STRATEGY:
        done = len(cohorts[words])
        assert done == 8 or words == "wait"
        assert cohorts[words] == cohorts["salf"][:done]
        assert all(np.array_equal(a, b) for a, b in zip(times[words], times["salf"], strict=False))
    assert batches["adel"] != batches["salf"]


def test_the_same_strategy_on_another_seed_meets_other_luck():
    one, again, other = (run(experiment_of("salf", seed=seed)) for seed in (1, 1, 2))
    assert same_bits(one.weights, again.weights)
    assert one.rows == again.rows
    assert [row.depth for row in one.rows[1:]] != [row.depth for row in other.rows[1:]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_a_larger_batch_extends_a_smaller_one(small, extra):
    y = dataset_of((1, 4, 4)).y_train
    partition = iid(y, 7, 0)
    devices = np.array([0, 2, 5, 6])
    small = np.array(small)
    large = small + extra
    (few,), (many,) = (draw_rows(partition, 3, [(8, devices, sizes)], 2) for sizes in (small, large))
    for one, other in zip(few, many, strict=True):
        assert (one.size, other.size) == (small.sum(), large.sum())
        for u in range(4):
            mine = one[small[:u].sum() : small[: u + 1].sum()]
            longer = other[large[:u].sum() : large[: u + 1].sum()]
            assert np.array_equal(longer[: small[u]], mine)
            assert np.isin(longer, partition[devices[u]]).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_samples_do_not_depend_on_which_rounds_are_drawn_at_once(data):
    partition = iid(dataset_of((1, 4, 4)).y_train, 7, 0)
    rounds = []
    for t in range(data.draw(st.integers(1, 5))):
        devices = np.array(sorted(data.draw(st.sets(st.integers(0, 6), min_size=1))))
        rounds.append(
            (t, devices, np.array(data.draw(st.lists(st.integers(0, 9), min_size=devices.size, max_size=devices.size))))
        )
    together = draw_rows(partition, 3, rounds, 2)
    apart = [draw_rows(partition, 3, [one], 2)[0] for one in rounds]
    for (_, _, sizes), some, same in zip(rounds, together, apart, strict=True):
        for one, other in zip(some, same, strict=True):
            assert one.size == sizes.sum()
            assert np.array_equal(one, other)


def test_every_local_iteration_draws_samples_of_its_own():
    partition = iid(np.zeros(300, dtype=int), 3, 0)
    ((one, two),) = draw_rows(partition, 0, [(0, np.arange(3), np.full(3, 20))], 2)
    assert (one != two).mean() > 0.9


def test_who_waits_for_everybody_waits_for_their_uploads():
    setting = setting_of(3, fleet=Fleet.of([10.0, 11.0, 12.0], [0.0, 5.0, 0.1]))
    world = World(setting.fleet, 3, setting.budget, Exponential())
    drawn = draw_round(find_strategy("wait")(setting), world, 0, 0.0, np.arange(3), Orders(np.inf, np.full(3, 2)))
    assert drawn.length == pytest.approx((drawn.seconds + setting.upload).max())
    assert drawn.length > drawn.seconds.max()


def test_chances_are_smaller_for_devices_that_seldom_answer(monkeypatch):
    setting = setting_of(3)
    strategy = find_strategy("salf")(setting)
    world = World(setting.fleet, 3, setting.budget, Exponential())
    T = setting.uniform_deadline

    def chances(absent):
        monkeypatch.setattr(type(strategy), "absent", lambda self, devices: np.full(devices.size, absent))
        return draw_round(strategy, world, 0, 0.0, np.arange(5), Orders(T, np.full(5, 4))).progress.pi

    assert chances(0.5) == pytest.approx(0.5 * chances(0.0), rel=1e-9)


def test_samples_are_drawn_evenly_and_with_replacement():
    partition = iid(np.zeros(24, dtype=int), 3, 0)
    rounds = [(t, np.array([1]), np.array([16])) for t in range(500)]
    drawn = np.concatenate([rows for (rows,) in draw_rows(partition, 0, rounds, 1)])
    counts = np.array([(drawn == sample).sum() for sample in partition[1]])
    assert counts.sum() == 8000
    # Each of 8 samples is binomial(8000, 1/8): standard deviation 29.6.
    assert np.all(np.abs(counts - 1000) < 4 * 29.6)


def test_cohorts_are_distinct_devices_of_the_whole_fleet_drawn_evenly():
    setting = setting_of(3, fleet=Fleet.of(20.0, 0.0, 40), cohort=10)
    drawn = [cohort_of(setting, 0, t) for t in range(2000)]
    assert all(np.all(np.diff(devices) > 0) for devices in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=40)
    # Each device is in a cohort with probability 1/4: 500 ± 19.4 times.
    assert np.all(np.abs(counts - 500) < 4 * 19.4)
    assert np.array_equal(cohort_of(setting_of(3), 0, 5), np.arange(5))


@pytest.mark.parametrize("iterations", [1, 3])
def test_device_times_follow_the_latency_model(iterations):
    setting = setting_of(4, depth=0.5, local_iterations=iterations)
    devices, n = np.arange(5), 3000
    T = setting.uniform_deadline
    orders = Orders(T, np.array([4, 4, 2, 9, 1]))
    z, by_layer = np.zeros((n, 5)), np.zeros((n, 5, 4))
    for t in range(n):
        progress, length = draw_progress(setting, Exponential(), 0, t, devices, orders)
        assert length == T
        z[t], by_layer[t] = progress.z, progress.delivered
    rate = setting.compute * (T - setting.upload) / orders.batch
    assert np.allclose(progress.rate, rate)
    expected = expected_depth(4 * iterations, rate)
    k = np.arange(4 * iterations)[:, None]  # the standard deviation of min(z, E·L) for Poisson z
    square = (2 * k + 1) * poisson.sf(k, rate)
    error = np.sqrt((square.sum(axis=0) - expected**2) / n)
    assert np.all(np.abs(z.mean(axis=0) - expected) < 4 * error)
    delivered = delivery(4, rate)
    error = np.sqrt(delivered * (1 - delivered) / n)
    # Where a layer is all but certain, one miss in n rounds is no wonder.
    assert np.all(np.abs(by_layer.mean(axis=0) - delivered) < 4.5 * error + 1 / n)


class Steady:
    """Layers that take exactly their mean: a latency model of one's own."""

    def layer_times(self, rng, mean, steps, layers):
        return np.repeat(mean[:, None], steps, axis=1)

    def upload_times(self, rng, upload, layers):
        return upload

    def delivery(self, mean, upload, deadline, layers):
        return (np.outer(mean, np.arange(layers, 0, -1)) <= (deadline - upload)[:, None]).astype(float)


def test_another_latency_model_brings_its_own_chances():
    setting = setting_of(3, depth=0.5)
    devices = np.arange(5)
    strategy = find_strategy("salf")(setting)
    orders = strategy.orders(0, devices)
    progress, _ = draw_progress(setting, Steady(), 0, 0, devices, orders)
    left = setting.uniform_deadline - setting.upload
    assert np.array_equal(progress.z, np.minimum(3, np.floor(left * setting.compute / setting.batch)))
    assert 0 < progress.z.min() + progress.z.max() < 6
    # What is certain needs no correction: A is the plain mean over contributors.
    A, K = strategy.weights(0, progress), progress.delivered.sum(axis=0)
    assert np.array_equal(A, progress.delivered / np.maximum(K, 1))
    setting = replace(setting, latency=Steady())
    memory = run(experiment_of("salf", setting=setting))
    assert all(row.depth == progress.z.tolist() for row in memory.rows[1:])


class Aged(Steady):
    """Devices with a constant of their own: device u takes ``factor[u]`` times the mean."""

    def __init__(self, factor):
        self.factor = np.asarray(factor)

    def of_devices(self, devices):
        return Aged(self.factor[devices])

    def layer_times(self, rng, mean, steps, layers):
        return super().layer_times(rng, self.factor * mean, steps, layers)

    def delivery(self, mean, upload, deadline, layers):
        return super().delivery(self.factor * mean, upload, deadline, layers)


def test_a_latency_model_can_use_constants_of_each_device_in_any_cohort():
    setting = setting_of(3, depth=0.5)
    factor = np.array([0.5, 2.0, 1.0, 3.0, 0.2])
    cohort = np.array([4, 1, 3])
    orders = Orders(setting.uniform_deadline, np.full(3, setting.batch))
    progress, _ = draw_progress(setting, Aged(factor), 0, 0, cohort, orders)
    left = (setting.uniform_deadline - setting.upload)[cohort]
    expected = np.minimum(3, np.floor(left * setting.compute[cohort] / setting.batch / factor[cohort]))
    assert np.array_equal(progress.z, expected)
    assert len(set(expected)) > 1
    # What is certain needs no correction, so the chances are those of the same devices.
    A, K = find_strategy("salf")(setting).weights(0, progress), progress.delivered.sum(axis=0)
    assert np.array_equal(A, progress.delivered / np.maximum(K, 1))


class Certain(Exponential):
    """Derived from the paper's model, with chances of its own."""

    def delivery(self, mean, upload, deadline, layers):
        return np.ones((mean.size, layers))


def test_a_model_derived_from_the_papers_brings_its_own_chances_too():
    setting = setting_of(3, depth=0.5)
    devices = np.arange(5)
    orders = find_strategy("salf")(setting).orders(0, devices)
    progress, _ = draw_progress(setting, Certain(), 0, 0, devices, orders)
    assert progress.chances is not None
    assert np.array_equal(progress.chances(), np.ones((5, 3)))


@pytest.mark.parametrize("deadline", [0.5, np.inf])
def test_a_narrower_submodel_is_quicker_to_train_and_to_send_by_the_square_of_its_width(deadline):
    setting = setting_of(3, depth=0.3)
    devices = np.arange(5)
    whole = replace(setting, fleet=replace(setting.fleet, upload=setting.fleet.upload / 4))
    wide, lasts = draw_progress(whole, Exponential(), 0, 0, devices, Orders(deadline, np.full(5, 4)))
    orders = Orders(deadline, np.full(5, 16), width=np.full(5, 0.5))
    narrow, also = draw_progress(setting, Exponential(), 0, 0, devices, orders)
    assert setting.upload.any()
    assert lasts == pytest.approx(also)
    assert np.array_equal(wide.z, narrow.z)
    assert np.allclose(wide.rate, narrow.rate)


# -- large fleets


@pytest.mark.parametrize("strategy", ["adel", "adel-paper", "salf"])
def test_a_cohort_of_30_out_of_100_000_devices_runs_and_the_plan_covers_the_fleet(strategy):
    fleet = Fleet.lognormal(100_000, compute=20.0, sigma=0.5, seed=0)
    setting = setting_of(3, fleet=fleet, cohort=30, rounds=5, depth=0.4)
    experiment = experiment_of(strategy, setting=setting)
    memory = run(experiment)
    assert memory.result.rounds == 5
    seen = [row.devices for row in memory.rows[1:]]
    assert all(len(set(devices)) == 30 for devices in seen)
    assert max(map(max, seen)) > 50_000
    if strategy != "salf":
        schedule = find_strategy(strategy)(setting).schedule
        assert schedule.fleet.size == 100_000
        assert schedule.cohort == 30
        assert schedule.batch_sizes(0).shape == (100_000,)
        for row in memory.rows[1:] if strategy == "adel-paper" else memory.rows[1:2]:
            planned = schedule.batch_sizes(row.round - 1)[row.devices]
            assert row.batch == np.minimum(planned, experiment.partition.sizes[row.devices]).tolist()


# -- Algorithm 1 by hand


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_partial_iterations_follow_the_rule_of_the_specification(momentum):
    """A layer's update is the sum of the steps that it completed, and it counts as delivered from the first."""
    E, L, decay = 3, 3, 0.1
    # So little time that 1/(1 − p) is far from 1.
    setting = setting_of(L, local_iterations=E, depth=0.08, rounds=5)
    experiment = experiment_of("salf", setting=setting, weight_decay=decay, momentum=momentum)
    memory = run(experiment)
    depths = np.array([row.depth for row in memory.rows[1:]])
    assert ((depths > 0) & (depths < E * L) & (depths % L != 0)).any()

    data = experiment.dataset
    x, y = torch.from_numpy(data.x_train).double().flatten(1), torch.from_numpy(data.y_train)
    start = experiment.model.state_dict()
    w = [
        [start[f"dense{l}.linear.weight"].double().clone(), start[f"dense{l}.linear.bias"].double().clone()]
        for l in (1, 2, 3)
    ]
    devices, S, T = np.arange(5), setting.batch, setting.budget / setting.rounds
    for t in range(setting.rounds):
        orders = Orders(T, np.full(5, S))
        progress, _ = draw_progress(setting, Exponential(), experiment.seed, t, devices, orders)
        (rows,) = draw_rows(experiment.partition, experiment.seed, [(t, devices, orders.batch)], E)
        update = {}
        for u in devices:
            local = [[p.clone() for p in pair] for pair in w]
            velocity = [[torch.zeros_like(p) for p in pair] for pair in w]
            left = progress.z[u]
            for e in range(E):
                mine = rows[e][S * u : S * (u + 1)]
                flat = [p.clone().requires_grad_() for pair in local for p in pair]
                h = x[mine]
                for l in range(L):
                    h = functional.linear(h, flat[2 * l], flat[2 * l + 1])
                    h = torch.relu(h) if l < L - 1 else h
                grads = torch.autograd.grad(functional.cross_entropy(h, y[mine]), flat)
                for l in (3, 2, 1):  # backpropagation, until time is up
                    if left == 0:
                        break
                    left -= 1
                    for k in (0, 1):
                        g = grads[2 * (l - 1) + k] + decay * local[l - 1][k]
                        velocity[l - 1][k] = momentum * velocity[l - 1][k] + g
                        local[l - 1][k] = local[l - 1][k] - 0.05 * velocity[l - 1][k]
            update[u] = local
        rate = setting.compute * (T - setting.upload) / S
        for l in (1, 2, 3):
            contributors = [u for u in devices if progress.z[u] >= L + 1 - l]
            p = np.prod(gammaincc(L + 1 - l, rate))
            if contributors:
                for k in (0, 1):
                    mean = sum(update[u][l - 1][k] for u in contributors) / len(contributors)
                    w[l - 1][k] = (mean - p * w[l - 1][k]) / (1 - p)  # eq. (5)
    expected = {
        f"dense{l}.linear.{kind}": w[l - 1][k].numpy() for l in (1, 2, 3) for k, kind in enumerate(("weight", "bias"))
    }
    assert furthest(memory.weights, expected) < 1e-5


# -- when training breaks down


@pytest.mark.parametrize("engine", ["fused", "stacked", "loop"])
@pytest.mark.parametrize("strategy", ["salf", "wait", "heterofl"])
def test_training_that_breaks_down_is_one_sentence_and_finished_rows_stay(strategy, engine, tmp_path):
    experiment = experiment_of(strategy, engine=engine, rate=1e18, depth=0.95, rounds=12, evaluations=1)
    folder = tmp_path / "run"
    with pytest.raises(TrainingError) as trouble:
        simulate(experiment, record=folder)
    sentence = str(trouble.value)
    assert "lower the learning rate" in sentence
    assert "\n" not in sentence
    rows = RunRecord(folder).rounds
    assert [row.round for row in rows] == list(range(len(rows)))
    assert rows[0].accuracy is not None
    assert all(row.train_loss is None or np.isfinite(row.train_loss) for row in rows[1:])
    assert not (folder / "result.json").exists()
    assert not (folder / "model.safetensors").exists()
    # Rows are JSON that others can read: there is no NaN in JSON.
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_a_partition_or_layers_of_another_size_are_refused():
    experiment = experiment_of("salf")
    with pytest.raises(ConfigError, match="partition has 4 devices, but the fleet has 5"):
        replace(experiment, partition=iid(experiment.dataset.y_train, 4, 0))
    with pytest.raises(ConfigError, match="layers"):
        replace(experiment, layers=experiment.layers[1:])


def test_a_partition_of_another_data_set_is_refused():
    experiment = experiment_of("salf")
    with pytest.raises(ConfigError, match="samples"):
        replace(experiment, partition=iid(np.zeros(5000, dtype=int), 5, 0))


def test_every_row_is_reported_as_it_is_kept():
    seen = []
    result = simulate(experiment_of("salf"), report=seen.append)
    assert [row.round for row in seen] == list(range(11))
    assert result.rounds == 10


@pytest.mark.parametrize("dropout", [0.1, 0.3])
def test_devices_drop_out_as_often_as_said_and_for_every_strategy_alike(dropout):
    fleet = Fleet.lognormal(50, compute=1000.0, sigma=0.5, seed=0)
    setting = Problem(fleet, 3, 40, 400.0, ConstantRate(0.1), batch=4)
    everybody, luck = np.arange(50), []
    for deadline in (10.0, np.inf):
        gone = []
        for t in range(40):
            orders = Orders(deadline, np.full(50, 4))
            progress, length = draw_progress(setting, Exponential(), 3, t, everybody, orders, dropout)
            gone.append(progress.z == 0)
            assert np.isfinite(length)
        luck.append(np.array(gone))
    assert np.array_equal(*luck)
    error = np.sqrt(dropout * (1 - dropout) / luck[0].size)
    assert abs(luck[0].mean() - dropout) < 4 * error


@pytest.mark.parametrize("strategy", ["adel", "salf", "drop", "wait"])
def test_every_round_completes_when_devices_drop_out(strategy):
    changes = ["fleet.dropout=0.3", "training.rounds=20", "training.depth=0.9", f"strategy.name={strategy}"]
    said = load_run(None, changes)
    result = simulate(build_experiment(said))
    assert result.rounds == 20 or strategy == "wait"
    assert np.isfinite(result.final_accuracy)


def test_the_result_has_the_accuracy_on_the_classes_of_the_slowest_tenth():
    run = load_run(None, ["fleet.devices=10", "data.partition=dirichlet", "data.alpha=0.1", "training.rounds=20"])
    experiment = build_experiment(run.with_strategy("drop", {}, 0))
    slowest = int(np.argmin(experiment.strategy.problem.compute))
    held = np.bincount(experiment.dataset.y_train[experiment.partition[slowest]], minlength=10)
    simulation = Simulation(experiment)
    np.testing.assert_array_equal(simulation.slow_classes, held)
    result = simulate(experiment)
    assert result.slowest_accuracy is not None
    assert result.slowest_accuracy < result.final_accuracy  # dropping stragglers loses their classes
