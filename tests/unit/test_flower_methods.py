"""What the methods of the literature ask of Flower's nodes, and which of them cannot run there."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

pytest.importorskip("flwr")

from adelfl.errors import ConfigError
from adelfl.flower import DeadlineStrategy
from adelfl.flower.strategy import METHODS
from adelfl.records.reader import RunRecord
from adelfl.runtime.backend import Computed
from adelfl.runtime.loop import Loop
from adelfl.runtime.reactions import Reaction
from adelfl.strategies import BUILT_IN
from support.flower_world import Being, World, arrays


def start(method, nodes=None, *, folder=None, rounds=8, **more):
    world = World(nodes or {i: Being(0.4 if i == 4 else 0.05, seed=i) for i in (1, 2, 3, 4)})
    given = {"budget": 60.0, "learning_rate": 0.3, "clock": world.clock, "record": folder}
    strategy = DeadlineStrategy(method=method, **given | more)
    return world, strategy.start(world, arrays(), num_rounds=rounds), strategy


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("oracle", "always finish in time"),
        ("clairvoyant", "knows every layer time"),
        ("heterofl", "whole model"),
        ("scaffold", "control variates"),
    ],
)
def test_methods_that_need_more_than_the_protocol_are_refused_with_the_reason(method, why):
    with pytest.raises(ConfigError, match=f"{method}' runs in the simulator only: .*{why}"):
        start(method)
    assert {"oracle", "clairvoyant", "heterofl", "scaffold"} == set(BUILT_IN) - set(METHODS)


def test_a_method_of_another_package_has_its_registered_name(monkeypatch):
    other = EntryPoint("outside", "adelfl.strategies.salf:Salf", "adelfl.strategies")
    monkeypatch.setattr("adelfl.strategies.entry_points", lambda group: [other])
    _, result, _ = start("outside", rounds=2)
    assert len(result.train_metrics_clientapp) == 2
    with pytest.raises(ConfigError, match="method must be one of"):
        start("inside")


def test_an_asynchronous_method_does_not_ignore_a_fraction_of_the_nodes():
    with pytest.raises(ConfigError, match="fraction_train must be 1"):
        start("fedbuff", fraction_train=0.5)


def test_nodes_add_the_proximal_term_and_move_less():
    """The opening round has none, so the second is compared: several steps from the same weights."""
    seen = {}
    for mu in (0.0, 3.0):
        nodes = {i: Being(0.01, seed=i) for i in (1, 2)}
        world, _, strategy = start("fedprox", nodes, local_iterations=8, rounds=2, plan_options={"proximal": mu})
        tasks = world.nodes[1].asked
        assert [task.proximal for task in tasks] == [0.0, mu]
        assert tasks[1].iterations == 8
        first = {name: array.numpy() for name, array in arrays().items()}
        end = strategy.run.weights
        seen[mu] = sum(float(np.square(end[n] - first[n]).sum()) for n in first)
    assert seen[3.0] < seen[0.0]


@pytest.mark.parametrize("method", ["fedprox", "fednova"])
def test_a_given_deadline_is_not_made_longer_to_use_the_budget(method, tmp_path):
    more = {"local_iterations": 50, "plan_options": {"deadline": 1.5}}
    start(method, {i: Being(0.05, seed=i) for i in (1, 2, 3)}, folder=tmp_path / "run", **more)
    rounds = RunRecord.open(tmp_path / "run").rounds[2:]
    assert [row.deadline for row in rounds] == pytest.approx([1.5] * 7)


def test_over_selection_goes_on_when_enough_nodes_have_delivered():
    world, result, _ = start("over-selection")  # 3 of 4 nodes
    waiting, patient, _ = start("wait")
    assert len(result.train_metrics_clientapp) == len(patient.train_metrics_clientapp) == 8
    assert world.clock.now() < 0.5 * waiting.clock.now()


def test_a_round_that_waits_is_not_merged_if_the_budget_ends_before_it(tmp_path):
    nodes = {1: Being(0.02, seed=1), 2: Being(0.02, seed=2), 3: Being(1.0, seed=3)}
    start("wait", nodes, rounds=40, budget=50.0, folder=tmp_path / "run")
    *merged, last = RunRecord.open(tmp_path / "run").rounds[1:]
    assert {tuple(row.contributors) for row in merged} == {(3, 3, 3)}
    assert last.abandoned
    assert last.length > 1.0  # and no other round begins in its last moments


def test_timelyfl_asks_fast_nodes_for_more_steps():
    nodes = {i: Being(0.05 * i, lag=0.01, seed=i) for i in (1, 2, 3, 4, 5, 6)}
    world, _, _ = start("timelyfl", nodes, rounds=10, plan_options={"most": 4})
    later = [np.mean([task.iterations for task in world.nodes[i].asked[3:]]) for i in (1, 6)]
    assert later[0] > 1.5
    assert later[1] == 1.0


def test_the_last_round_of_timelyfl_ends_with_the_budget(tmp_path):
    nodes = {i: Being(1.0 * i, lag=0.2, seed=i) for i in (1, 2, 3, 4)}
    more = {"budget": 91.0, "measure_share": 0.3, "rounds": "auto", "folder": tmp_path / "run"}
    world, _, _ = start("timelyfl", nodes, **more)
    assert world.clock.now() == pytest.approx(91.0, abs=0.2)
    assert all(task.seconds < row.deadline for task, row in zip(
        world.nodes[1].asked[1:], RunRecord.open(tmp_path / "run").rounds[2:], strict=True))  # fmt: skip


def test_anytime_asks_nodes_for_what_their_speed_allows():
    world, _, _ = start("anytime", rounds=10, oversample=True, measure_share=0.3)
    later = [np.mean([task.batch for task in world.nodes[i].asked[2:]]) for i in (1, 4)]
    assert later[0] > 3 * later[1]


def test_oort_learns_the_losses_that_nodes_report_and_they_are_recorded(tmp_path):
    nodes = {i: Being(0.05, seed=i) for i in range(1, 9)}
    more = {"fraction_train": 0.5, "folder": tmp_path / "run"}
    _, _, strategy = start("oort", nodes, **more)
    method = strategy.run.strategy.method
    rows = RunRecord.open(tmp_path / "run").rounds
    losses = {}
    for row in rows[2:-1]:  # the run ends with the last one
        assert len(row.losses) == len(row.devices)
        losses |= {u: loss for u, loss in zip(row.devices, row.losses, strict=True) if loss is not None}
    assert len(losses) >= 4
    for u, loss in losses.items():
        assert method.known[0, u] == pytest.approx(loss)


class NoMoreEvents:
    """A backend on which nothing happens after the recorded events."""

    def now(self):
        return 0.0

    def next(self, wake_at):
        return None

    def resume(self, dispatched):
        pass


def test_a_resumed_server_chooses_as_the_losses_made_it_choose(tmp_path):
    nodes = {i: Being(0.05, seed=i) for i in range(1, 13)}
    _, _, strategy = start("oort", nodes, folder=tmp_path / "run", fraction_train=0.3, rounds=12)
    record = RunRecord.open(tmp_path / "run")

    loop = Loop(strategy._strategy(3, 12), NoMoreEvents(), 60.0)
    events = [Reaction.from_json(entry) for entry in record.events]
    for row, step in zip(record.rounds[1:], loop.steps(events), strict=False):
        step.computed = Computed.recorded(row.gradients, row.losses)
        assert [u for a in step.merge.arrivals for u in a.tasks.devices.tolist()] == list(row.devices)
    assert step.version == 12
    assert len({tuple(row.devices) for row in record.rounds[2:]}) > 4


@pytest.mark.parametrize("step", ["momentum", "adam", "yogi", "adagrad", "average"])
@pytest.mark.parametrize("method", ["fednova", "fedasync"])
def test_server_steps_combine_with_the_methods(method, step):
    _, result, strategy = start(method, server_step=step)
    assert strategy.run.state
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
