"""Strategies: a deadline rule, a batch rule and a matrix A, and what they become in their limits."""

import inspect
import json
import math
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential
from adelfl.learning_rate import InverseDecay
from adelfl.planner.noise_plan import Population
from adelfl.records.reader import RunRecord
from adelfl.runtime.server_step import ServerStep
from adelfl.schedule import Schedule
from adelfl.simulation.draws import draw_rows
from adelfl.strategies import BUILT_IN, Progress, Strategy, adel, find_strategy, strategy_names
from adelfl.strategies.adel import Adel
from adelfl.strategies.adel_paper import AdelPaper
from adelfl.strategies.drop import Drop
from adelfl.strategies.heterofl import WIDTHS, HeteroFL
from adelfl.strategies.merge import by_precision, layerwise
from adelfl.strategies.oracle import Oracle
from adelfl.strategies.rounds import Outcome
from adelfl.strategies.salf import Salf
from adelfl.strategies.wait import Wait
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.participation import log_p_empty
from adelfl.training.work import RoundWork
from support.small_worlds import (
    EVERY_STRATEGY,
    after_one_round,
    cohort_of,
    draw_progress,
    experiment_of,
    run,
    same_bits,
    sets,
    setting_of,
    typed,
)

quick = settings(max_examples=60, deadline=None, derandomize=True)

# Everybody takes 10 ms a layer and has 1000 s: nobody is ever late, and 1 − p is 1 to the last bit.
PLENTY = {"fleet": Fleet.of([300.0, 500.0, 400.0, 700.0], [0.0, 0.5, 0.2, 0.1]), "budget": 10_000.0, "rounds": 10}


def schedule_of(setting):
    E = setting.local_iterations
    return Schedule.uniform(
        setting.fleet, setting.layers, setting.rounds, setting.budget, setting.batch, local_iterations=E
    )


def round_of(strategy, t=0, seed=0, devices=None):
    """Orders, progress and A of a round, with the luck of a seed."""
    setting = strategy.problem
    devices = cohort_of(setting, seed, t) if devices is None else devices
    orders = strategy.orders(t, devices)
    progress, _ = draw_progress(setting, Exponential(), seed, t, devices, orders)
    return orders, progress, strategy.weights(t, progress)


@st.composite
def progresses(draw):
    """Any progress that a round can end with: a device of rate 0 finished nothing, and only the others may have."""
    L, E = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    U = draw(st.integers(1, 12))
    rate = np.array(
        draw(st.lists(st.one_of(st.just(0.0), st.floats(0.01, 5.0), st.floats(1e-3, 1e4)), min_size=U, max_size=U))
    )
    z = np.array(draw(st.lists(st.integers(0, E * L), min_size=U, max_size=U)))
    return Progress(np.where(rate > 0, z, 0), L, E, rate)


# -- limits


@pytest.mark.parametrize("iterations", [1, 3])
def test_infinite_deadline_recovers_fedavg_in_every_matrix(iterations):
    setting = setting_of(3, local_iterations=iterations, **PLENTY)
    _, _, fedavg = round_of(Wait(setting))
    assert np.all(fedavg == 1 / 4)
    # Left to itself, adel would spend so much time on larger batches.
    given = {"schedule": schedule_of(setting)}
    for strategy in (Drop(setting), Salf(setting), AdelPaper(setting, **given), Adel(setting, **given)):
        _, progress, A = round_of(strategy)
        assert progress.finished.all()
        assert A.tobytes() == fedavg.tobytes()
    assert round_of(Oracle(setting))[2].tobytes() == fedavg.tobytes()


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("strategy", ["drop", "salf", "salf over all", "adel-paper", "adel", "oracle"])
def test_infinite_deadline_recovers_fedavg_to_the_bit(strategy, iterations):
    setting = setting_of(3, local_iterations=iterations, **PLENTY)
    options = {"schedule": schedule_of(setting)} if strategy.startswith("adel") else {}
    fedavg = run(experiment_of("wait", setting=setting))
    other = run(experiment_of(strategy, setting=setting, options=options))
    assert fedavg.result.rounds == other.result.rounds == 10
    assert same_bits(fedavg.weights, other.weights)


