"""A world of Flower nodes on a virtual clock: the real strategy, the real client, a grid in memory."""

from __future__ import annotations

import sys

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import nn

from adelfl.flower.client import train
from adelfl.flower.protocol import Task

try:  # since flwr 1.41 messages are made on behalf of a task
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    pass
else:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class VirtualClock:
    """A clock that stands still until it is told to sleep, and then jumps."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Jump to ``moment``; time never runs backwards."""
        self._now = max(self._now, moment)


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.third(torch.relu(self.second(torch.relu(self.first(x)))))


def model(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def arrays(module=None):
    return ArrayRecord({n: Array(v.detach().numpy()) for n, v in (module or model()).state_dict().items()})


def weights_of(record):
    return {name: array.numpy() for name, array in record.items()}


class TickingClock:
    """Every look at it takes so many seconds: a client looks when it starts, at a batch, and after every layer."""

    def __init__(self, tick):
        self.tick, self.time = tick, 0.0

    def now(self):
        self.time += self.tick
        return self.time

    def sleep_until(self, moment):
        raise AssertionError("clients do not sleep")


class LayerClock(TickingClock):
    """Time passes while a layer is computed: when the client asks whether it should stop."""

    def now(self):
        return super().now() if sys._getframe(2).f_code.co_name == "_should_stop" else self.time


class Being:
    """A node: it computes with a speed, after a lag; subclasses misbehave."""

    def __init__(self, seconds_per_layer=0.01, lag=0.1, seed=0):
        self.seconds_per_layer, self.lag, self.seed = seconds_per_layer, lag, seed
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(64, 4)).astype(np.float32)
        self.data = (torch.from_numpy(x), torch.from_numpy((x[:, :3].argmax(1)).astype(np.int64)))
        self.asked = []

    def answer(self, message):
        """The reply, and after how many seconds it arrives; None for never."""
        task = Task.read(message.content["config"])
        self.asked.append(task)
        clock = LayerClock(self.seconds_per_layer * task.batch / 16)
        rng = np.random.default_rng([self.seed, task.round])
        reply = train(message, Net(), self.data, clock=clock, rng=rng)
        return self.spoil(reply), self.lag + clock.time

    def spoil(self, reply):
        return reply


class Silent(Being):
    def answer(self, message):
        self.asked.append(Task.read(message.content["config"]))
        return


class Failing(Being):
    def answer(self, message):
        self.asked.append(Task.read(message.content["config"]))
        return Message(Error(2, "ClientApp raised an exception"), reply_to=message), 0.05


class Spoiling(Being):
    """Changes what it sends from a round on."""

    def __init__(self, change, first=2, **more):
        super().__init__(**more)
        self.change, self.first = change, first

    def spoil(self, reply):
        if reply.content["metrics"]["adelfl-round"] < self.first:
            return reply
        found = {name: array.numpy().copy() for name, array in reply.content["arrays"].items()}
        metrics = dict(reply.content["metrics"])
        found, metrics = self.change(found, metrics)
        record = ArrayRecord({name: v if isinstance(v, Array) else Array(v) for name, v in found.items()})
        reply.content = RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})
        return reply


class World(Grid):
    """Nodes by number; replies are there when their time has come."""

    def __init__(self, nodes, clock=None):
        self.nodes = dict(nodes)
        self.clock = clock or VirtualClock()
        self.waiting = {}
        self.count = 0
        self.gone = set()

    run = None

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("polls every 3 s: not to be used")

    def get_node_ids(self):
        return [n for n in self.nodes if n not in self.gone]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            message.metadata.__dict__["_run_id"] = 1
            ids.append(str(self.count))
            found = self.nodes[message.metadata.dst_node_id].answer(message)
            if found is not None:
                reply, after = found
                self.waiting[str(self.count)] = (self.clock.now() + after, reply)
        return ids

    def pull_messages(self, message_ids):
        ready = [i for i in message_ids if i in self.waiting and self.waiting[i][0] <= self.clock.now() + 1e-9]
        return [self.waiting.pop(i)[1] for i in ready]
