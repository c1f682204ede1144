"""FedAsync and FedCompass: asynchronous methods, by their rules, limits and neighbours."""

from dataclasses import replace

import numpy as np
import pytest

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Latency, Law
from adelfl.simulation import engine
from adelfl.strategies import find_strategy
from adelfl.strategies.actions import Arrivals, Joined, Started, Tasks, Timer, View
from adelfl.strategies.asynchronous import Staleness
from support.small_worlds import experiment_of, run, same_bits, setting_of, steps_of_run


def view(version=0, now=0.0):
    return View(now, 1000.0, version, lambda k, size: np.arange(5))


def arrival(device, version, z=3, steps=1, began=0.0):
    tasks = Tasks(np.array([device]), np.array([4]), np.array([steps]), 0.1, together=False)
    return Arrivals(tasks, device, version, began, np.array([z]), np.array([1.0]), np.array([0.1]))


# -- FedAsync


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"staleness": "constant"}, [0.6, 0.6, 0.6]),
        ({}, [0.6, 0.6 / np.sqrt(4), 0.6 / np.sqrt(10)]),
        ({"staleness_rate": 1.0, "mixing": 1.0}, [1.0, 1 / 4, 1 / 10]),
        ({"staleness": "hinge"}, [0.6, 0.6, 0.6 / 51]),
        ({"staleness": "hinge", "staleness_rate": 0.5, "staleness_free": 1}, [0.6, 0.6 / 2, 0.6 / 5]),
    ],
)
def test_the_mixing_weight_falls_with_staleness(options, expected):
    strategy = find_strategy("fedasync")(setting_of(3), **options)
    strategy.react(view(), Started())
    for tau, weight in zip((0, 3, 9), expected, strict=True):
        actions = strategy.react(view(20), arrival(2, 20 - tau))
        (A,) = actions.merge.A
        assert A == pytest.approx(np.full((1, 3), weight))
        assert actions.merge.of == "models"
        assert [t.devices.tolist() for t in actions.dispatch] == [[2]]


def test_hinge_and_polynomial_without_decay_are_constant():
    for name in ("hinge", "polynomial"):
        assert [Staleness(name, 0.0).weight(tau) for tau in range(20)] == [1.0] * 20


def test_a_device_without_an_update_is_asked_again_and_nothing_is_mixed():
    actions = find_strategy("fedasync")(setting_of(3)).react(view(), arrival(4, 0, z=0))
    assert actions.merge is None
    assert len(actions.dispatch) == 1


def test_adding_changes_without_a_staleness_weight_is_fedbuff_with_a_buffer_of_one():
    plain = {"staleness": "constant"}
    buffered = run(experiment_of("fedbuff", budget=8.0, options={"buffer": 1, **plain}))
    mixed = run(experiment_of("fedasync", budget=8.0, options={"mixing": 1.0, "of": "changes", **plain}))
    assert same_bits(buffered.weights, mixed.weights)
    assert [row.devices for row in buffered.rows] == [row.devices for row in mixed.rows]


def test_models_are_mixed_with_the_weights_as_they_are_now():
    """w ← (1 − α) w + α w_u, where w has moved since the device started."""
    setting = setting_of(3, budget=8.0)
    program = engine.Simulation(experiment_of("fedasync", setting=setting, options={"mixing": 0.3}))
    checked = 0
    for step in steps_of_run(program, 8.0):
        (a,) = step.merge.arrivals
        now = {name: p.detach().clone() for name, p in program.parameters().items()}
        then = program.backend.past.kept.get(a.version, now)
        alone = replace(step.merge, A=(np.ones((1, 3)),), of="changes")
        (compute,) = program.backend.prepare([step.merge])
        step.computed = compute()
        program.backend.past.kept[a.version] = then
        program.backend.past.version -= 1
        (train,) = program.backend.prepare([alone])
        own = train().change.parameters
        alpha = float(step.merge.A[0][0, 0])
        for name, w in now.items():
            mixed = (1 - alpha) * w + alpha * (then[name] + own[name])
            moved = w + step.computed.change.parameters[name]
            assert np.allclose(moved.numpy(), mixed.numpy(), atol=1e-6)
        checked += step.version - 1 > a.version
        if step.version == 12:
            break
    assert checked > 4