@pytest.mark.parametrize("options", [{}, {"correction": "none"}, {"average_over": "all"}], ids=str)
@pytest.mark.parametrize("iterations", [1, 3])
def test_the_papers_method_with_a_uniform_schedule_is_salf(iterations, options):
    setting = setting_of(3, local_iterations=iterations, depth=0.5)
    salf = run(experiment_of("salf", setting=setting, options=options))
    given = {"schedule": schedule_of(setting), **options}
    adel = run(experiment_of("adel-paper", setting=setting, options=given))
    assert same_bits(salf.weights, adel.weights)
    assert salf.rows == adel.rows
    assert salf.result == adel.result


@pytest.mark.parametrize("iterations", [1, 3])
def test_adel_with_a_uniform_schedule_is_salf_without_correction(iterations):
    setting = setting_of(3, local_iterations=iterations, depth=0.5)
    salf = run(experiment_of("salf", setting=setting, options={"correction": "none"}))
    experiment = experiment_of("adel", setting=setting, options={"schedule": schedule_of(setting)})
    adel = run(replace(experiment, server_step=ServerStep("sgd")))
    assert [row.depth for row in salf.rows[1:]] == [row.depth for row in adel.rows[1:]]
    for name, value in salf.weights.items():
        assert adel.weights[name] == pytest.approx(value, abs=1e-5)


def test_a_run_moves_every_layer_of_a_copy_of_the_model():
    experiment = experiment_of("salf")
    before = {name: w.numpy().copy() for name, w in experiment.model.state_dict().items()}
    after = run(experiment).weights
    assert all(not np.array_equal(before[name], w) for name, w in after.items())
    assert same_bits(before, {name: w.numpy() for name, w in experiment.model.state_dict().items()})


# -- columns of A


@quick
@given(progresses())
def test_columns_of_A_sum_to_one_over_one_minus_p_or_to_zero(progress):
    setting = setting_of(progress.layers, budget=1.0)
    A = Salf(setting).weights(0, progress)
    somebody = progress.delivered.any(axis=0)
    filled = -np.expm1(log_p_empty(progress.layers, progress.rate))  # 1 − p, also where p is near 1
    assert np.allclose(A.sum(axis=0)[somebody], 1.0 / filled[somebody], rtol=1e-9, atol=0)
    assert not A[:, ~somebody].any()
    assert np.all((A != 0) == progress.delivered)
    assert AdelPaper(setting, schedule=schedule_of(setting)).weights(0, progress).tobytes() == A.tobytes()


@quick
@given(progresses())
def test_without_correction_columns_sum_to_one_and_over_all_to_the_share_of_contributors(progress):
    setting = setting_of(progress.layers, budget=1.0)
    K, U = progress.delivered.sum(axis=0), progress.z.size
    assert np.allclose(Salf(setting, correction="none").weights(0, progress).sum(axis=0), K > 0)
    assert np.allclose(Salf(setting, average_over="all").weights(0, progress).sum(axis=0), K / U)


@quick
@given(progresses())
def test_columns_of_drop_sum_to_one_or_zero_and_hold_whole_devices(progress):
    A = Drop(setting_of(progress.layers, budget=1.0)).weights(0, progress)
    assert np.allclose(A.sum(axis=0), float(progress.finished.any()))
    assert np.all((A != 0) == progress.finished[:, None])


@quick
@given(progresses())
def test_contributors_of_a_layer_count_alike_in_every_strategy(progress):
    setting = setting_of(progress.layers, budget=1.0)
    for strategy in (Salf(setting), Salf(setting, average_over="all"), Drop(setting), HeteroFL(setting), Wait(setting)):
        A = strategy.weights(0, progress)
        assert A.shape == (progress.z.size, progress.layers)
        for column in A.T:
            assert np.unique(column[column != 0]).size <= 1


# -- sitting out


@quick
@given(progresses(), st.data())
def test_a_device_that_sits_out_changes_no_other_row_of_A(progress, data):
    where = data.draw(st.integers(0, progress.z.size))
    larger = Progress(
        np.insert(progress.z, where, 0), progress.layers, progress.local_iterations, np.insert(progress.rate, where, 0)
    )
    setting = setting_of(progress.layers, budget=1.0)
    for strategy in (Salf(setting), Salf(setting, correction="none"), Drop(setting), HeteroFL(setting)):
        A, B = strategy.weights(0, progress), strategy.weights(0, larger)
        assert not B[where].any()
        # Equal but for the order in which log Q is summed.
        assert np.allclose(np.delete(B, where, axis=0), A, rtol=1e-9, atol=0)


