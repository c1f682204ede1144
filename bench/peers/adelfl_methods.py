"""Run adelfl's strategies, simulated backend and server steps on the history of arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import arrivals
import numpy as np
import torch
from torch import Tensor, nn

from adelfl import Problem
from adelfl.data import Partition
from adelfl.fleet import Fleet
from adelfl.runtime.codec import Plain, Uploads
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation.backend import Learner, Simulated
from adelfl.simulation.world import World
from adelfl.strategies import find_strategy
from adelfl.strategies.actions import Arrivals, Merge, Tasks, View
from adelfl.training.layers import given_layers
from adelfl.training.loop import LoopEngine
from adelfl.training.work import RoundWork, Samples


class Given(LoopEngine):
    """Engine that returns the changes of the history instead of training."""

    changes: dict[tuple[int, int], arrivals.Weights]

    def train(
        self, work: RoundWork, u: int, start: dict[str, Tensor], correction: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
        """Return the given change of a device, by the number of its task."""
        assert work.senders is not None
        number, device = work.senders[u].tolist()
        return {n: torch.from_numpy(v) for n, v in self.changes[number, device].items()}, {}, 0.0


class Program:
    """Run a strategy and a server step on the simulated backend, event by event."""

    def __init__(self, name: str = "wait", step: ServerStep | None = None, **options: Any) -> None:  # noqa: ANN401
        fleet, N = Fleet.of(1.0, 0.0, arrivals.DEVICES), arrivals.DEVICES
        self.net = nn.Linear(4, 3).double()
        self.net.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in arrivals.FIRST.items()})
        self.parameters = dict(self.net.named_parameters())
        layers = given_layers(self.net, [["weight", "bias"]])
        samples = Samples(torch.zeros(N, 4, dtype=torch.float64), torch.zeros(N, dtype=torch.int64))
        self.engine = Given(self.net, layers, samples)
        learner = Learner(self.net, layers, samples, self.engine, Uploads(Plain(), 0))
        partition = Partition.of([np.array([u]) for u in range(N)], N)
        self.backend = Simulated(World(fleet, 0, 1e6), partition, learner, 0)
        self.strategy = find_strategy(name)(Problem(fleet, 1, 1000, 1e6, 0.1, batch=1), **options)
        self.step, self.state, self.version = step or ServerStep(), dict[str, Any](), 0

    def merge(self, merge: Merge) -> arrivals.Weights:
        """Compute a merge and take the server's step."""
        (compute,) = self.backend.prepare([merge])
        change = compute().change
        assert change is not None
        with torch.no_grad():
            self.step.apply(self.parameters, change.parameters, self.state)
        self.version += 1
        return {name: p.detach().numpy().copy() for name, p in self.parameters.items()}


def event(devices: list[int], number: int, version: int, *, together: bool) -> Arrivals:
    u = np.array(devices)
    tasks = Tasks(u, np.ones(u.size, dtype=np.int64), 1, 0.1, together=together)
    return Arrivals(tasks, number, version, 0.0, np.ones(u.size, dtype=np.int64), np.ones(u.size), np.zeros(u.size))


def one_by_one(name: str, **options: object) -> list[arrivals.Weights]:
    program = Program(name, **options)
    program.engine.changes = {(k, u): arrivals.CHANGES[k] for k, u in enumerate(arrivals.ORDER)}
    program.backend.past.want(0, arrivals.DEVICES)
    started = dict.fromkeys(range(arrivals.DEVICES), 0)

    def deliver(k: int, u: int, start: arrivals.Weights) -> arrivals.Weights | None:
        view = View(float(k), 1e6, program.version, lambda k, size: np.arange(arrivals.DEVICES))
        actions = program.strategy.react(view, event([u], k, started[u], together=False))
        merged = None if actions.merge is None else program.merge(actions.merge)
        started[u] = program.version
        program.backend.past.want(program.version, 1)
        return merged

    return arrivals.asynchronous(deliver)


def rounds(step: ServerStep) -> list[arrivals.Weights]:
    program, everyone = Program(step=step), list(range(arrivals.DEVICES))
    program.engine.changes = {(t, u): c for t, of in enumerate(arrivals.ROUND_CHANGES) for u, c in enumerate(of)}
    A = np.full((arrivals.DEVICES, 1), 1 / arrivals.DEVICES)
    return [program.merge(Merge((event(everyone, t, t, together=True),), (A,))) for t in range(arrivals.ROUNDS)]


mixing, server = arrivals.MIXING, arrivals.SERVER
a, b = arrivals.HINGE
arrivals.write(
    {
        "fedasync constant": one_by_one("fedasync", mixing=mixing, staleness="constant"),
        "fedasync polynomial": one_by_one("fedasync", mixing=mixing, staleness_rate=arrivals.DECAY),
        "fedasync hinge": one_by_one("fedasync", mixing=mixing, staleness="hinge", staleness_rate=a, staleness_free=b),
        "fedbuff": one_by_one("fedbuff", buffer=arrivals.BUFFER),
        "fedavgm": rounds(ServerStep("momentum", lr=1.0, beta1=server["beta1"])),
        "fedadam": rounds(ServerStep("adam", **server)),
        "fedyogi": rounds(ServerStep("yogi", **server)),
    }
)