def test_losses_are_those_of_the_weights_that_devices_started_from():
    program = engine.Simulation(experiment_of("fedbuff", budget=8.0, options={"buffer": 2}))
    for step in steps_of_run(program, 8.0):
        asked = replace(step.merge, losses=True)
        (compute,) = program.backend.prepare([asked])
        step.computed = compute()
        losses = step.computed.losses
        assert losses.shape == (2,)
        assert losses.mean() == pytest.approx(step.computed.change.loss, rel=0.3)  # a root mean square, and a mean
        assert losses.mean() >= step.computed.change.loss
        if step.version == 6:
            break


def test_the_proximal_term_is_part_of_the_task():
    (tasks,) = find_strategy("fedasync")(setting_of(3), proximal=0.3).react(view(), Started()).dispatch
    assert tasks.proximal == 0.3


BAD = (
    {"mixing": 0},
    {"mixing": 1.5},
    {"staleness": "linear"},
    {"proximal": -1},
    {"of": "both"},
    {"staleness_rate": -1},
)


@pytest.mark.parametrize("options", BAD)
def test_bad_options_are_one_sentence(options):
    with pytest.raises(ConfigError, match="strategy option"):
        find_strategy("fedasync")(setting_of(3), **options)


# -- FedCompass


def compass(**options):
    strategy = find_strategy("fedcompass")(setting_of(3), **{"least": 2, "most": 10, "latest": 1.5} | options)
    strategy.react(view(), Started())
    return strategy


def devices_of(row):
    return range(len(row.depth)) if row.devices is None else row.devices


def steps_of(actions):
    return {u: k for t in actions.dispatch for u, k in zip(t.devices.tolist(), t.each_steps.tolist(), strict=True)}


def test_first_all_devices_do_the_least_and_are_merged_one_by_one():
    strategy = find_strategy("fedcompass")(setting_of(3), least=2, most=10)
    (tasks,) = strategy.react(view(), Started()).dispatch
    assert tasks.each_steps.tolist() == [2] * 5
    actions = strategy.react(view(0, 4.0), arrival(0, 0, steps=2))
    assert [a.tasks.devices[0] for a in actions.merge.arrivals] == [0]
    assert actions.merge.of == "changes"
    assert steps_of(actions) == {0: 10}  # alone: a group of its own with all steps, expected at 4 + 20


def test_devices_get_the_steps_with_which_they_arrive_together():
    strategy = compass()
    strategy.react(view(0, 4.0), arrival(0, 0, steps=2))  # 2 s per step, expected at 24
    assert steps_of(strategy.react(view(1, 9.0), arrival(1, 0, steps=2))) == {1: 3}  # 4.5 s per step: ⌊15/4.5⌋
    assert steps_of(strategy.react(view(2, 6.0), arrival(2, 0, steps=2))) == {2: 6}  # 3 s per step: ⌊18/3⌋
    actions = strategy.react(view(3, 23.0), arrival(2, 3, steps=6, began=6.0))
    assert actions.merge is None
    assert actions.dispatch == ()  # waits for its group
    assert actions.wake_at == 4.0 + 1.5 * 20
    strategy.react(view(3, 23.5), arrival(1, 2, steps=3, began=9.0))
    actions = strategy.react(view(3, 24.0), arrival(0, 1, steps=10, began=4.0))
    assert [a.tasks.devices[0] for a in actions.merge.arrivals] == [2, 1, 0]
    weights = [A[0, 0] for A in actions.merge.A]
    assert weights == pytest.approx([1 / 3, 1 / 3 / np.sqrt(2), 1 / 3 / np.sqrt(3)])  # 3 devices are known
    assert steps_of(actions)[0] == 10  # the fastest opens the next group
    assert set(steps_of(actions)) == {0, 1, 2}