@quick
@given(progresses())
def test_a_device_that_finished_no_layer_has_no_weight(progress):
    setting = setting_of(progress.layers, budget=1.0)
    for strategy in (Salf(setting), Salf(setting, average_over="all"), Drop(setting), HeteroFL(setting)):
        assert not strategy.weights(0, progress)[progress.z == 0].any()


@pytest.mark.parametrize(
    ("engine", "iterations"), [("fused", 1), ("stacked", 1), ("loop", 1), ("stacked", 3), ("loop", 3)]
)
@pytest.mark.parametrize("why", ["upload outlasts the deadline", "batch of 0", "no layer in time"])
def test_a_device_that_sits_out_changes_nothing_in_the_merge(engine, iterations, why):
    setting = setting_of(3, local_iterations=iterations, depth=0.7)
    strategy = Salf(setting, correction="none")
    experiment = experiment_of("salf", setting=setting)
    devices = np.arange(5)
    orders = strategy.orders(0, devices)
    progress, _ = draw_progress(setting, Exponential(), 1, 0, devices, orders)
    (rows,) = draw_rows(experiment.partition, 1, [(0, devices, orders.batch)], iterations)
    work = RoundWork(rows, orders.batch, strategy.weights(0, progress), progress, 0.1)
    assert progress.z.any()

    extra = 4 if why == "no layer in time" else 0
    rate = 1.0 if why == "no layer in time" else 0.0
    more = Progress(np.append(progress.z, 0), 3, iterations, np.append(progress.rate, rate))
    more_rows = tuple(np.append(r, np.arange(extra)) for r in rows)
    larger = RoundWork(more_rows, np.append(orders.batch, extra), strategy.weights(0, more), more, 0.1)

    one, one_loss = after_one_round(engine, experiment, work)
    other, other_loss = after_one_round(engine, experiment, larger)
    assert one_loss == other_loss
    assert same_bits(one, other)


@pytest.mark.parametrize("words", ["drop", "salf", "salf over all", "heterofl", "adel-paper"])
def test_a_device_whose_upload_outlasts_the_deadline_sits_out(words):
    fleet = Fleet.of([30.0, 30.0, 30.0, 30.0], [0.0, 0.1, 0.2, 1e4])
    setting = setting_of(3, fleet=fleet, budget=20.0, rounds=10)
    name, options = EVERY_STRATEGY[words]
    orders, progress, A = round_of(find_strategy(name)(setting, **options))
    assert orders.batch[3] == 0
    assert np.all(orders.batch[:3] > 0)
    assert progress.z[3] == 0
    assert progress.rate[3] == 0
    assert not A[3].any()


# -- other averages

SPREAD = GradientStats(np.ones(3), np.full(3, 0.1), np.ones(3))


def some_round():
    z, batch = np.array([3, 2, 1, 0, 3]), np.array([8, 2, 4, 4, 1])
    return Progress(z, 3, 1, np.array([4.0, 2.0, 1.0, 1.0, 3.0]), batch=batch)


def test_by_precision_who_took_more_samples_counts_more_and_columns_sum_to_one():
    A = by_precision(some_round(), SPREAD, memory=5.0)
    assert A.sum(axis=0) == pytest.approx(np.ones(3))
    assert A[0, 0] > A[4, 0] > 0
    v = 1 / (1 / np.array([8, 1]) + 5.0 * 0.1)
    assert A[[0, 4], 0] == pytest.approx(v / v.sum())
    assert np.array_equal(A > 0, some_round().delivered)


def test_with_equal_batches_precision_is_the_plain_mean():
    progress = Progress(np.array([3, 2, 1]), 3, 1, np.ones(3), batch=np.full(3, 4))
    plain = layerwise(progress, "none", "contributors")
    for choices in (("foo", "contributors"), ("none", "some")):
        with pytest.raises(ConfigError, match="must be one of"):
            layerwise(progress, *choices)
    assert by_precision(progress, SPREAD, memory=5.0) == pytest.approx(plain)


# -- progress


@pytest.mark.parametrize("iterations", [1, 3])
def test_adel_takes_batches_by_rule_B3(iterations):
    setting = setting_of(3, local_iterations=iterations, depth=0.9)
    strategy = Adel(setting)
    T, m = strategy.schedule.deadlines[0], np.broadcast_to(strategy.schedule.m, strategy.schedule.deadlines.shape)[0]
    least = min(setting.batch, math.ceil(4 * setting.batch / setting.devices))
    by_hand = [
        max(1, int(max(one / iterations, min(one, least))))  # small batches in one step rather than in three
        for one in m * setting.compute * (T - setting.upload) / T
    ]
    assert len(set(by_hand)) > 2
    assert strategy.orders(0, np.arange(setting.devices)).batch.tolist() == by_hand


