"""One loop, two worlds: the recorded events of a Flower run, fed into the simulated backend, give the same run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from adelfl.data.partition import Partition
from adelfl.errors import AdelError
from adelfl.fleet import Fleet
from adelfl.flower import DeadlineStrategy
from adelfl.flower.backend import OnFlower
from adelfl.records.reader import RunRecord
from adelfl.runtime.loop import Loop
from adelfl.runtime.reactions import Reaction
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation.backend import Learner, Simulated
from adelfl.simulation.world import World as Simulation
from adelfl.theory.gradient_stats import GradientStats
from adelfl.training.layers import given_layers
from adelfl.training.loop import LoopEngine
from adelfl.training.work import Samples
from support.flower_world import Being, Silent, World, arrays, model, weights_of

LAYERS = tuple((f"{name}.weight", f"{name}.bias") for name in ("first", "second", "third"))
ASYNCHRONOUS = ("fedbuff", "fedasync", "fedcompass")
SYNCHRONOUS = ("adel", "adel-paper", "salf", "drop", "wait", "fedprox", "fednova", "anytime", "timelyfl")
CHOOSY = ("over-selection", "fedcs", "oort")
METHODS = (*SYNCHRONOUS, *CHOOSY, *ASYNCHRONOUS)
ROUNDS = 8


class Remembering(Being):
    """Keeps what it sends, by round."""

    def answer(self, message):
        reply, after = super().answer(message)
        self.sent = getattr(self, "sent", {})
        self.sent[self.asked[-1].round] = {n: a.numpy().copy() for n, a in reply.content["arrays"].items()}
        return reply, after


def strategy(world, method, folder=None, **more):
    options = {"buffer": 3} if method == "fedbuff" else {}
    given = {"budget": 40.0, "method": method, "learning_rate": 0.5, "clock": world.clock, "plan_options": options}
    return DeadlineStrategy(**given | more, record=folder)


@pytest.fixture(params=METHODS)
def deployment(request, tmp_path, monkeypatch):
    """Run on Flower with a record; one node is slow, and one never answers."""
    merges = []
    compute = OnFlower._compute

    def spy(self, merge):
        merges.append(merge)
        return compute(self, merge)

    monkeypatch.setattr(OnFlower, "_compute", spy)
    nodes = {i: Remembering(0.4 if i == 4 else 0.05, seed=i) for i in (1, 2, 3, 4)}
    if request.param != "wait":
        nodes[5] = Silent()
    world = World(nodes)
    result = strategy(world, request.param, tmp_path / "run").start(world, arrays(), num_rounds=ROUNDS)
    return request.param, world, merges, result, RunRecord.open(tmp_path / "run")


class Recorded(LoopEngine):
    """Delivers the updates that the nodes sent, in place of training."""

    def __init__(self, net, layers, samples, world, roster):
        super().__init__(net, layers, samples)
        self.world, self.roster, self.merge = world, roster, None

    def train(self, work, u, start, correction=None):
        devices = [u for a in self.merge.arrivals for u in a.tasks.devices.tolist()]
        node = self.world.nodes[self.roster[devices[u]]]
        update = node.sent[self.merge.arrivals[0].version + 1]
        return {n: torch.from_numpy(v) for n, v in update.items()}, {}, 0.0


def simulated(world, record):
    """Return the simulated backend, whose engine delivers recorded updates, and its model."""
    net, devices = model(), len(record.info.nodes)
    data = [torch.cat(parts) for parts in zip(*(world.nodes[i].data for i in (1, 2, 3, 4)), strict=True)]
    layers = given_layers(net, LAYERS)
    samples = Samples(*data)
    engine = Recorded(net, layers, samples, world, [int(n) for n in record.info.nodes])
    fleet = Fleet.of(1.0, 0.0, devices)
    partition = Partition.of([np.arange(256)[i::devices] for i in range(devices)], 256)
    return Simulated(Simulation(fleet, 0, 40.0), partition, Learner(net, layers, samples, engine), 0), net, engine


def replayed(world, method, record, backend=None):
    """Yield the steps of a replay; gradient statistics come from the record, as they do when a run is resumed."""
    fresh = strategy(world, method)._strategy(3, ROUNDS)
    loop = Loop(fresh, backend or simulated(world, record)[0], 40.0)
    past = [Reaction.from_json(entry) for entry in record.events]
    for step in loop.steps(past):
        yield step
        if step.version == len(record.rounds) - 1:
            return


def gradients(record, step):
    seen = record.rounds[step.version].gradients
    return None if seen is None else GradientStats.of(**seen)


def test_recorded_events_lead_to_the_same_decisions(deployment):
    method, world, merges, _, record = deployment
    from adelfl.runtime.backend import Computed

    count = 0
    for step, merge in zip(replayed(world, method, record), merges, strict=True):
        step.computed = Computed(None, gradients(record, step))
        row = record.rounds[step.version]
        assert [u for a in step.merge.arrivals for u in a.tasks.devices.tolist()] == list(row.devices)
        assert [n for a in step.merge.arrivals for n in a.tasks.batch.tolist()] == list(row.batch)
        for a, A, old, then in zip(step.merge.arrivals, step.merge.A, merge.arrivals, merge.A, strict=True):
            assert np.array_equal(A, then)
            assert a.tasks.cutoff == old.tasks.cutoff
            assert a.tasks.rate == old.tasks.rate
            assert (a.tasks.stop is None) == (old.tasks.stop is None)
            assert a.tasks.stop is None or np.array_equal(a.tasks.stop, old.tasks.stop)
            assert np.array_equal(a.z, old.z)
        count += 1
    assert count == len(record.rounds) - 1
    assert count >= 3


def test_the_simulated_backend_gives_the_same_weights_to_the_bit(deployment):
    method, world, _, result, record = deployment
    if method in ASYNCHRONOUS:
        pytest.skip("updates start from several versions; the merge itself is compared above")
    backend, net, engine = simulated(world, record)
    sgd, state = ServerStep(), {}
    for step in replayed(world, method, record, backend):
        engine.merge = step.merge
        step.merge.__dict__["spread"] = False  # the statistics are those of the record
        (compute,) = backend.prepare([step.merge])
        computed = compute()
        step.computed = type(computed)(computed.change, gradients(record, step))
        if computed.change is not None:
            with torch.no_grad():
                sgd.apply(dict(net.named_parameters()), computed.change.parameters, state)
    final = weights_of(result.arrays)
    assert any(not np.array_equal(final[n], v) for n, v in weights_of(arrays()).items())
    for name, p in net.named_parameters():
        assert np.array_equal(p.detach().numpy(), final[name]), name


def test_a_log_that_does_not_fit_the_strategy_is_one_sentence(deployment):
    method, world, _, _, record = deployment
    events = [entry for entry in record.events if entry["event"]["kind"] != "started"]
    fresh = strategy(world, method)._strategy(3, ROUNDS)
    loop = Loop(fresh, simulated(world, record)[0], 40.0)
    with pytest.raises(AdelError, match="does not fit the strategy"):
        list(loop.steps([Reaction.from_json(entry) for entry in events]))
