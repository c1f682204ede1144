"""On Flower, too, a batch is at most the data of its node, and the plan knows it."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from adelfl.flower import DeadlineStrategy
from adelfl.flower.client import Job
from adelfl.flower.protocol import Task
from support.flower_world import Being, World, arrays, model

LAYERS = tuple((f"{name}.weight", f"{name}.bias") for name in ("first", "second", "third"))


class Small(Being):
    """A node of twelve samples."""

    def __init__(self, **more):
        super().__init__(**more)
        self.data = tuple(part[:12] for part in self.data)


def asked_in(world: World, **options) -> tuple[DeadlineStrategy, dict[int, list[int]]]:
    """Run four rounds with plenty of time; the batches that each node was asked for after it was measured."""
    strategy = DeadlineStrategy(budget=400.0, clock=world.clock, **options)
    strategy.start(world, arrays(), num_rounds=4)
    return strategy, {n: [task.batch for task in node.asked if task.round > 1] for n, node in world.nodes.items()}


def world() -> World:
    return World({1: Being(seed=1), 2: Small(seed=2), 3: Being(seed=3)})


@pytest.mark.parametrize("method", ["adel", "adel-paper", "salf"])
def test_no_node_is_asked_for_more_than_it_holds(method):
    strategy, asked = asked_in(world(), method=method)
    assert max(asked[2]) <= 12
    assert max(asked[1]) <= 64
    setting = strategy.run.strategy.method.problem
    assert setting.held.tolist() == [64.0, 12.0, 64.0]
    if method != "salf":
        assert asked[2][0] == 12


def test_on_request_samples_repeat():
    strategy, asked = asked_in(world(), method="salf", oversample=True)
    assert set(asked[2]) == {16}
    assert strategy.run.strategy.method.problem.held is None


@pytest.mark.parametrize(("oversample", "drawn"), [(False, 12), (True, 40)])
def test_a_client_draws_what_its_task_says(oversample, drawn):
    task = Task(1, 40, 1, 0.1, math.inf, LAYERS, (), oversample)
    content = RecordDict({"arrays": arrays(), "config": ConfigRecord(task.write())})
    message = Message(content, dst_node_id=1, message_type="train")
    job = Job(message, model(), rng=np.random.default_rng(0))
    x, _ = next(iter(job.batches(Small().data)))
    assert len(x) == drawn
    assert Task.read(task.write()) == task


def test_a_task_of_an_older_server_does_not_oversample():
    values = Task(1, 16, 1, 0.1, 1.0, LAYERS).write()
    values.pop("adelfl-oversample")
    assert not Task.read(values).oversample