def test_adel_takes_smaller_batches_where_more_of_a_round_is_the_upload():
    fleet = Fleet.of([200.0, 200.0], [0.0, 0.5])
    setting = setting_of(3, fleet=fleet, budget=10.0, rounds=10)
    strategy = Adel(replace(setting, learning_rate=InverseDecay(0.1)))  # equal deadlines
    quick, late = strategy.orders(0, np.arange(2)).batch
    assert late == pytest.approx(quick / 2, abs=1)
    assert late > 4


def test_a_plan_for_cohorts_is_not_the_plan_for_everybody():
    m = [np.mean(Adel(setting_of(3, depth=0.5, cohort=cohort)).schedule.m) for cohort in (None, 2)]
    assert m[0] != pytest.approx(m[1], rel=0.01)


def outcome_of(strategy, t, z, left):
    """Everybody took part in round t and came so far."""
    devices = np.arange(strategy.problem.devices)
    orders = strategy.orders(t, devices)
    seconds = np.full(devices.size, orders.deadline)
    return Outcome(t, devices, orders.batch, np.asarray(z), seconds, np.zeros(devices.size), left)


def test_a_given_schedule_is_not_stretched_when_a_round_ends_early():
    setting = setting_of(3)
    strategy = Adel(setting, schedule=schedule_of(setting))
    before = strategy.orders(1, np.arange(setting.devices)).deadline
    strategy.observe(outcome_of(strategy, 0, np.full(5, 3), setting.budget))  # no time has passed at all
    assert strategy.orders(1, np.arange(setting.devices)).deadline == before


def test_the_plan_counts_with_those_who_answer(monkeypatch):
    setting = setting_of(3, depth=0.9, rounds=30)
    strategy = Adel(setting)
    seen = []
    monkeypatch.setattr(adel, "Population", lambda **given: seen.append(given["chance"]) or Population(**given))
    for t in range(12):  # the first device never answers
        left = setting.budget * (1 - (t + 1) / 30)
        strategy.observe(outcome_of(strategy, t, [0, 3, 3, 3, 3], left))
    first = int(np.flatnonzero(strategy._sample == 0)[0])
    assert seen[-1][first] < 0.5 < np.delete(seen[-1], first).min()


@quick
@given(progresses())
def test_progress_agrees_with_a_count_by_hand(progress):
    L, E = progress.layers, progress.local_iterations
    for u, z in enumerate(progress.z):
        done = np.zeros(L + 1, dtype=int)
        for step in range(z):
            done[L - step % L] += 1  # layers L, L−1, …, 1, and again
        assert np.array_equal(progress.delivered[u], done[1:] > 0)
        assert progress.finished[u] == (done[1:] == E).all()


# -- the rules of each


def test_deadlines_and_batches_are_those_of_the_table():
    setting = setting_of(3, budget=20.0, rounds=10, batch=6)
    devices = np.arange(5)
    for strategy in (Drop(setting), Salf(setting), HeteroFL(setting), Oracle(setting)):
        orders = strategy.orders(4, devices)
        assert orders.deadline == 2.0
        assert np.all(orders.batch == 6)
    assert np.isinf(Wait(setting).orders(4, devices).deadline)
    assert np.all(Wait(setting).orders(4, devices).batch == 6)
    adel = AdelPaper(setting)
    assert adel.orders(4, devices).deadline == adel.schedule.deadlines[4]
    assert np.array_equal(adel.orders(4, devices).batch, adel.schedule.batch_sizes(4))
    assert np.array_equal(adel.orders(4, devices[::-2]).batch, adel.schedule.batch_sizes(4)[::-2])


@pytest.mark.parametrize("name", ["adel", "adel-paper"])
@pytest.mark.parametrize("rounds", [4, 10, 25])
def test_a_given_schedule_decides_how_many_rounds_there_are(name, rounds):
    setting = setting_of(3, rounds=10, depth=0.7)
    given = AdelPaper(replace(setting, rounds=rounds)).schedule
    strategy = find_strategy(name)(setting, schedule=given)
    assert strategy.rounds == strategy.learning_rates.size == rounds
    memory = run(replace(experiment_of("salf", setting=setting), strategy=strategy))
    assert memory.result.rounds == rounds


