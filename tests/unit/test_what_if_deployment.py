"""From the record of a deployment: its devices, and what the same or other methods would have given on them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import MetricRecord

from adelfl.data import Dataset, Partition
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.flower import DeadlineStrategy
from adelfl.learning_rate import InverseDecay, recorded_rate
from adelfl.planner import Problem
from adelfl.records.reader import RunRecord
from adelfl.simulation import Experiment
from adelfl.simulation.history import History
from adelfl.simulation.what_if import Forecast, what_if
from adelfl.strategies import find_strategy
from adelfl.training.layers import given_layers
from support.flower_world import Being, World, arrays, model
from support.small_worlds import typed

LAYERS = tuple((f"{name}.weight", f"{name}.bias") for name in ("first", "second", "third"))
OLD = Path(__file__).parents[1] / "fixtures" / "records"
NODES, SLOW = (1, 2, 3, 4), 4


class Part(Being):
    """Holds a number of samples of its own, by which what-if finds its data."""

    def __init__(self, tick, lag, seed):
        super().__init__(tick, lag, seed)
        self.data = tuple(part[: 64 - seed] for part in self.data)


def held_out():
    rng = np.random.default_rng(99)
    x = rng.normal(size=(500, 4)).astype(np.float32)
    return x, x[:, :3].argmax(1).astype(np.int64)


X, Y = held_out()


def evaluate(_, weights):
    net = model()
    net.load_state_dict(weights.to_torch_state_dict())
    with torch.no_grad():
        return MetricRecord({"accuracy": float((net(torch.from_numpy(X)).argmax(1).numpy() == Y).mean())})


def deployment(folder, method, world=None, **more):
    world = world or World({i: Part(0.3 if i == SLOW else 0.05, 0.1 * i, i) for i in NODES})
    given = {
        "budget": 60.0,
        "method": method,
        "learning_rate": 0.5,
        "clock": world.clock,
        "record": folder,
        "local_iterations": 6,
    }
    given |= {"plan_options": {"buffer": 4}} if method == "fedbuff" else {}
    DeadlineStrategy(**given | more).start(world, arrays(), num_rounds=8, evaluate_fn=evaluate)
    return RunRecord.open(folder)


def experiment():
    nodes = [Part(0.05, 0.1, i).data for i in reversed(NODES)]  # in another order than the record's
    x, y = (torch.cat(parts).numpy() for parts in zip(*nodes, strict=True))
    ends = np.cumsum([0, *(len(part[1]) for part in nodes)])
    partition = Partition.of([np.arange(a, b) for a, b in pairwise(ends)], y.size)
    problem = Problem(Fleet.of(1.0, 0.0, 4), 3, 8, 60.0, 0.5, batch=16, local_iterations=2)
    data = Dataset.from_arrays(x, y, X, Y)
    return Experiment(data, partition, model(), given_layers(model(), LAYERS), find_strategy("drop")(problem), seed=0)


@pytest.mark.parametrize("method", ["adel", "salf", "drop", "wait", "fedbuff"])
def test_the_method_that_ran_gives_what_it_gave(method, tmp_path):
    record = deployment(tmp_path / "run", method)
    real = Forecast.of(record)
    simulated = what_if(record, method, record.info.options, experiment=experiment())
    assert simulated.rounds == pytest.approx(real.rounds, rel=0.1)
    assert simulated.time == pytest.approx(real.time, rel=0.1)
    assert simulated.accuracy == pytest.approx(real.accuracy, abs=0.03 + 1.5 / np.sqrt(Y.size))
    timeline = what_if(record, method, record.info.options)
    assert (timeline.rounds, timeline.time, timeline.accuracy) == (simulated.rounds, simulated.time, None)


def test_a_deployment_with_a_falling_rate_can_be_simulated(tmp_path):
    rate = InverseDecay(0.5, 20.0)
    record = deployment(tmp_path / "run", "salf", learning_rate=rate)
    assert recorded_rate(record.info.config["flower"]["learning_rate"]) == rate
    assert what_if(record, "salf", record.info.options).rounds == Forecast.of(record).rounds


def test_half_the_budget_ends_in_half_the_time_with_fewer_rounds(tmp_path):
    record = deployment(tmp_path / "run", "wait")
    real, half = Forecast.of(record), what_if(record, "wait", {"num_rounds": "auto"}, budget=12.0)
    assert half.time <= 12.0
    assert half.rounds < real.rounds


def test_devices_are_there_when_they_were_there(tmp_path):
    class Leaving(World):
        def get_node_ids(self):
            away = 15.0 < self.clock.now() < 35.0
            return [n for n in super().get_node_ids() if n != 2 or not away]

    world = Leaving({i: Part(0.2, 0.1, i) for i in NODES})
    record = deployment(tmp_path / "run", "wait", world)
    history = History.of(record)
    away = [row for row in record.rounds[1:] if len(row.devices) == 3]
    assert away
    for device in history.devices:
        assert len(device.replies) >= 4
    outcome = what_if(record, "wait", {})
    assert outcome.rounds == pytest.approx(len(record.rounds) - 1, abs=1)


def test_a_reply_that_came_after_the_opening_round_is_part_of_the_history(tmp_path):
    world = World({i: Part(0.05, 15.0 if i == SLOW else 0.1, i) for i in NODES})
    record = deployment(tmp_path / "run", "salf", world)
    assert record.rounds[1].time < 15.0
    history = History.of(record)
    assert history.devices[SLOW - 1].replies[0].began == pytest.approx(history.start, abs=0.5)
    assert history.devices[SLOW - 1].replies[0].lag >= 15.0
    simulated = what_if(record, "salf", {})
    assert simulated.rounds == pytest.approx(record.rounds[-1].round, rel=0.1)
    assert simulated.time == pytest.approx(record.rounds[-1].time, rel=0.1)


def test_speeds_and_lags_are_those_of_the_nodes(tmp_path):
    history = History.of(deployment(tmp_path / "run", "drop"))
    for u, device in enumerate(history.devices):
        tick = 0.3 if u + 1 == SLOW else 0.05
        for reply in device.replies:
            assert reply.per_layer / reply.batch == pytest.approx(4 / 3 * tick / 16, rel=0.35)  # and a forward pass
            assert reply.lag >= 0.1 * (u + 1)


def test_what_cannot_be_simulated_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="not a Flower run with logged events"):
        what_if(RunRecord.open(OLD / "simulated"), "drop", {})
    record = deployment(tmp_path / "run", "drop")
    with pytest.raises(ConfigError, match="runs in the simulator only"):
        what_if(record, "oracle", {})
    with pytest.raises(ConfigError, match="needs a number of local_iterations"):
        what_if(record, "fedbuff", {"local_iterations": "auto"})


def test_the_command_prints_what_happened_and_what_would_have(tmp_path):
    deployment(tmp_path / "run", "drop")
    done = typed("what-if", tmp_path / "run", "--strategies", "drop,wait[num_rounds=3]")
    assert done.code == 0, done.err
    happened, drop, wait = (line.split() for line in done.out.splitlines()[1:])
    assert happened[:3] == ["drop,", "as", "recorded"]
    assert drop[:2] == ["drop,", "simulated"]
    assert wait[2] == "3"


@pytest.mark.parametrize("budget", [0.0, -5.0, float("nan"), float("inf")])
def test_a_budget_that_cannot_be_is_refused(tmp_path, budget):
    with pytest.raises(ConfigError, match="budget must be"):
        what_if(deployment(tmp_path / "run", "adel"), "adel", {}, budget=budget)


def test_a_budget_in_which_no_device_can_answer_is_over_without_a_round(tmp_path):
    assert what_if(deployment(tmp_path / "run", "adel"), "adel", {}, budget=0.5).rounds == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"x": 1}, "adel does not take these"),
        ({"num_rounds": "x"}, "num_rounds must be a whole number"),
        ({"batch": 0}, "batch must be a whole number"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        what_if(deployment(tmp_path / "run", "adel"), "adel", options)


def test_wrong_options_of_a_deployment_are_refused_before_it_begins(tmp_path):
    with pytest.raises(ConfigError, match="adel does not take these"):
        deployment(tmp_path / "run", "adel", plan_options={"x": 1})
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_a_simulation_before_it_prints_a_table():
    done = typed("what-if", OLD / "simulated")
    assert done.code == 2
    assert done.out == ""
    assert "not a Flower run with logged events" in done.err