def test_an_overdue_group_is_merged_without_those_that_are_late_and_they_wait_for_the_next_merge():
    strategy = compass()
    strategy.react(view(0, 4.0), arrival(0, 0, steps=2))
    strategy.react(view(1, 6.0), arrival(2, 0, steps=2))
    strategy.react(view(2, 23.0), arrival(2, 2, steps=6, began=6.0))
    actions = strategy.react(view(2, 34.0), Timer())
    assert [a.tasks.devices[0] for a in actions.merge.arrivals] == [2]
    assert set(steps_of(actions)) == {2}
    late = strategy.react(view(3, 40.0), arrival(0, 1, steps=10, began=4.0))
    assert late.merge is None
    assert set(steps_of(late)) == {0}
    following = strategy.react(view(3, 70.0), arrival(2, 3, steps=10, began=34.0))
    assert following.merge is None or len(following.merge.arrivals) == 2
    if following.merge is None:
        following = strategy.react(view(3, 500.0), Timer())
    assert [int(a.tasks.devices[0]) for a in following.merge.arrivals] == [0, 2]


def test_a_device_that_is_lost_leaves_its_group():
    strategy = compass()
    strategy.react(view(0, 4.0), arrival(0, 0, steps=2))
    strategy.react(view(1, 6.0), arrival(2, 0, steps=2))
    strategy.react(view(2, 24.0), arrival(2, 2, steps=6, began=6.0))
    actions = strategy.react(view(2, 25.0), Joined(np.array([0])))
    assert [a.tasks.devices[0] for a in actions.merge.arrivals] == [2]
    assert set(steps_of(actions)) == {0, 2}


def test_a_resumed_deployment_has_no_groups_of_lost_updates_but_knows_how_fast_devices_are():
    strategy = compass()
    strategy.react(view(0, 4.0), arrival(0, 0, steps=2))
    strategy.react(view(1, 6.0), arrival(2, 0, steps=2))
    strategy.react(view(2, 24.0), arrival(2, 2, steps=6, began=6.0))  # waits for device 0
    actions = strategy.react(view(2, 30.0), Started())
    assert actions.merge is None
    assert actions.wake_at is None
    assert steps_of(actions)[0] == 10


def test_with_steady_devices_most_updates_arrive_in_groups_and_steps_follow_speed():
    setting = setting_of(3, fleet=Fleet.of([40.0, 20.0, 20.0, 10.0, 10.0], 0.0), budget=60.0)
    setting = replace(setting, latency=Latency(Law("constant")))
    rows = run(experiment_of("fedcompass", setting=setting, options={"least": 1, "most": 5})).rows[1:]
    later = [row for row in rows if row.time > 20]
    assert np.mean([len(devices_of(row)) for row in later]) > 1.5
    pairs = [(u, z / 3) for row in later for u, z in zip(devices_of(row), row.depth, strict=True)]
    assert np.mean([k for u, k in pairs if u == 0]) > np.mean([k for u, k in pairs if u == 4])


def test_fedcompass_with_one_number_of_steps_and_equal_devices_is_a_round_of_all():
    setting = setting_of(3, fleet=Fleet.of(20.0, 0.0, 5), budget=20.0)
    setting = replace(setting, latency=Latency(Law("constant")))
    rows = run(experiment_of("fedcompass", setting=setting, options={"least": 1, "most": 1})).rows[1:]
    assert len(rows) > 20
    assert all(sorted(devices_of(row)) == list(range(5)) for row in rows[5:])


BAD_BOUNDS = ({"least": 0}, {"least": 4, "most": 3}, {"latest": 0.5}, {"most": 2.5}, {"least": "x"}, {"latest": "x"})


@pytest.mark.parametrize("options", BAD_BOUNDS)
def test_bad_bounds_are_one_sentence(options):
    with pytest.raises(ConfigError, match=r"fedcompass needs|strategy option"):
        find_strategy("fedcompass")(setting_of(3), **options)