@quick
@given(
    st.floats(0.5, 200.0),
    st.floats(0.0, 1.5),
    st.integers(1, 64),
    st.integers(1, 12),
    st.integers(1, 3),
)
def test_heterofl_takes_the_widest_submodel_that_is_expected_to_finish(speed, upload, batch, layers, iterations):
    fleet = Fleet.of([speed, speed], [upload, 0.0])
    setting = setting_of(layers, fleet=fleet, budget=10.0, rounds=10, batch=batch, local_iterations=iterations)
    width = HeteroFL(setting).orders(0, np.arange(2)).width
    for u in range(2):
        whole = iterations * layers * batch / speed + fleet.upload[u]
        fitting = [w for w in WIDTHS if whole * w**2 <= 1.0]
        assert width[u] == (max(fitting) if fitting else WIDTHS.min())


def test_heterofl_sends_submodels_which_take_less_time_to_upload():
    # A whole upload outlasts the deadline of 1 s, one of half the width (a quarter of the weights) does not.
    setting = setting_of(3, fleet=Fleet.of([1e6, 1e6], [3.0, 300.0]), budget=10.0, rounds=10)
    orders, progress, A = round_of(HeteroFL(setting))
    assert orders.width.tolist() == [0.5, 1 / 16]
    assert orders.batch.tolist() == [setting.batch, 0]  # 300/256 s is still too long
    assert progress.finished.tolist() == [True, False]
    assert A.any(axis=1).tolist() == [True, False]


def test_heterofl_counts_finished_submodels_only():
    setting = setting_of(3)
    progress = Progress(np.array([3, 2, 0, 3]), 3, 1, np.ones(4))
    assert np.array_equal(HeteroFL(setting).weights(0, progress), [[1] * 3, [0] * 3, [0] * 3, [1] * 3])


def test_wait_stops_before_the_budget_is_spent():
    memory = run(experiment_of("wait", depth=0.9, rounds=40))
    done = memory.result.rounds
    assert 0 < done < 40
    setting = experiment_of("wait", depth=0.9, rounds=40).strategy.problem
    assert memory.rows[-1].time <= setting.budget
    everybody = np.arange(setting.devices)
    _, next_round = draw_progress(setting, Exponential(), 1, done, everybody, Wait(setting).orders(done, everybody))
    assert memory.rows[-1].time + next_round > setting.budget


def test_wait_in_a_budget_shorter_than_its_first_round_keeps_the_initial_model():
    experiment = experiment_of("wait", budget=1e-6)
    memory = run(experiment)
    assert (memory.result.rounds, memory.result.time) == (0, 0.0)
    assert same_bits(memory.weights, {k: w.numpy() for k, w in experiment.model.state_dict().items()})


def test_the_oracle_delivers_everything_whatever_the_speed():
    setting = setting_of(3, budget=1e-6)
    _, progress, A = round_of(Oracle(setting))
    assert np.all(A == 1 / 5)
    assert not progress.finished.any()  # the strategy does not overrule physics
    rows = run(experiment_of("oracle", setting=setting)).rows
    assert all(row.depth == [3] * 5 for row in rows[1:])  # its world does


def test_options_that_are_not_known_are_refused():
    setting = setting_of(3)
    for options in ({"average_over": "some"}, {"correction": "paper"}):
        with pytest.raises(ConfigError, match="must be one of"):
            Salf(setting, **options)
    assert Salf(setting).label == "salf"
    assert "all" in Salf(setting, average_over="all").label
    assert "correction" in Salf(setting, correction="none").label


# -- names


def test_every_built_in_name_finds_a_class_of_that_name():
    assert set(BUILT_IN) <= set(strategy_names())
    for name in BUILT_IN:
        found = find_strategy(name)
        assert issubclass(found, Strategy)
        assert found.name == name
        assert find_strategy(BUILT_IN[name]) is found


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("self", "did you mean 'salf'"),
        ("no-such-method", "known are"),
        ("no.such.module:Thing", "cannot be imported"),
        ("adelfl.strategies.salf:Nothing", "cannot be imported"),
        ("adelfl.fleet:Fleet", "not a subclass"),
        ("adelfl.strategies.merge:layerwise", "not a subclass"),
    ],
)
def test_a_name_that_is_not_a_strategy_is_one_sentence(name, sentence):
    with pytest.raises(ConfigError, match=sentence) as trouble:
        find_strategy(name)
    assert "\n" not in str(trouble.value)


