"""Over-selection, FedCS and Oort: who is asked, by their rules, limits and neighbours."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Latency, Law
from adelfl.strategies import find_strategy
from adelfl.strategies.actions import Arrivals, Merged, Started, Tasks, View
from support.small_worlds import experiment_of, run, same_bits, setting_of

TEN = Fleet.of([10.0 + 3 * u for u in range(10)], 0.01)


def cohorts(k, size):
    """The k-th cohort of ten devices."""
    return np.arange(10) if size is None else np.sort(np.random.default_rng(k).choice(10, size, replace=False))


def view(version=0, now=0.0):
    return View(now, 1000.0, version, cohorts)


# -- over-selection


@pytest.mark.parametrize(("cohort", "asked", "needed"), [(5, 7, 5), (9, 10, 9), (None, 10, 7)])
def test_a_third_more_devices_are_asked_than_are_waited_for(cohort, asked, needed):
    strategy = find_strategy("over-selection")(setting_of(3, fleet=TEN, cohort=cohort))
    (tasks,) = strategy.react(view(), Started()).dispatch
    assert (tasks.devices.size, tasks.enough) == (asked, needed)
    assert np.isinf(tasks.cutoff)


def test_a_round_closes_with_the_kth_device_and_counts_the_first_k():
    setting = setting_of(3, fleet=TEN, cohort=4, budget=8.0)
    rows = run(experiment_of("over-selection", setting=setting)).rows[1:]
    assert len(rows) > 3
    for row in rows:
        assert len(row.depth) == 6
        assert sum(z == 3 for z in row.depth) == 4
        assert row.contributors == [4, 4, 4]
    patient = run(experiment_of("wait", setting=replace(setting, cohort=6))).rows[1:]
    assert np.mean([row.deadline for row in rows]) < np.mean([row.deadline for row in patient])


def test_asking_no_more_than_needed_is_wait_on_the_cohort():
    setting = setting_of(3, fleet=TEN, cohort=4, budget=4.0)
    one, other = (run(experiment_of(name, setting=setting, options=more)) for name, more in
                  (("wait", {}), ("over-selection", {"factor": 1.0})))  # fmt: skip
    assert len(one.rows) > 3
    assert [row.time for row in one.rows] == [row.time for row in other.rows]
    assert [row.devices for row in one.rows] == [row.devices for row in other.rows]
    assert same_bits(one.weights, other.weights)


def test_devices_that_drop_out_are_not_waited_for_beyond_the_kth():
    setting = setting_of(3, fleet=TEN, cohort=5, budget=10.0)
    experiment = experiment_of("over-selection", setting=setting)
    from adelfl.simulation.world import World

    rows = run(replace(experiment, world=World(TEN, 1, 10.0, dropout=0.4))).rows[1:]
    assert len(rows) > 3
    assert {sum(z == 3 for z in row.depth) for row in rows} <= {1, 2, 3, 4, 5}
    assert max(sum(z == 3 for z in row.depth) for row in rows) == 5


def test_a_factor_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        find_strategy("over-selection")(setting_of(3), factor=0.9)


# -- FedCS


def test_devices_that_fit_by_themselves_are_chosen_and_the_round_ends_with_the_last_of_them():
    setting = setting_of(3, fleet=Fleet.of([12.0, 6.0, 3.0, 1.0], [0.0, 0.5, 0.0, 0.0]), budget=30.0, rounds=10)
    setting = replace(setting, latency=Latency(Law("constant")))  # 1, 2.5, 4 and 12 s; rounds of 3 s
    strategy = find_strategy("fedcs")(setting)
    orders = strategy.orders(0, np.arange(4))
    assert orders.batch.tolist() == [4, 4, 0, 0]
    rows = run(experiment_of("fedcs", setting=setting)).rows[1:]
    assert rows[0].time == pytest.approx(2.5)
    assert len(rows) == 12  # as many as fit into 30 s
    assert all(row.contributors == [2, 2, 2] for row in rows)


def test_on_one_channel_uploads_add_up_and_the_shortest_goes_first():
    strategy = find_strategy("fedcs")(setting_of(3), uploads="in-turn")
    compute, upload = np.array([1.0, 1.0, 2.0, 5.0]), np.array([1.0, 0.5, 1.0, 0.1])
    # 1 + 0.5; then 1.5 + 1; then 2.5 + 1; then max(3.5, 5) + 0.1
    assert strategy.chosen(compute, upload, 3.5).tolist() == [True, True, True, False]
    assert strategy.chosen(compute, upload, 3.4).tolist() == [True, True, False, False]
    assert strategy.chosen(compute, upload, 5.1).all()


def test_without_uploads_the_channel_does_not_matter_and_with_much_time_all_are_chosen():
    rng = np.random.default_rng(0)
    compute = rng.uniform(0, 2, 30)
    for T in (0.5, 1.5):
        either = [find_strategy("fedcs")(setting_of(3), uploads=u) for u in ("parallel", "in-turn")]
        parts = [strategy.chosen(compute, np.zeros(30), T) for strategy in either]
        assert (parts[0] == parts[1]).all()
        assert (parts[0] == (compute <= T)).all()
    assert find_strategy("fedcs")(setting_of(3), uploads="in-turn").chosen(compute, compute, 1e3).all()


def test_where_no_device_fits_the_quickest_is_asked():
    chosen = find_strategy("fedcs")(setting_of(3)).chosen(np.array([5.0, 4.0]), np.array([0.0, 2.0]), 1.0)
    assert chosen.tolist() == [True, False]


# -- Oort


def oort(**more):
    return find_strategy("oort")(setting_of(3, fleet=TEN, cohort=3, **more))


def told(strategy, losses, durations):
    """Let a strategy know what devices 0, 1, … are like."""
    n = len(losses)
    strategy.known[:, :n] = [losses, durations, np.ones(n)]
    return strategy


def test_utility_is_loss_times_a_penalty_for_slow_devices():
    strategy = told(oort(), [1.0, 2.0, 2.0, 1.0], [1.0, 1.0, 4.0, 2.0])
    U = strategy.utility(0)  # log 1 = 0: no bonus
    T = np.quantile([1.0, 1.0, 4.0, 2.0], 0.5)
    assert U[:4] == pytest.approx([1.0, 2.0, 2.0 * (T / 4.0) ** 2, (T / 2.0) ** 2])
    assert np.isnan(U[4:]).all()
    later = strategy.utility(20)
    assert later[0] - U[0] == pytest.approx(np.sqrt(0.1 * np.log(21)))
    without = find_strategy("oort")(setting_of(3, fleet=TEN, cohort=3), penalty=0)
    assert told(without, [1.0, 2.0, 2.0, 1.0], [1.0, 1.0, 4.0, 2.0]).utility(0)[2] == 2.0


def test_first_cohorts_are_those_of_over_selection():
    plain = find_strategy("over-selection")(setting_of(3, fleet=TEN, cohort=3))
    assert oort().cohort(view(), 0).tolist() == plain.cohort(view(), 0).tolist()


def test_the_best_known_devices_are_preferred_and_new_ones_explored():
    counts, news = np.zeros(10), 0
    for t in range(200, 400):  # ε is at its lower bound: one of four is new
        strategy = told(oort(), [5.0, 5.0, 5.0, 5.0, 0.1, 0.1, 0.1, 0.1], [1.0] * 8)
        chosen = strategy.cohort(view(), t)
        assert chosen.size == np.unique(chosen).size
        counts[chosen] += 1
        news += (chosen >= 8).sum()
    assert counts[:4].sum() > 500
    assert counts[4:8].sum() < 60
    assert 60 < news <= 200


def test_when_all_devices_are_known_nothing_is_explored():
    strategy = told(oort(), [5.0] * 4 + [0.1] * 6, [1.0] * 10)
    assert all(strategy.cohort(view(), t).tolist() == [0, 1, 2, 3] for t in range(20))


def test_losses_and_durations_come_from_rounds():
    strategy = oort()
    (tasks,) = strategy.react(view(), Started()).dispatch
    n = tasks.devices.size
    z = np.array([3] * (n - 1) + [0])
    seconds = np.where(z > 0, 2.0, np.nan)
    event = Arrivals(tasks, 0, 0, 0.0, z, seconds, np.where(z > 0, 0.5, np.nan))
    actions = strategy.react(view(0, 3.0), event)
    assert actions.merge.losses
    strategy.react(view(1, 3.0), Merged(1, losses=np.where(z > 0, 1.5, np.nan)))
    assert strategy.known[:, tasks.devices[0]].tolist() == [1.5, 2.5, 1.0]
    assert np.isnan(strategy.known[:, tasks.devices[-1]]).all()  # it may be explored again


def test_the_pacer_allows_slower_devices_when_losses_fall():
    strategy = oort()
    strategy._started = np.arange(3)
    for t in range(20):
        strategy.learn_losses(np.full(3, 2.0 - t / 20))
    assert strategy.pace == pytest.approx(0.6)
    for _ in range(10):
        strategy.learn_losses(np.full(3, 9.0))
    assert strategy.pace == pytest.approx(0.6)


def test_a_run_knows_the_losses_of_its_devices():
    setting = setting_of(3, fleet=TEN, cohort=3, budget=6.0)
    rows = run(experiment_of("oort", setting=setting)).rows[1:]
    assert len(rows) > 4
    for row in rows:
        assert [loss is None for loss in row.losses] == [z == 0 for z in row.depth]
    first = [loss for loss in rows[0].losses if loss is not None]
    assert np.mean(first) == pytest.approx(np.log(4), rel=0.3)  # four classes, nothing learned yet
    with pytest.raises(ConfigError, match="penalty"):
        find_strategy("oort")(setting, penalty=-1)


def test_tasks_close_at_enough_devices_only_where_there_are_so_many():
    tasks = Tasks(np.arange(3), np.full(3, 4), 1, 0.1, enough=2)
    assert tasks.only(np.array([1])).enough == 2
    assert tasks.each_steps.tolist() == [1, 1, 1]
