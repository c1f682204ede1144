"""FedProx, FedNova, Anytime Minibatch and TimelyFL: partial work, by their rules, limits and neighbours."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Latency, Law
from adelfl.records.reader import RunRecord
from adelfl.simulation import simulate
from adelfl.strategies import Progress, find_strategy
from support.plain_fl import plain_rounds
from support.small_worlds import experiment_of, furthest, run, same_bits, setting_of

STEADY = Latency(Law("constant"))


def steady(**more):
    """Devices whose layers always take S/P, so that expected times are the real ones."""
    return replace(setting_of(3, **more), latency=STEADY)


def progress(z, E, amounts=None, batch=None):
    z = np.asarray(z)
    return Progress(z, 3, E, np.ones(z.size), batch=batch, amounts=amounts)


# -- FedProx


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_fedprox_is_plain_sgd_with_a_proximal_term_on_the_steps_that_fit(engine, mu):
    setting = setting_of(3, local_iterations=4, rounds=3, depth=0.6, rate=0.2)
    experiment = experiment_of("fedprox", setting=setting, options={"proximal": mu}, engine=engine)
    found = run(experiment)

    def of_round(row, devices, train):
        able = [i for i, z in enumerate(row.depth) if z >= 3]
        updates = [train(i, lambda name, w, start: mu * (w - start)) for i in able]
        return {name: sum(u[name] for u in updates) / len(updates) for name in updates[0]}

    rows = found.rows[1:]
    assert len({z for row in rows for z in row.depth}) > 4
    assert furthest(plain_rounds(experiment, rows, of_round), found.weights) < 1e-5


def test_the_proximal_term_holds_devices_back():
    setting = setting_of(3, local_iterations=4, rounds=4, rate=0.5)
    start = experiment_of().model.state_dict()
    moved = [
        furthest(
            {n: w.numpy() for n, w in start.items()},
            run(experiment_of("fedprox", setting=setting, options={"proximal": mu})).weights,
        )
        for mu in (0.0, 1.9)
    ]
    assert moved[1] < moved[0]


def test_fedprox_without_a_proximal_term_or_a_deadline_is_wait():
    setting = setting_of(3, local_iterations=2, rounds=4, budget=1e6)
    plain = run(experiment_of("wait", setting=setting))
    prox = run(experiment_of("fedprox", setting=setting, options={"proximal": 0.0, "deadline": float("inf")}))
    assert [row.time for row in prox.rows] == [row.time for row in plain.rows]
    assert same_bits(prox.weights, plain.weights)


def test_fedprox_with_one_step_is_drop_whatever_the_proximal_term():
    setting = setting_of(3, depth=0.8)
    drop = run(experiment_of("drop", setting=setting))
    assert same_bits(run(experiment_of("fedprox", setting=setting, options={"proximal": 9.0})).weights, drop.weights)


def test_partial_work_counts_by_data_and_from_the_first_whole_step_on():
    strategy = find_strategy("fedprox")(setting_of(3, local_iterations=3))
    A = strategy.weights(0, progress([2, 3, 7, 9], 3, amounts=np.array([9.0, 1.0, 1.0, 2.0])))
    assert A[:, 0] == pytest.approx([0.0, 0.25, 0.25, 0.5])
    assert (A == A[:, :1]).all()
    assert not strategy.weights(0, progress([0, 2, 1, 0], 3)).any()


# -- FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_fednova_divides_updates_by_the_steps_behind_them_layer_by_layer(momentum):
    setting = setting_of(3, local_iterations=4, rounds=3, depth=0.5, rate=0.2)
    experiment = experiment_of("fednova", setting=setting, options={"momentum": momentum}, engine="loop")
    found = run(experiment)
    layer_of = {name: l for l, layer in enumerate(experiment.layers) for name in layer.parameters}

    def norm(k):  # ‖a‖ of k steps: the sum over steps of how often each gradient is counted
        return sum(sum(momentum**j for j in range(k - i)) for i in range(k))

    def of_round(row, devices, train):
        change = {}
        updates = [train(i) for i in range(len(row.depth))]
        for name, l in layer_of.items():
            steps = [len([1 for k in range(4) if z >= 3 * k + 3 - l]) for z in row.depth]
            some = [i for i, k in enumerate(steps) if k]
            tau = sum(norm(steps[i]) for i in some) / max(1, len(some))
            change[name] = sum((tau * updates[i][name] / norm(steps[i]) for i in some), 0.0) / max(1, len(some))
        return change

    rows = found.rows[1:]
    assert len({z for row in rows for z in row.depth}) > 4
    assert furthest(plain_rounds(experiment, rows, of_round), found.weights) < 1e-5


def test_fednova_with_equal_steps_is_wait():
    setting = setting_of(3, local_iterations=3, rounds=4, budget=1e6)
    plain, nova = (run(experiment_of(name, setting=setting, options=more)) for name, more in
                   (("wait", {}), ("fednova", {"deadline": float("inf")})))  # fmt: skip
    assert furthest(plain.weights, nova.weights) < 1e-6


def test_fednova_weighs_a_step_alike_whoever_did_it():
    """Two devices with gradients g each step: 4 steps and 1 step count as 2.5 steps each."""
    strategy = find_strategy("fednova")(setting_of(3, local_iterations=4))
    A = strategy.weights(0, progress([12, 3, 0], 4))
    assert A[:, 0] * np.array([4, 1, 0]) == pytest.approx([1.25, 1.25, 0.0])
    assert not strategy.weights(0, progress([0, 0], 4)).any()


# -- Anytime Minibatch


def test_anytime_counts_the_samples_that_were_done_in_time():
    setting = setting_of(3, depth=0.6, rounds=6, local_iterations=4)
    found = run(experiment_of("anytime", setting=setting))
    done = [(z, S) for row in found.rows[1:] for z, S in zip(row.depth, row.batch, strict=True)]
    assert all((z == 3) == (S > 0) for z, S in done)  # one step, of whatever was finished
    assert len({S for _, S in done}) > 5
    assert [row.time for row in found.rows] == pytest.approx([t * setting.uniform_deadline for t in range(7)])
    A = find_strategy("anytime")(setting).weights(0, progress([3, 3, 3, 1], 1, batch=np.array([6, 3, 0, 1])))
    assert A[:, 0] == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert A[:, 2] == pytest.approx([0.6, 0.3, 0.0, 0.1])


def test_a_record_of_anytime_has_one_step_per_round_however_many_are_set(tmp_path):
    setting = setting_of(3, depth=0.6, rounds=2, local_iterations=4)
    simulate(experiment_of("anytime", setting=setting), record=tmp_path / "run")
    simulate(experiment_of("salf", setting=setting), record=tmp_path / "other")
    steps = [RunRecord.open(tmp_path / name).info.steps for name in ("run", "other")]
    assert steps == [3, 12]


@pytest.mark.parametrize(("chunk", "overhead", "expected"), [(1, 0.0, [10, 20]), (4, 0.0, [8, 20]), (1, 1.0, [5, 10])])
def test_pieces_are_as_many_as_fit_and_each_has_its_overhead(chunk, overhead, expected):
    fleet = Fleet.of([301.0, 602.0], 0.0, overhead=overhead)  # steady: a sample takes 3/P seconds, a round 0.1 s
    setting = steady(fleet=fleet, budget=1.0, rounds=10, batch=4)
    experiment = replace(experiment_of("anytime", setting=setting, options={"chunk": chunk}), oversample=True)
    assert [row.batch for row in run(experiment).rows[1:]] == [expected] * 10


def test_the_luck_of_pieces_evens_out_and_no_device_knows_it_beforehand():
    """The number of pieces in T − B is Poisson if pieces of one layer take exponential times."""
    from adelfl.simulation.draws import draw_chunks
    from adelfl.simulation.world import World
    from adelfl.strategies.actions import Tasks

    fleet = Fleet.of([20.0], 0.5, 4000)
    tasks = Tasks(np.arange(4000), np.full(4000, 1000), 1, 0.1, 1.5, chunk=2)
    cut, work = draw_chunks(World(fleet, 3, 10.0), tasks, 2, 0, 0.0, 1)
    pieces = cut.batch / 2
    assert (work.z == (pieces > 0)).all()
    error = 4.5 * np.sqrt(10.0 / 4000)
    assert pieces.mean() == pytest.approx(10.0, abs=error)
    assert pieces.var() == pytest.approx(10.0, rel=0.1)


# -- TimelyFL


def test_timelyfl_closes_with_its_kth_device_and_every_device_does_what_fits():
    setting = steady(fleet=Fleet.of([12.0, 6.0, 3.0, 48.0], 0.0), budget=1e4, batch=4)
    strategy = find_strategy("timelyfl")(setting, share=0.5, most=3)
    orders = strategy.orders(0, np.arange(4))  # one step takes 1, 2, 4 and 0.25 seconds
    assert orders.deadline == pytest.approx(1.0)
    assert orders.steps.tolist() == [1, 1, 1, 3]
    (row,) = run(experiment_of("timelyfl", setting=setting, options={"share": 0.5, "most": 3})).rows[1:2]
    assert row.time == pytest.approx(1.0)
    assert row.depth == [3, 1, 0, 9]
    assert row.contributors == [2, 2, 3]


def test_timelyfl_with_all_devices_and_no_further_steps_is_wait():
    setting = steady(local_iterations=2, rounds=4, budget=15.0)  # six rounds of 2.4 s
    plain = run(experiment_of("wait", setting=setting))
    timely = run(experiment_of("timelyfl", setting=setting, options={"share": 1.0, "most": 1}))
    same = len(plain.rows)
    assert [row.time for row in timely.rows[:same]] == pytest.approx([row.time for row in plain.rows])
    assert [row.depth for row in timely.rows[:same]] == [row.depth for row in plain.rows]
    losses = [[row.train_loss for row in rows[1:same]] for rows in (timely.rows, plain.rows)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(timely.rows) > same == 5  # wait stops after R rounds, TimelyFL when the budget is used up


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedprox", {"proximal": -1}),
        ("fedprox", {"deadline": 0}),
        ("fednova", {"momentum": 1.0}),
        ("timelyfl", {"share": 0}),
        ("timelyfl", {"most": 0}),
        ("anytime", {"chunk": 0}),
    ],
)
def test_bad_options_are_one_sentence(name, options):
    with pytest.raises(ConfigError, match="strategy option"):
        find_strategy(name)(setting_of(3), **options)