OUTSIDE = '''
from adelfl.strategies.rounds import Orders, RoundStrategy, fixed_batch
import numpy as np


class Fastest(RoundStrategy):
    """Average the devices that finished, but no more than the first few of them."""

    name = "fastest"

    def __init__(self, setting, *, most=2):
        super().__init__(setting)
        self.most = int(most)

    def orders(self, t, devices):
        T = self.problem.uniform_deadline
        return Orders(T, fixed_batch(self.problem, devices, T))

    def weights(self, t, progress):
        chosen = progress.finished & (np.cumsum(progress.finished) <= self.most)
        return np.repeat(chosen[:, None] / max(1, chosen.sum()), progress.layers, axis=1)
'''


def test_a_strategy_from_outside_runs_by_its_import_path(tmp_path, monkeypatch):
    (tmp_path / "outside_strategy.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    word, out = "outside_strategy:Fastest[most=3]", tmp_path / "runs"
    small = ("training.rounds=5", "training.depth=0.7", "training.evaluations=2")
    said = typed("compare", "--strategies", f"{word},drop", "--seeds=1", "--json", "--out", out, *sets(small))
    assert said.code == 0, said.err
    assert list(json.loads(said.out)) == [word, "drop"]
    records = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert records == ["drop-seed0", "outside_strategy_Fastest_most=3-seed0"]
    rows = RunRecord(out / records[1]).rounds
    assert max(row.contributors[0] for row in rows[1:]) == 3


# -- options of a user's own strategy


class Tuned(find_strategy("drop")):
    """A user's strategy with options of its own."""

    name = "tuned"

    def __init__(self, setting, gain=1.0, *, warm=False, widths=(1, 2), mode="plain", **more):
        super().__init__(setting)
        self.gain, self.mode, self.more = gain, mode, more

    def weights(self, t, progress):
        return self.gain * super().weights(t, progress)


class TunedSalf(find_strategy("salf")):
    """Options beside those of a built-in strategy."""

    name = "tuned-salf"

    def __init__(self, setting, *, gain=1.0, **salf):
        super().__init__(setting, **salf)
        self.gain = gain


class Unchanged(Tuned):
    """Inherits ``__init__``."""

    name = "unchanged"


def test_a_users_options_are_in_the_label_unless_they_are_the_defaults():
    setting = setting_of(3)
    assert Tuned(setting).label == "tuned"
    assert Tuned(setting, 1.0, warm=False, widths=(1, 2)).label == "tuned"
    assert Tuned(setting, 2.5, warm=True, mode="odd").label == "tuned (gain=2.5, warm=true, mode=odd)"
    assert Tuned(setting, widths=[3, 4], extra=7).label == "tuned (widths=[3, 4], extra=7)"
    assert Tuned(setting, mode=object()).label == "tuned (mode=object)"
    assert Unchanged(setting, gain=3).label == "unchanged (gain=3)"
    assert Tuned(setting, gain=2.0).options == {"gain": 2.0}


@pytest.mark.parametrize(
    ("name", "options", "label"),
    [
        ("fedbuff", {"buffer": 2}, "fedbuff (buffer=2)"),
        ("fedbuff", {"buffer": 10}, "fedbuff"),
        ("fedasync", {"of": "changes", "mixing": 0.5}, "fedasync (mixing=0.5, of=changes)"),
        ("oort", {"penalty": 1.0, "weigh": "equally"}, "oort (equal weights, penalty=1)"),
    ],
)
def test_variants_of_a_method_can_be_told_apart_by_their_labels(name, options, label):
    assert find_strategy(name)(setting_of(3), **options).label == label


def test_options_beside_those_of_a_built_in_strategy_are_named_after_its_own():
    setting = setting_of(3)
    found = TunedSalf(setting, gain=2.0, correction="none")
    assert found.label == "tuned-salf (no correction, gain=2)"
    assert TunedSalf(setting).label == "tuned-salf"


def test_options_survive_copies_and_leave_the_signature_alone():
    found = Tuned(setting_of(3), gain=2.0)
    assert deepcopy(found).label == pickle.loads(pickle.dumps(found)).label == found.label
    assert list(inspect.signature(Tuned).parameters) == ["setting", "gain", "warm", "widths", "mode", "more"]
    with pytest.raises(TypeError, match="setting"):
        Tuned()
