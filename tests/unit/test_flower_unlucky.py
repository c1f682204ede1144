"""Runs on Flower that meet bad luck: several crashes, lost messages, late and lying nodes, ids of 64 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from adelfl.errors import ConfigError
from adelfl.flower import DeadlineStrategy, train
from adelfl.flower.backend import OnFlower
from adelfl.flower.exchange import Exchange
from adelfl.flower.protocol import Task
from adelfl.records.reader import RunRecord
from adelfl.updates import NormGuard, Shape
from support.flower_world import Being, LayerClock, Net, Silent, VirtualClock, World, arrays, weights_of

METHODS = ("adel", "salf", "drop", "wait")


def strategy(world, budget=60.0, **more):
    return DeadlineStrategy(**{"budget": budget, "learning_rate": 0.5, "clock": world.clock} | more)


def nodes(kind=Being, count=4, tick=0.05, **more):
    return {i: kind(tick, seed=i, **more) for i in range(1, count + 1)}


class Until(VirtualClock):
    """Calls a function whenever time has passed."""

    def __init__(self, passed):
        super().__init__()
        self.passed = passed

    def sleep_until(self, moment):
        super().sleep_until(moment)
        self.passed(self.now())


class Killed(BaseException):
    """What a server dies of."""


def dies_in(round):
    def evaluate(number, _):
        if number == round:
            raise Killed

    return evaluate


@pytest.mark.parametrize("method", ["adel", "fedbuff"])
def test_a_run_survives_two_crashes(method, tmp_path):
    world = World(nodes())
    options = {"buffer": 2} if method == "fedbuff" else {}

    def start(round):
        s = strategy(world, method=method, record=tmp_path / "run", plan_options=options)
        s.start(world, arrays(), num_rounds=12, evaluate_fn=dies_in(round))

    for round in (2, 5):
        with pytest.raises(Killed):
            start(round)
    start(99)
    assert [row.round for row in RunRecord.open(tmp_path / "run").rounds] == list(range(13))
    assert RunRecord.open(tmp_path / "run").result.abandoned == 0


class Learned(Being):
    """Has learned its data in round 3, so that its updates become small."""

    def spoil(self, reply):
        if self.asked[-1].round > 2:
            small = {n: Array(a.numpy() * np.float32(1e-3)) for n, a in reply.content["arrays"].items()}
            reply.content["arrays"] = ArrayRecord(small)
        return reply


def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(tmp_path):
    def start(name, round):
        s = strategy(world, method="salf", record=tmp_path / name)
        s.start(world, arrays(), num_rounds=8, evaluate_fn=dies_in(round))

    for name, rounds in (("whole", [99]), ("resumed", [6, 99])):
        world = World(nodes(Learned, count=3) | {4: Being(0.05, seed=4)})
        for round in rounds[:-1]:
            with pytest.raises(Killed):
                start(name, round)
            world.clock.sleep_until(world.clock.now() + 1.0)  # the killed server's messages are answered
        start(name, rounds[-1])
    whole, resumed = (RunRecord.open(tmp_path / name) for name in ("whole", "resumed"))
    assert [row.rejected for row in resumed.rounds] == [row.rejected for row in whole.rounds] == [{}] * 9
    assert resumed.result.time_use["computing"] == pytest.approx(whole.result.time_use["computing"], rel=0.1)


class Echoing(World):
    """Gives every reply twice, and one that answers no message of the server."""

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        for reply in replies:
            stray = Message(reply.content, dst_node_id=1, message_type="train")
            stray.metadata.__dict__["_reply_to_message_id"] = "of another server"
            replies = [*replies, reply, stray]
        return replies


def test_a_second_reply_and_a_reply_to_no_message_are_ignored():
    results = []
    for world in (World(nodes()), Echoing(nodes())):
        result = strategy(world, method="salf").start(world, arrays(), num_rounds=4)
        results.append(weights_of(result.arrays))
    for name, value in results[0].items():
        assert np.array_equal(value, results[1][name])
        assert not np.array_equal(value, weights_of(arrays())[name])


def test_a_norm_limit_that_would_reject_the_median_is_refused():
    with pytest.raises(ConfigError, match="norm_limit must be above 1"):
        DeadlineStrategy(budget=1.0, norm_limit=0.5)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"method": "salf", "plan_options": {}}, "strategy = fedbuff, not salf"),
        ({"plan_options": {"buffer": 3}}, r"options = \{'buffer': 2\}, not \{'buffer': 3\}"),
        ({"learning_rate": 0.1}, "learning_rate = 0.5, not 0.1"),
    ],
)
def test_a_run_is_not_continued_with_other_settings(other, message, tmp_path):
    world = World(nodes())
    given = {"method": "fedbuff", "plan_options": {"buffer": 2}, "record": tmp_path / "run"}
    with pytest.raises(Killed):
        strategy(world, **given).start(world, arrays(), num_rounds=6, evaluate_fn=dies_in(3))
    with pytest.raises(ConfigError, match=f"begun with {message}"):
        strategy(world, **given | other).start(world, arrays(), num_rounds=6)
    strategy(world, **given, norm_limit=20.0).start(world, arrays(), num_rounds=6)


@pytest.mark.parametrize("at", [12.0, 32.0])
def test_time_spent_waiting_for_nodes_does_not_shorten_the_rounds_further(at):
    world = World(nodes(), Until(lambda now: world.gone.clear() if now >= at else None))
    world.gone = {1, 2, 3, 4}
    result = strategy(world).start(world, arrays(), num_rounds=8)
    assert len(result.train_metrics_clientapp) == 8
    assert world.clock.now() <= 60.0


class Evaluating(Being):
    def answer(self, message):
        if message.metadata.message_type == "evaluate":
            content = RecordDict({"metrics": MetricRecord({"num-examples": 1, "accuracy": 1.0})})
            return Message(content, reply_to=message), 0.1
        return super().answer(message)


def test_the_idle_nodes_of_a_large_deployment_are_found_without_comparing_all_pairs():
    compared = []

    class Id(int):
        def __eq__(self, other):
            compared.append(other)
            return int(self) == int(other)

        __hash__ = int.__hash__

    world = World({Id(2**63 + i): None for i in range(500)})
    shape = Shape.of(weights_of(arrays()), [["first.weight"]])
    backend = OnFlower(Exchange(world, world.clock), shape, None, strategy(world))
    for _ in range(2):
        assert backend.cohort(0, None).tolist() == list(range(500))
    assert len(compared) < 10_000


def test_evaluation_at_nodes_works_with_unsigned_ids():
    world = World({n: Evaluating(0.05, seed=i) for i, n in enumerate((5, 2**63 + 999, 2**63 + 12345))})
    result = strategy(world, fraction_evaluate=1.0).start(world, arrays(), num_rounds=3)
    assert len(result.evaluate_metrics_clientapp) == 3


def test_evaluation_at_nodes_has_time_if_the_number_of_merges_is_not_given():
    world = World(nodes(Evaluating, tick=0.2))
    s = strategy(world, method="fedbuff", plan_options={"buffer": 4}, fraction_evaluate=1.0)
    result = s.start(world, arrays(), num_rounds="auto")
    assert len(result.evaluate_metrics_clientapp) >= len(result.train_metrics_clientapp) - 1


def test_an_opening_round_that_was_too_long_for_everybody_is_repeated_with_less_work():
    world = World(nodes(tick=10.0))
    result = strategy(world).start(world, arrays(), num_rounds=8)
    assert len(result.train_metrics_clientapp) >= 3
    assert world.nodes[1].asked[1].batch < world.nodes[1].asked[0].batch


@pytest.mark.parametrize("method", ["adel", "fedbuff"])
def test_first_messages_that_are_lost_are_sent_again(method):
    class Deaf(Being):
        def answer(self, message):
            reply = super().answer(message)
            return None if len(self.asked) == 1 else reply

    world = World(nodes(Deaf))
    result = strategy(world, budget=3600.0, method=method).start(world, arrays(), num_rounds=8)
    assert len(result.train_metrics_clientapp) >= 7


def test_a_node_that_works_until_the_opening_round_stops_it_is_asked_only_once():
    world = World(nodes(count=2) | {3: Being(40.0, lag=5.0, seed=3)})  # stopped after 100 s
    strategy(world, budget=1000.0, method="salf", local_iterations=10).start(world, arrays(), num_rounds=4)
    assert [task.round for task in world.nodes[3].asked].count(1) == 1


def test_a_node_that_never_answers_is_asked_for_less_and_less_often():
    calls = []

    class Counting(World):
        def pull_messages(self, message_ids):
            calls.append(self.clock.now())
            return super().pull_messages(message_ids)

    world = Counting({1: Silent()})
    exchange = Exchange(world, world.clock)
    exchange.patience = 10.0
    task = Task(1, 16, 1, 0.1, 10.0, (("first.weight",),))
    content = RecordDict({"config": ConfigRecord(task.write())})
    exchange.send([Message(content, dst_node_id=1, message_type="train")])
    while world.clock.now() < 1000.0:
        assert exchange.replies() == []
        world.clock.sleep_until(world.clock.now() + 0.25)
    assert sum(t <= 10.0 for t in calls) == 41  # at every poll, as long as an answer is expected
    assert sum(t > 500.0 for t in calls) <= 8


def test_waiting_for_everybody_goes_on_after_errors_and_failed_calls():
    class Flaky(World):
        calls = 0

        def push_messages(self, messages):
            self.calls += 1
            if self.calls == 4:
                raise ConnectionError("reset")
            return super().push_messages(list(messages))

    class Glitch(Being):
        def answer(self, message):
            reply = super().answer(message)
            return (Message(Error(2, "x"), reply_to=message), 0.05) if len(self.asked) == 4 else reply

    for world in (Flaky(nodes()), World(nodes(Glitch))):
        result = strategy(world, method="wait", budget=600.0).start(world, arrays(), num_rounds=20)
        assert len(result.train_metrics_clientapp) == 19


@pytest.mark.parametrize("method", METHODS)
def test_a_node_that_comes_when_there_is_no_time_for_a_new_plan_does_no_harm(method):
    world = World(nodes(count=5, lag=3.0), Until(lambda now: world.gone.clear() if now >= 58 else None))
    world.gone = {5}

    def outage(number, _):
        if number == 3:
            world.gone = {1, 2, 3, 4, 5}

    result = strategy(world, method=method).start(world, arrays(), num_rounds=8, evaluate_fn=outage)
    assert len(result.train_metrics_clientapp) >= 3


@pytest.mark.parametrize(
    "lie",
    [
        {"adelfl-compute": 1e-9},
        {"adelfl-compute": 5e-324},
        {"adelfl-pair": [1e300] * 3},
        {"adelfl-steps": [1e308, 2.0, 0.1, 0.01]},
        {"adelfl-steps": [16.0, 2.0, 1e-300, 0.0]},
    ],
)
def test_a_lie_of_one_node_does_not_starve_the_others(lie):
    class Liar(Being):
        def spoil(self, reply):
            if len(self.asked) == 1:
                reply.content["metrics"] = MetricRecord(dict(reply.content["metrics"]) | lie)
            return reply

    world = World(nodes() | {4: Liar(0.05, seed=4)})
    result = strategy(world).start(world, arrays(), num_rounds=20)
    assert len(result.train_metrics_clientapp) == 20
    assert np.mean([task.batch for task in world.nodes[1].asked]) > 16


def test_a_step_that_is_interrupted_for_long_does_not_end_the_run():
    class Suspended(Being):
        def spoil(self, reply):
            steps = np.append(np.full(99, 0.01), 3.0)  # a pause of three seconds
            reported = [16.0, 100.0, float(steps.mean()), float(steps.var(ddof=1))]
            reply.content["metrics"] = MetricRecord(dict(reply.content["metrics"]) | {"adelfl-steps": reported})
            return reply

    world = World(nodes(tick=1.0) | {4: Suspended(1.0, seed=4)})
    result = strategy(world, budget=100.0).start(world, arrays(), num_rounds=10)
    assert len(result.train_metrics_clientapp) == 10


def test_no_messages_pile_up_at_a_node_that_was_away():
    class Cut(Being):
        free = 0.0

        def answer(self, message):
            reply, after = super().answer(message)
            now = world.clock.now()
            self.free = max(self.free, 500.0 if 100 < now < 500 else now) + after
            return reply, self.free - now

    world = World(nodes(tick=1.0) | {4: Cut(1.0, seed=4)})
    s = strategy(world, budget=1000.0, method="fedbuff", plan_options={"buffer": 3})
    waiting = []

    def look(number, _):
        sent = s.run.backend.exchange._open.values()
        waiting.append((world.clock.now(), sum(node == 4 for node, _ in sent)))

    s.start(world, arrays(), num_rounds=2000, evaluate_fn=look)
    assert max(count for _, count in waiting) <= 4
    assert max(count for now, count in waiting if now > 600) <= 1


def test_a_quick_node_with_small_updates_does_not_lock_the_others_out():
    class Small(Being):
        def spoil(self, reply):
            small = {n: Array(a.numpy() * np.float32(1e-3)) for n, a in reply.content["arrays"].items()}
            reply.content["arrays"] = ArrayRecord(small)
            return reply

    world = World(nodes(count=3, tick=1.0) | {4: Small(0.01, seed=4)})
    s = strategy(world, budget=100.0, method="fedbuff", plan_options={"buffer": 2})
    s.start(world, arrays(), num_rounds="auto")
    assert sum(s.run.backend.rejected.values()) == 0


def test_the_norms_of_a_single_update_are_computed_once_and_its_changes_are_not_kept(monkeypatch):
    measured, norms = [], NormGuard.norms
    monkeypatch.setattr(NormGuard, "norms", lambda guard, changes: measured.append(1) or norms(guard, changes))
    world = World(nodes(count=8))
    s = strategy(world, method="fedbuff", plan_options={"buffer": 4})
    s.start(world, arrays(), num_rounds=20)
    assert len(measured) <= sum(len(node.asked) for node in world.nodes.values())
    assert {type(norm) for norms in s.run.backend._recent.values() for norm in norms} == {float}


def test_a_method_hears_of_every_merge_even_if_nodes_are_away_for_a_moment():
    class Harmonic:
        def values(self, rounds):
            return 1.0 / np.arange(1, rounds + 1)

    def passed(now):
        if world.gone and now >= world.back:
            world.gone = set()

    world = World(nodes(tick=2.0), Until(passed))

    def leave(number, _):
        if number in (3, 5):
            world.gone, world.back = {1, 2, 3, 4}, world.clock.now() + 0.3

    s = strategy(world, budget=100.0, learning_rate=Harmonic())
    s.start(world, arrays(), num_rounds=8, evaluate_fn=leave)
    assert [round(1 / task.rate) for task in world.nodes[1].asked] == [task.round for task in world.nodes[1].asked]


def test_one_node_that_is_left_is_not_held_up_in_every_round():
    world = World(nodes() | {i: Silent() for i in (2, 3, 4)})
    world.nodes |= {2: Being(0.05, seed=2)}

    def leave(number, _):
        if number == 2:
            world.gone = {2, 3, 4}

    result = strategy(world, method="salf").start(world, arrays(), num_rounds=30, evaluate_fn=leave)
    assert len(result.train_metrics_clientapp) >= 25


def test_an_average_of_iterates_leaves_running_statistics_alone():
    from test_flower import Normed, Norming

    world = World({i: Norming(0.01, seed=i) for i in (1, 2, 3)})
    result = strategy(world, method="salf", server_step="average").start(world, arrays(Normed()), num_rounds=3)
    final = weights_of(result.arrays)
    sent = np.mean([node.sent["norm.running_mean"] for node in world.nodes.values()], axis=0)
    assert final["norm.running_mean"] == pytest.approx(sent, rel=1e-5)
    assert final["norm.num_batches_tracked"].dtype == np.int64


def test_an_average_of_iterates_leaves_arrays_outside_the_layers_alone():
    class Masked(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.ones(4, dtype=torch.bool))

    class Masking(Being):
        def answer(self, message):
            return train(message, Masked(), self.data, clock=LayerClock(self.seconds_per_layer)), self.lag + 0.2

    world = World({i: Masking(0.02, seed=i) for i in (1, 2, 3)})
    layers = [[f"{name}.weight", f"{name}.bias"] for name in ("first", "second", "third")]
    s = strategy(world, learning_rate=3.0, layers=layers)  # so high that the average has less loss
    result = s.start(world, arrays(Masked()), num_rounds=10)
    assert s.run.state()["first.weight"].tolist() != weights_of(result.arrays)["first.weight"].tolist()
    assert result.arrays["mask"].numpy().all()
    assert not any("mask" in name for name in s.run.server)
