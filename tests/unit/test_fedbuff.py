"""FedBuff: an asynchronous method on the same loop; its rule, its limits, and that it can be resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Latency, Law
from adelfl.records.reader import RunRecord
from adelfl.runtime.loop import Loop
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation import engine, simulate
from adelfl.strategies.actions import Arrivals, Merge, Merged, Started, Tasks, View
from adelfl.strategies.fedbuff import FedBuff
from support.small_worlds import experiment_of, kept_bytes, setting_of

ONE = np.array([0])


def view(version=0, now=0.0):
    return View(now, 100.0, version, lambda k, size: np.arange(5))


def arrival(device, version, z=3):
    tasks = Tasks(np.array([device]), np.array([4]), 1, 0.1, together=False)
    return Arrivals(tasks, device, version, 0.0, np.array([z]), np.array([1.0]), np.array([0.1]))


def test_every_device_starts_at_once_and_again_when_it_has_delivered():
    strategy = FedBuff(setting_of(3), buffer=3)
    (first,) = strategy.react(view(), Started()).dispatch
    assert first.devices.tolist() == [0, 1, 2, 3, 4]
    assert not first.together
    assert np.isinf(first.cutoff)
    actions = strategy.react(view(), arrival(2, 0))
    assert actions.merge is None
    assert [t.devices.tolist() for t in actions.dispatch] == [[2]]


def test_a_full_buffer_is_merged_with_weights_that_fall_with_staleness():
    strategy = FedBuff(setting_of(3), buffer=3)
    strategy.react(view(), Started())
    for device in (0, 1):
        assert strategy.react(view(8), arrival(device, 8)).merge is None
    merge = strategy.react(view(8), arrival(2, 5)).merge
    assert [a.tasks.devices[0] for a in merge.arrivals] == [0, 1, 2]
    assert [A[0, 0] for A in merge.A] == pytest.approx([1 / 3, 1 / 3, 1 / 3 / np.sqrt(4)])
    assert all(A.shape == (1, 3) for A in merge.A)
    assert strategy.react(view(9), Merged(9)).dispatch == ()
    assert strategy.react(view(9), arrival(3, 8)).merge is None  # the buffer is empty again


def test_a_resumed_deployment_does_not_merge_updates_whose_content_is_lost():
    strategy = FedBuff(setting_of(3), buffer=2)
    strategy.react(view(), arrival(0, 0))
    strategy.react(view(), Started())
    assert strategy.react(view(), arrival(1, 0)).merge is None
    assert len(strategy.react(view(), arrival(2, 0)).merge.arrivals) == 2


def test_a_device_that_delivers_nothing_starts_again_and_counts_for_nothing():
    strategy = FedBuff(setting_of(3), buffer=1)
    actions = strategy.react(view(), arrival(4, 0, z=0))
    assert actions.merge is None
    assert len(actions.dispatch) == 1


def test_a_buffer_must_hold_something():
    with pytest.raises(ConfigError, match="at least 1"):
        FedBuff(setting_of(3), buffer=0)


def rows_of(experiment, tmp_path):
    simulate(experiment, record=tmp_path / "run")
    return RunRecord(tmp_path / "run").rounds[1:]


def test_devices_work_all_the_time_and_fast_ones_more_often(tmp_path):
    setting = setting_of(3, fleet=Fleet.of([40.0, 10.0], 0.0, [2, 2]), budget=200.0)
    rows = rows_of(experiment_of("fedbuff", setting=setting, options={"buffer": 2}), tmp_path)
    times = [row.time for row in rows]
    assert times == sorted(times)
    assert times[-1] <= 200.0
    done = np.bincount([u for row in rows for u in row.devices], minlength=4)
    # A step takes 3 exponential layers of mean 4/P: 0.3 s and 1.2 s.
    assert done[:2].sum() / done[2:].sum() == pytest.approx(4.0, rel=0.25)


def test_the_first_merge_of_a_buffer_of_all_is_the_mean_of_all():
    """Every device starts from the first weights, so the merge is FedAvg's, on the samples that were drawn."""
    setting = setting_of(3, fleet=Fleet.of(20.0, 0.0, 5), budget=1000.0, rounds=1)
    setting = replace(setting, latency=Latency(Law("constant")))  # all deliver at the same moment
    experiment = experiment_of("fedbuff", setting=setting, options={"buffer": 5}, engine="loop")
    run = engine.Simulation(experiment)
    step = next(Loop(run.strategy, run.backend, setting.budget).steps())
    assert [a.version for a in step.merge.arrivals] == [0] * 5
    change = run.backend.prepare([step.merge])[0]().change
    alone = []
    for a in step.merge.arrivals:
        merge = Merge((a,), (np.ones((1, 3)),))
        alone.append(run.backend.prepare([merge])[0]().change.parameters)
    for name, value in change.parameters.items():
        assert torch.allclose(value, torch.stack([c[name] for c in alone]).mean(dim=0), atol=1e-6)
    assert len({float(c["dense1.linear.weight"].sum()) for c in alone}) == 5  # each on samples of its own


def test_no_time_for_a_first_merge_is_no_round():
    setting = replace(setting_of(3), budget=1e-9)
    assert simulate(experiment_of("fedbuff", setting=setting, options={"buffer": 5})).rounds == 0


@pytest.mark.parametrize("step", ["sgd", "average", "adam"])
def test_an_interrupted_run_continues_to_the_same_bytes(tmp_path, monkeypatch, step):
    programs = []

    class Watched(engine.Simulation):
        def __init__(self, experiment):
            super().__init__(experiment)
            programs.append(self)

    monkeypatch.setattr(engine, "_CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(engine, "Simulation", Watched)
    setting = setting_of(3, budget=20.0)
    experiment = replace(experiment_of("fedbuff", setting=setting, options={"buffer": 2}), server_step=ServerStep(step))
    simulate(experiment, record=tmp_path / "whole")

    class Stop(Exception):
        pass

    def interrupt(row):
        if row.round == 7:
            raise Stop

    with pytest.raises(Stop):
        simulate(experiment, record=tmp_path / "cut", report=interrupt)
    (tmp_path / "cut" / "failed.json").unlink(missing_ok=True)
    simulate(experiment, record=tmp_path / "cut")
    assert kept_bytes(tmp_path / "cut") == kept_bytes(tmp_path / "whole")
    whole, _, resumed = programs  # neither keeps weights that no device needs any more
    assert resumed.backend.past.kept.keys() == whole.backend.past.kept.keys()


def test_updates_start_from_the_weights_that_the_device_was_given(monkeypatch):
    """With a buffer of one, a merge moves by A times the change from old weights, which loop and fused agree on."""
    setting = setting_of(3, budget=20.0)
    finals = {}
    for name in ("loop", "fused"):
        experiment = experiment_of("fedbuff", setting=setting, options={"buffer": 1}, engine=name)
        finals[name] = simulate(experiment)
    assert finals["loop"].rounds == finals["fused"].rounds > 20
    assert finals["loop"].final_accuracy == pytest.approx(finals["fused"].final_accuracy, abs=0.05)
