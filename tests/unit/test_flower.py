"""ADEL-FL on Flower, on a virtual clock: the real strategy and client, nodes that behave and nodes that do not."""

from __future__ import annotations

import inspect
import logging
import math
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from datetime import timedelta

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result
from rich.console import Console
from torch import nn

from adelfl.errors import AdelError, ConfigError
from adelfl.flower import DeadlineStrategy, Job, train
from adelfl.flower.protocol import Report, Task
from adelfl.flower.replies import Delivery, gradient_stats
from adelfl.learning_rate import ConstantRate
from adelfl.planner.beliefs import Beliefs, Timing
from adelfl.records.reader import RunRecord
from adelfl.report.terminal import print_run
from adelfl.runner import resume
from adelfl.runtime.reactions import of_devices
from adelfl.strategies import find_strategy
from adelfl.strategies.actions import Arrivals, Merged, Started, View
from adelfl.strategies.deployment import MOST_CORRECTION, Deployment
from adelfl.strategies.deployment_planner import DeploymentPlanner, Settings
from adelfl.strategies.reports import Reports
from adelfl.updates import Shape
from support.flower_world import (
    Being,
    Failing,
    LayerClock,
    Net,
    Silent,
    Spoiling,
    TickingClock,
    VirtualClock,
    World,
    arrays,
    model,
    weights_of,
)

LAYERS = (("first.weight", "first.bias"), ("second.weight", "second.bias"), ("third.weight", "third.bias"))
METHODS = ("adel", "adel-paper", "salf", "drop", "wait")
PAPERS = ("fedprox", "fednova", "anytime", "timelyfl", "over-selection", "fedcs", "oort")
EVERY = (*METHODS, *PAPERS, "fedbuff", "fedasync", "fedcompass")


def strategy(world, budget=60.0, **more):
    return DeadlineStrategy(**{"budget": budget, "learning_rate": 0.5, "clock": world.clock} | more)


def beings(slow=8.0, tick=0.05):
    return {i: Being(tick * (slow if i == 4 else 1.0), seed=i) for i in (1, 2, 3, 4)}


def run(nodes, rounds=8, **more):
    world = World(nodes)
    module = Normed() if any(isinstance(node, Norming) for node in nodes.values()) else None
    result = strategy(world, **more).start(world, arrays(module), num_rounds=rounds)
    return world, result


class Killed(Exception):
    """What a server dies of."""


def dies_in(round):
    """An evaluate_fn that kills the server after a round was merged and before it was kept."""

    def evaluate(number, _):
        if number == round:
            raise Killed

    return evaluate


def differ(one, other):
    return [n for n in one if not np.array_equal(one[n], other[n])]


# -- a drop-in


def test_it_takes_fedavgs_keyword_arguments():
    mine = inspect.signature(DeadlineStrategy.__init__).parameters
    assert set(inspect.signature(FedAvg.__init__).parameters) <= set(mine)
    assert list(inspect.signature(DeadlineStrategy.start).parameters) == list(
        inspect.signature(FedAvg.start).parameters
    )


@pytest.mark.parametrize("method", EVERY)
def test_every_method_trains_within_the_budget(method):
    options = {"buffer": 2} if method == "fedbuff" else {}
    world, result = run(beings(), rounds=20, method=method, plan_options=options)
    assert isinstance(result, Result)
    assert world.clock.now() <= 60.0
    losses = [m["train-loss"] for m in result.train_metrics_clientapp.values()]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert differ(weights_of(arrays()), weights_of(result.arrays))


def test_a_slow_node_is_asked_for_less_and_delivers_every_round():
    world, _ = run(beings(), rounds=10, budget=30.0)
    slow, quick = world.nodes[4].asked[1:], world.nodes[1].asked[1:]
    assert len(slow) == 9
    assert all(one.batch <= other.batch for one, other in zip(slow, quick, strict=True))
    assert np.mean([t.batch for t in slow]) < np.mean([t.batch for t in quick])


def test_options_reach_the_method_and_wrong_ones_are_one_sentence():
    world = World(beings())
    s = strategy(world, method="salf", plan_options={"correction": "none"})
    s.start(world, arrays(), num_rounds=2)
    assert s.run.strategy.label == "salf (no correction)"
    with pytest.raises(ConfigError, match="method must be one of"):
        DeadlineStrategy(budget=1, method="fedavg")
    with pytest.raises(ConfigError, match="budget must be a positive"):
        DeadlineStrategy(budget=math.inf)
    for wrong in ({"budget": "600"}, {"batch": 2.5}, {"local_iterations": "all"}, {"min_reports": True}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be"):
            DeadlineStrategy(**{"budget": 1.0} | wrong)
    with pytest.raises(AdelError, match="call its start method"):
        list(DeadlineStrategy(budget=1).configure_train(1, arrays(), ConfigRecord(), world))


def test_the_users_configuration_and_evaluation_are_passed_on():
    world = World(beings())
    seen = []

    def evaluate(number, record):
        seen.append(number)
        world.clock.sleep_until(world.clock.now() + 0.5)
        return MetricRecord({"accuracy": 0.5})

    config = ConfigRecord({"my-key": 7})
    result = strategy(world, budget=30).start(world, arrays(), num_rounds=5, train_config=config, evaluate_fn=evaluate)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert list(result.evaluate_metrics_serverapp) == seen
    assert world.clock.now() <= 30.0  # the evaluations are the budget's time too


# -- learning while it trains


class Throttled(Being):
    """Becomes three times slower after some messages."""

    def answer(self, message):
        if len(self.asked) == 8:
            self.seconds_per_layer *= 3
        return super().answer(message)


def test_the_plan_learns_of_a_node_that_is_throttled_and_keeps_the_budget():
    nodes = beings(slow=1.0) | {1: Throttled(0.05, seed=1)}
    world = World(nodes)
    s = strategy(world, method="adel", budget=20.0)
    s.start(world, arrays(), num_rounds=25)
    assert world.clock.now() <= 20.0
    P = s.run.strategy.beliefs.compute(np.arange(4))
    assert s.run.backend.roster == [1, 2, 3, 4]
    assert P[0] < 0.7 * P[1:].min()
    throttled, other = world.nodes[1].asked, world.nodes[2].asked
    assert np.mean([t.batch for t in throttled[-4:]]) < 0.75 * np.mean([t.batch for t in other[-4:]])
    assert throttled[3].batch == other[3].batch


def test_a_new_plan_begins_with_what_the_old_one_learned():
    world = World(beings(slow=4.0))
    world.gone = {2}

    class Arriving(VirtualClock):
        def sleep_until(self, moment):
            super().sleep_until(moment)
            world.gone = set() if self.now() > 30 else {2}

    world.clock = Arriving()
    s = strategy(world, method="adel")
    plans = []
    plan = DeploymentPlanner.plan

    def spy(self, view):
        older = self.method
        planned = plan(self, view)
        plans.append((self.method, self.method.problem.devices, self.beliefs))
        assert older is None or self.method.spread is older.spread
        return planned

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeploymentPlanner, "plan", spy)
        s.start(world, arrays(), num_rounds=25)
    (first, before, beliefs), (last, after, same) = plans[0], plans[-1]
    assert (before, after) == (3, 4)
    assert first is not last
    assert beliefs is same is last.beliefs
    P = same.compute(np.arange(4))  # devices are numbered as they appear: nodes 1, 3, 4, 2
    assert P[2] < 0.5 * P[[0, 1, 3]].min()


def test_rounds_and_steps_may_be_chosen_and_rounds_go_on_until_the_end():
    nodes = {i: Being(0.02, lag=2.0, seed=i) for i in (1, 2, 3)} | {4: Being(0.2, lag=2.0, seed=4)}
    world = World(nodes)
    result = strategy(world, local_iterations="auto", learning_rate=0.1).start(world, arrays(), num_rounds="auto")
    assert 54.0 <= world.clock.now() <= 60.0
    assert 4 <= len(result.train_metrics_clientapp) < 25  # each has two seconds of lag
    assert max(task.iterations for task in world.nodes[1].asked[1:]) > 5
    with pytest.raises(ConfigError, match="needs a number of local_iterations"):
        strategy(world, method="fedbuff", local_iterations="auto").start(world, arrays())
    with pytest.raises(ConfigError, match="num_rounds must be at least 1"):
        strategy(world).start(world, arrays(), num_rounds=0)


def updates(rng, rate, depths, batches, names=LAYERS):
    """Random updates of some nodes, which came so far; as gradients, by node and layer, too."""
    shapes = {name: array.shape for name, array in weights_of(arrays()).items()}
    deliveries, own = [], []
    for depth, batch in zip(depths, batches, strict=True):
        changes = {m: rate * rng.normal(size=shapes[m]) for layer in names[len(names) - depth :] for m in layer}
        own.append({l: np.concatenate([changes[m].ravel() / rate for m in layer])
                    for l, layer in enumerate(names) if layer[0] in changes})  # fmt: skip
        report = Report(1, depth, 0.1, 0.2, 0.0, 0.3, (), 16, 64, pair=(0.5, 0.25, 0.125))
        deliveries.append(Delivery(changes, depth, report, None, {}, batch, 0.3, {}))
    return deliveries, own


def test_gradient_statistics_come_from_the_updates_of_a_round():
    shape = Shape.of(weights_of(arrays()), LAYERS)
    batches = [16, 8, 4, 2]
    deliveries, own = updates(np.random.default_rng(3), 0.1, (3, 3, 3, 1), batches)
    stats = gradient_stats(deliveries, shape, 0.1, 1)
    for l, pair in enumerate((0.5, 0.25, 0.125)):
        g = np.array([one[l] for one in own if l in one])
        who = [n for n, one in zip(batches, own, strict=True) if l in one]
        sigma2 = np.median([n / 2 * pair for n in batches])
        between = np.square(g - g.mean(0)).sum() / (len(g) - 1)
        assert stats.sigma2[l] == pytest.approx(sigma2)
        assert stats.zeta2[l] == pytest.approx(between - sigma2 * np.mean([1 / n for n in who]))
        assert stats.norm2[l] == pytest.approx(np.square(g.mean(0)).sum() - between / len(g))


def test_the_mean_of_several_steps_counts_as_one_gradient_of_as_many_samples():
    shape = Shape.of(weights_of(arrays()), LAYERS)
    deliveries, _ = updates(np.random.default_rng(3), 0.1, (3, 3, 3), [80] * 3)
    steps = [
        replace(d, changes={name: 5 * change for name, change in d.changes.items()}, done=15, batch=16)
        for d in deliveries
    ]
    one, five = gradient_stats(deliveries, shape, 0.1, 1), gradient_stats(steps, shape, 0.1, 5)
    assert five.norm2 == pytest.approx(one.norm2)
    assert five.zeta2 + five.sigma2 / 80 == pytest.approx(one.zeta2 + one.sigma2 / 80)


def test_a_new_node_reports_how_far_its_first_two_gradients_are_apart():
    message = task_message(iterations=2)
    net = model()
    rng = np.random.default_rng(4)
    reply = train(message, net, DATA, rng=rng)
    pair = reply.content["metrics"]["adelfl-pair"]
    assert len(pair) == 3
    rng, start = np.random.default_rng(4), model()
    gradients = []
    for _ in range(2):
        rows = torch.from_numpy(rng.choice(64, size=16, replace=False))
        start.zero_grad()
        nn.functional.cross_entropy(start(DATA[0][rows]), DATA[1][rows]).backward()
        gradients.append({name: p.grad.clone() for name, p in start.named_parameters()})
        with torch.no_grad():
            for p in start.parameters():
                p -= 0.1 * p.grad
    for l, layer in enumerate(LAYERS):
        apart = sum(float((gradients[0][n] - gradients[1][n]).square().sum()) for n in layer)
        assert pair[l] == pytest.approx(apart, rel=1e-4)
    known = train(task_message(iterations=2, pace=(1e-3,) * 3), model(), DATA)
    assert known.content["metrics"]["adelfl-pair"] == []


# -- time


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("skew", [-3600, 3600])
def test_wall_clocks_an_hour_off_change_nothing(method, skew, monkeypatch):
    import flwr.app.message.message as module

    _, right = run(beings(), rounds=5, method=method)
    true_now = module.now
    replies = []

    class Skewed(Being):
        def answer(self, message):
            monkeypatch.setattr(module, "now", lambda: true_now() + timedelta(seconds=skew))
            found = super().answer(message)
            monkeypatch.setattr(module, "now", true_now)
            replies.append(found[0])
            return found

    nodes = {i: Skewed(being.seconds_per_layer, seed=i) for i, being in beings().items()}
    _, wrong = run(nodes, rounds=5, method=method)
    assert not differ(weights_of(right.arrays), weights_of(wrong.arrays))
    assert all(reply.metadata.ttl > 0 for reply in replies)  # Flower refuses a reply that has none left


class Cut(Being):
    """Not reachable from one moment of the world's clock to another: messages wait, replies come afterwards."""

    def __init__(self, begin, end, **more):
        super().__init__(**more)
        self.begin, self.end, self.world = begin, end, None

    def answer(self, message):
        now = self.world.clock.now()
        reply, after = super().answer(message)
        arrives = now + after
        return reply, (self.end - now + after if arrives > self.begin and now < self.end else after)


def test_a_node_that_was_cut_off_comes_back_and_queues_nothing():
    node = Cut(3.0, 9.0, seconds_per_layer=0.05, seed=4)
    world = World(beings() | {4: node})
    node.world = world
    strategy(world, method="salf").start(world, arrays(), num_rounds=30)
    rounds = [t.round for t in node.asked]
    missed = set(range(1, 31)) - set(rounds)
    assert missed
    assert max(rounds) == 30
    assert min(missed) > 1
    assert world.clock.now() <= 60.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [1, 3])
def test_if_all_die_the_run_ends_by_itself_within_the_budget(method, after, caplog):
    class Mortal(Being):
        def answer(self, message):
            return super().answer(message) if Task.read(message.content["config"]).round <= after else None

    with caplog.at_level(logging.INFO, logger="flwr"):
        world, result = run({i: Mortal(0.02, seed=i) for i in (1, 2, 3)}, rounds=10, method=method)
    assert world.clock.now() <= 60.0
    assert differ(weights_of(arrays()), weights_of(result.arrays))
    assert "abandoned" in caplog.text


def test_nodes_that_leave_flower_altogether_are_waited_for_and_no_longer_than_the_budget():
    world = World(beings())

    class Leaving(VirtualClock):
        def sleep_until(self, moment):
            super().sleep_until(moment)
            world.gone = {1, 2, 3, 4} if self.now() > 20 else set()

    world.clock = Leaving()
    strategy(world).start(world, arrays(), num_rounds=10)
    assert world.clock.now() <= 61.0


def test_without_nodes_or_answers_there_is_one_sentence():
    world = World({})
    with pytest.raises(AdelError, match="0 nodes are connected, 2 are needed"):
        strategy(world, budget=5).start(world, arrays(), num_rounds=3)
    assert world.clock.now() <= 6.0
    world = World({1: Silent(), 2: Failing()})
    with pytest.raises(AdelError, match=r"no node answered.*ClientApp raised"):
        strategy(world, budget=5).start(world, arrays(), num_rounds=3)
    assert world.clock.now() <= 6.0


def test_a_node_whose_lag_grows_gets_longer_rounds_if_its_data_is_its_own():
    class Slowing(Being):
        def answer(self, message):
            self.lag = 20.0 if Task.read(message.content["config"]).round > 1 else 8.0
            return super().answer(message)

    nodes = {i: Being(0.001, lag=4.0, seed=i) for i in (1, 2, 3)} | {4: Slowing(0.005, seed=4)}
    x, y = nodes[4].data
    nodes[4].data = (x, (y + 1) % 3)
    world = World(nodes)
    kept = strategy(world, budget=160.0, local_iterations="auto", learning_rate=0.1)
    kept.start(world, arrays(), num_rounds="auto")
    assert max(task.batch for node in nodes.values() for task in node.asked) == 16  # spare time goes into steps
    rounds = [task.round for task in nodes[4].asked]
    assert len(rounds) > 3
    assert len(rounds) >= len(nodes[1].asked) - 2


def test_a_node_that_was_too_slow_for_the_opening_round_joins_when_it_answers():
    world = World(beings() | {5: Being(0.2, lag=14.0, seed=5)})
    s = strategy(world, budget=100.0, method="salf", measure_share=0.1)
    s.start(world, arrays(), num_rounds=10)
    rounds = [t.round for t in world.nodes[5].asked]
    assert rounds[0] == 1
    assert s.run.strategy.beliefs.upload(np.array([4]))[0] >= 14.0
    assert s.run.strategy.beliefs.upload(np.arange(4)).max() < 2.0


@pytest.mark.parametrize("method", METHODS[:3])
def test_where_so_many_rounds_do_not_fit_there_are_fewer(method, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        world, result = run({i: Being(0.01, lag=4.0, seed=i) for i in (1, 2, 3)}, rounds=30, method=method)
    done = len(result.train_metrics_clientapp)
    assert 3 <= done < 15
    assert "29 rounds do not fit" in caplog.text
    assert world.clock.now() <= 60.0
    with caplog.at_level(logging.ERROR, logger="flwr"):
        world, result = run({i: Being(0.01, lag=29.0, seed=i) for i in (1, 2, 3)}, rounds=3, method=method)
    assert "is too short: devices do not compute for 31.9 s of a round" in caplog.text
    assert list(result.train_metrics_clientapp) == [1]  # the model of the opening round


def test_the_number_of_rounds_that_fit_is_found_in_a_few_plans():
    made, sentences = [], []

    def make(problem):
        made.append(problem.rounds)
        return find_strategy("adel-paper")(problem)

    rate = ConstantRate(0.1)
    settings = Settings(layers=4, rounds=4000, budget=600.0, learning_rate=rate, tell=sentences.append)
    reports = Reports(4, 1)
    reports.beliefs = Beliefs(np.full(8, 2.0), np.full(8, 0.01))
    planner = DeploymentPlanner(make, settings, reports)
    assert planner.plan(View(0.0, 300.0, 1, lambda k, size: np.arange(8)))
    assert planner.rounds == 269
    assert len(made) < 15
    assert "4000 rounds do not fit into 300.0 s (device #1 is the limit: with a single sample" in sentences[0]


def test_a_node_that_connects_later_is_measured_and_joins():
    world = World(beings())
    world.gone = {4}

    class Arriving(VirtualClock):
        def sleep_until(self, moment):
            super().sleep_until(moment)
            world.gone = set() if self.now() > 15 else {4}

    world.clock = Arriving()
    s = strategy(world, method="salf", budget=100.0, min_available_nodes=3)
    s.start(world, arrays(), num_rounds=60)
    assert world.nodes[4].asked[0].round > 1
    assert max(task.round for task in world.nodes[4].asked) > 20
    assert s.run.strategy.method.problem.devices == 4


def test_a_node_that_fails_once_while_it_is_measured_is_asked_again():
    class Stumbling(Being):
        def answer(self, message):
            if len(self.asked) == 1:
                return Failing.answer(self, message)
            return super().answer(message)

    world, _ = run(beings() | {2: Stumbling(0.05, seed=2)}, rounds=10)
    assert [task.round for task in world.nodes[2].asked][-1] == 10


def test_lateness_does_not_build_up():
    world = World({i: Being(0.3, lag=0.5, seed=i) for i in (1, 2, 3)})
    result = strategy(world, method="salf", budget=75.0).start(world, arrays(), num_rounds=25)
    assert len(result.train_metrics_clientapp) >= 15
    assert world.clock.now() <= 75.0


@pytest.mark.parametrize(("delay", "merged"), [(0.4, True), (1.5, False)])
def test_a_round_waits_a_little_for_an_update_that_is_on_its_way(tmp_path, delay, merged):
    class Delayed(Being):
        def answer(self, message):
            reply, after = super().answer(message)
            return reply, after + delay * (self.asked[-1].round == 5)

    world = World({1: Being(0.3, lag=0.5), 2: Being(0.3, lag=0.5, seed=2), 3: Delayed(0.3, lag=0.5, seed=3)})
    method = strategy(world, method="salf", budget=60.0, local_iterations=100, record=tmp_path / "run")
    method.start(world, arrays(), num_rounds=10)
    (row,) = [row for row in RunRecord(tmp_path / "run").rounds if row.round == 5]
    assert 1.0 < row.length / row.deadline < 1.11  # rounds of 6 s, whose messages arrive just in time
    assert (min(row.depth) > 0) == merged


def test_waiting_goes_on_without_a_node_that_is_rejected():
    nodes = {1: Being(0.02), 2: Being(0.02, seed=2), 3: Spoiling(nan_in("first.bias"), seed=3)}
    _, result = run(nodes, rounds=5, method="wait")
    assert len(result.train_metrics_clientapp) == 5
    assert differ(weights_of(arrays()), weights_of(result.arrays))


def test_errors_that_come_at_once_do_not_burn_the_rounds():
    class Late(Being):
        def answer(self, message):
            first = Task.read(message.content["config"]).round
            return Failing.answer(self, message) if first and self.world.clock.now() < 20 else super().answer(message)

    world = World({i: Late(0.02, seed=i) for i in (1, 2, 3)})
    for node in world.nodes.values():
        node.world = world
    result = strategy(world, budget=100.0).start(world, arrays(), num_rounds=50)
    assert len(result.train_metrics_clientapp) > 30


def test_what_the_server_does_between_rounds_is_planned_for_in_every_round(tmp_path):
    world = World(beings(slow=1.0))

    def evaluate(number, record):
        world.clock.sleep_until(world.clock.now() + 3.0)
        return MetricRecord({"accuracy": 0.5})

    result = strategy(world, budget=100.0, record=tmp_path / "run", method="salf").start(
        world, arrays(), num_rounds=10, evaluate_fn=evaluate
    )
    lengths = [row.deadline for row in RunRecord.open(tmp_path / "run").rounds[2:]]
    assert len(result.train_metrics_clientapp) == 10
    assert min(lengths) > 0.7 * max(lengths[:3])
    assert world.clock.now() <= 100.0


def test_the_correction_is_bounded():
    salf = find_strategy("salf")
    s = Deployment(salf, Settings(layers=3, rounds=10, budget=100.0, learning_rate=ConstantRate(0.1)))
    everyone = np.arange(4)
    nothing = np.full(4, np.nan)

    def view(now, version):
        return View(now, 100.0, version, lambda k, size: everyone)

    (opening,) = s.react(view(0.0, 0), Started()).dispatch
    for u in range(4):
        one = of_devices(opening, np.array([u]))
        actions = s.react(view(11.0, 0), Arrivals(one, 0, 0, 0.0, np.array([6]), np.array([10.0]), np.array([0.5])))
    assert len(actions.merge.arrivals) == 4
    (tasks,) = s.react(view(11.0, 1), Merged(1)).dispatch
    # Devices were thought to be so slow that nothing was expected of any of them; one delivered everything.
    s.beliefs.first_compute[:] = 1e-6
    alone = Arrivals(tasks, 1, 1, 11.0, np.array([3, 0, 0, 0]), nothing, nothing)
    (A,) = s.react(view(20.0, 1), alone).merge.A
    assert A.sum(axis=0) == pytest.approx(MOST_CORRECTION)


def test_a_merged_model_that_is_not_finite_is_not_used():
    class Huge(Being):
        def spoil(self, reply):
            if reply.content["metrics"]["adelfl-round"] > 1:
                found = {n: np.full_like(a.numpy(), 3e38) for n, a in reply.content["arrays"].items()}
                metrics = reply.content["metrics"]
                reply.content = RecordDict(
                    {"arrays": ArrayRecord({n: Array(v) for n, v in found.items()}), "metrics": metrics}
                )
            return reply

    _, result = run({1: Huge(0.02, seed=1), 2: Huge(0.02, seed=2)}, rounds=4, method="salf", norm_limit=math.inf)
    assert all(np.isfinite(value).all() for value in weights_of(result.arrays).values())
    assert differ(weights_of(result.arrays), weights_of(arrays()))
    assert len(result.train_metrics_clientapp) < 4


def test_a_scalar_parameter_is_merged_and_kept(tmp_path):
    class Scaled(Net):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return super().forward(x) * self.scale

    class Scaling(Being):
        def answer(self, message):
            return train(message, Scaled(), self.data, clock=TickingClock(0.01)), 0.2

    world = World({i: Scaling(seed=i) for i in (1, 2, 3)})
    layers = [*map(list, LAYERS[:2]), [*LAYERS[2], "scale"]]
    result = strategy(world, layers=layers, record=tmp_path / "run").start(world, arrays(Scaled()), num_rounds=3)
    assert result.arrays["scale"].numpy().shape == ()
    assert RunRecord.open(tmp_path / "run").weights()["scale"].shape == ()


def test_a_run_that_can_go_on_no_more_gives_the_model_that_it_has(tmp_path):
    folder = tmp_path / "run"
    world = World(beings())

    with pytest.raises(Killed):
        strategy(world, record=folder).start(world, arrays(), num_rounds=8, evaluate_fn=dies_in(4))
    world.nodes = {n: Silent() for n in world.nodes}
    world.gone = {1, 2, 3}  # one node is left: not enough to plan with
    result = strategy(world, record=folder).start(world, arrays(), num_rounds=8)
    assert differ(weights_of(result.arrays), weights_of(arrays()))
    assert RunRecord.open(folder).result is not None
    assert world.clock.now() <= 61.0


def test_late_training_replies_are_not_lost_in_an_evaluation_nor_the_reverse(tmp_path):
    class Evaluating(Being):
        def answer(self, message):
            if message.metadata.message_type == "evaluate":
                content = RecordDict({"metrics": MetricRecord({"num-examples": 4, "seen": 1.0})})
                return Message(content, reply_to=message), 3.0 if self.seed == 3 else 0.1
            return super().answer(message)

    world = World({i: Evaluating(0.02, seed=i) for i in (1, 2, 3)} | {4: Evaluating(0.1, lag=9.0, seed=4)})
    s = strategy(world, fraction_evaluate=1.0, evaluate_seconds=0.5, record=tmp_path / "run", method="salf")
    result = s.start(world, arrays(), num_rounds=12)
    assert result.evaluate_metrics_clientapp[1]["seen"] == 1.0
    assert s.run.strategy.beliefs.held(np.array([2])) == 64
    late = [number for row in RunRecord.open(tmp_path / "run").rounds[1:] for number in row.late]
    assert all(int(number) > 0 for number in late)


def test_a_reply_that_cannot_be_unpacked_is_its_senders_trouble():
    class Garbled(World):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            for message in found:
                if message.metadata.src_node_id == 3 and not message.has_error() and self.garble:
                    self.waiting[message.metadata.reply_to_message_id] = (0.0, message)
                    for other in found:
                        if other is not message:
                            self.waiting[other.metadata.reply_to_message_id] = (0.0, other)
                    raise ValueError("malformed object")
            return found

    world = Garbled({i: Being(0.02, seed=i) for i in (1, 2, 3)})
    world.garble = True
    result = strategy(world).start(world, arrays(), num_rounds=3)
    assert len(result.train_metrics_clientapp) == 3


def test_calls_that_hang_do_not_hold_a_round_up():
    import threading

    from adelfl.clock import RealClock

    forever = threading.Event()

    class Hanging(World):
        def pull_messages(self, message_ids):
            if any(self.sent[i] == 3 for i in message_ids):
                forever.wait(300)
                return []
            return super().pull_messages(message_ids)

        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            self.sent.update(zip(ids, [m.metadata.dst_node_id for m in messages], strict=True))
            return ids

    world = Hanging({i: Being(1e-4, lag=0.0, seed=i) for i in (1, 2, 3)}, RealClock())
    world.sent = {}
    result = DeadlineStrategy(budget=8.0, learning_rate=0.5, method="salf").start(world, arrays(), num_rounds=4)
    took = world.clock.now()
    forever.set()
    assert result.train_metrics_clientapp
    assert took < 120  # not a matter of speed: the hanging call takes five minutes


def test_some_take_part_in_each_round_and_all_in_the_long_run():
    world = World({i: Being(0.02, seed=i) for i in range(1, 9)})
    strategy(world, fraction_train=0.5).start(world, arrays(), num_rounds=12)
    per_round = {t: sum(t in [task.round for task in b.asked] for b in world.nodes.values()) for t in range(2, 13)}
    assert set(per_round.values()) == {4}
    assert all(len(b.asked) > 2 for b in world.nodes.values())


def test_a_round_with_too_few_reports_leaves_the_model_as_it_is():
    world, result = run({1: Being(0.02), 2: Being(0.02, seed=2), 3: Spoiling(nan_in("first.bias"), first=1, seed=3)},
                        rounds=3, min_reports=3)  # fmt: skip
    assert not differ(weights_of(arrays()), weights_of(result.arrays))
    assert world.clock.now() <= 60.0


# -- broken and hostile replies


def nan_in(name):
    def change(found, metrics):
        found[name] = found[name].copy()
        found[name].flat[0] = np.nan
        return found, metrics

    return change


def without(name):
    return lambda found, metrics: ({k: v for k, v in found.items() if k != name}, metrics)


def with_array(name, make):
    return lambda found, metrics: (found | {name: make(found)}, metrics)


def with_metric(key, value):
    return lambda found, metrics: (found, {k: v for k, v in (metrics | {key: value}).items() if v is not None})


PICKLE = b"\x80\x04\x95cposix\nsystem\n(S'false'\ntR."
SPOILED = {
    "NaN": (nan_in("third.bias"), "not finite"),
    "infinite": (with_array("third.bias", lambda f: f["third.bias"] + np.float32(np.inf)), "not finite"),
    "unknown": (with_array("fourth.weight", lambda f: f["third.weight"]), "unknown parameter"),
    "hole": (without("third.weight"), "not a suffix of the layers"),
    "broadcast": (with_array("third.bias", lambda f: f["third.bias"][:1]), "wrong shape"),
    "half": (with_array("third.bias", lambda f: f["third.bias"].astype(np.float16)), "wrong dtype"),
    "oversize": (with_array("third.bias", lambda f: np.zeros(10**6, np.float32)), "oversize"),
    "huge": (with_array("third.weight", lambda f: f["third.weight"] * 1e6), "norm out of line"),
    "other round": (with_metric("adelfl-round", 7), "other round"),
    "no round": (with_metric("adelfl-round", None), "other round"),
    "no weight": (with_metric("num-examples", None), "bad weight"),
    "bad weight": (with_metric("num-examples", -3), "bad weight"),
    "bad depth": (with_metric("adelfl-done", 1), "bad depth"),
    "lying times": (
        lambda found, metrics: (found, metrics | {"num-examples": -1, "adelfl-times": [1e-9], "adelfl-total": 0.0}),
        "bad weight",
    ),
    "no depth": (with_metric("adelfl-done", None), "bad depth"),
    "cut off": (
        with_array("third.bias", lambda f: Array("float32", (3,), "numpy.ndarray", Array(f["third.bias"]).data[:-1])),
        "unreadable",
    ),
    "pickle": (with_array("third.bias", lambda f: Array("float32", (3,), "numpy.ndarray", PICKLE)), "unreadable"),
    "other serialisation": (
        with_array("third.bias", lambda f: Array("float32", (3,), "pickle", PICKLE)), "unreadable",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_reply_leaves_the_model_as_if_its_sender_had_been_silent(what, tmp_path):
    change, reason = SPOILED[what]

    class Mute(Being):
        def answer(self, message):
            return super().answer(message) if Task.read(message.content["config"]).round == 1 else None

    def world_with(node):
        return World({i: Being(0.02, seed=i) for i in (1, 2, 3)} | {4: node})

    found = []
    for name, node in (("spoiled", Spoiling(change, seconds_per_layer=0.02, seed=4)), ("mute", Mute(0.02, seed=4))):
        world = world_with(node)
        result = strategy(world, method="salf", record=tmp_path / name).start(world, arrays(), num_rounds=2)
        found.append(weights_of(result.arrays))
    assert not differ(*found)
    assert differ(found[0], weights_of(arrays()))
    *_, row = RunRecord.open(tmp_path / "spoiled").rounds
    assert row.rejected == {reason: 1}


@pytest.mark.parametrize(
    "said",
    [
        {"adelfl-times": [math.nan], "adelfl-samples": 1},
        {"adelfl-times": [-1.0], "adelfl-samples": 1},
        {"adelfl-times": [0.1] * 9, "adelfl-samples": 1},
        {"adelfl-times": [0.1], "adelfl-samples": 0},
        {"adelfl-times": 3.0, "adelfl-samples": 4},
        {"adelfl-total": math.inf, "adelfl-setup": -1.0, "adelfl-compute": math.nan},
        {},
    ],
)
def test_times_that_cannot_be_teach_nothing(said):
    report = Report.read(said, 3)
    assert report.times == ()
    assert report.timing(1.0) is None


def test_one_odd_round_trip_does_not_upset_a_node():
    beliefs = Beliefs(np.full(2, 100.0), np.zeros(2))
    for lag in (0.1, 0.1, 30.0, 0.1):
        report = Report(1, 3, 0.1, 0.4, 0.0, 0.6, (0.1, 0.1, 0.1, 0.1), 16, 64)
        beliefs.note(1, report.timing(0.5 + lag))
    assert beliefs.outside(np.array([1])) == pytest.approx(0.15)
    assert beliefs.upload(np.arange(2)) == pytest.approx([0.0, 0.25])
    assert beliefs.pace(np.array([1]), 3) == pytest.approx(np.full((1, 3), 0.1 / 16))
    assert np.isnan(beliefs.pace(np.array([0]), 3)).all()
    assert beliefs.held(np.arange(2)).tolist() == [math.inf, 64.0]


def test_a_device_that_sits_out_is_tried_again():
    beliefs = Beliefs(np.full(1, 100.0), np.zeros(1))
    beliefs.note(0, Timing(0.1, 30.0))
    for _ in range(30):
        beliefs.rest(0)
    assert beliefs.upload(np.array([0]))[0] < 1.0


# -- going on after a crash


def test_a_server_that_was_killed_goes_on_from_the_last_finished_round(tmp_path, monkeypatch):
    class Deadly(World):
        def push_messages(self, messages):
            messages = list(messages)
            if self.lethal and Task.read(messages[0].content["config"]).round == 5:
                raise Killed
            return super().push_messages(messages)

    world = Deadly(beings())
    world.lethal = True
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        strategy(world, record=folder).start(world, arrays(), num_rounds=12)
    killed_at = world.clock.now()
    before = RunRecord.open(folder).rounds
    assert [row.round for row in before] == [0, 1, 2, 3, 4]

    world.lethal = False
    for node in world.nodes.values():
        node.asked.clear()
    strategy(world, record=folder).start(world, arrays(), num_rounds=12)
    record = RunRecord.open(folder)
    assert [row.round for row in record.rounds] == list(range(13))
    assert record.rounds[:5] == before
    assert world.nodes[1].asked[0].round == 5
    assert world.nodes[1].asked[0].pace  # nothing is measured again
    assert killed_at < world.clock.now() <= 60.0
    assert record.result.rounds == 12
    with pytest.raises(ConfigError, match="has ended"):
        strategy(world, record=folder).start(world, arrays(), num_rounds=12)


def test_time_without_a_server_is_the_budgets_too(tmp_path, monkeypatch):
    import adelfl.flower.strategy as flower_strategy

    folder = tmp_path / "run"
    world = World(beings())

    with pytest.raises(Killed):
        strategy(world, record=folder).start(world, arrays(), num_rounds=12, evaluate_fn=dies_in(3))
    true_now = flower_strategy.wall_seconds
    monkeypatch.setattr(flower_strategy, "wall_seconds", lambda: true_now() + 1000.0)
    result = DeadlineStrategy(budget=60, learning_rate=0.5, record=folder).start(world, arrays(), num_rounds=12)
    assert [row.round for row in RunRecord.open(folder).rounds] == [0, 1, 2]
    assert differ(weights_of(result.arrays), weights_of(arrays()))  # the model of round 2


def test_a_wall_clock_that_was_set_back_gives_no_time_back(tmp_path, monkeypatch):
    import adelfl.flower.strategy as flower_strategy

    world, now, started = World(beings()), flower_strategy.wall_seconds, []
    with pytest.raises(Killed):
        strategy(world, record=tmp_path / "run").start(world, arrays(), num_rounds=8, evaluate_fn=dies_in(4))
    monkeypatch.setattr(flower_strategy, "wall_seconds", lambda: now() - 3600.0)
    monkeypatch.setattr(flower_strategy, "RealClock", lambda now: started.append(now) or world.clock)
    strategy(world, clock=None, record=tmp_path / "run").start(world, arrays(), num_rounds=8)
    assert started == [RunRecord.open(tmp_path / "run").rounds[3].time]


def test_a_record_names_nodes_depths_and_rejections(tmp_path):
    nodes = beings() | {3: Spoiling(nan_in("third.bias"), seed=3)}
    run(nodes, rounds=4, record=tmp_path / "run", method="salf")
    record = RunRecord.open(tmp_path / "run")
    assert record.info.nodes == ["1", "2", "3", "4"]
    assert record.info.layers == ["first", "second", "third"]
    for row in record.rounds[2:]:
        assert row.depth[2] == 0
        assert row.rejected == {"not finite": 1}
        assert row.contributors[-1] >= row.contributors[0]
    assert record.result.time <= 60.0
    said = StringIO()
    print_run(record, Console(file=said, width=200))
    assert "not evaluated, budget 60 real seconds" in said.getvalue()
    use = record.result.time_use
    assert set(use) == {"computing", "lag", "idle", "abandoned", "between rounds", "unused"}
    assert sum(use.values()) == pytest.approx(60.0)
    assert use["computing"] > use["abandoned"] == 0
    assert "time      computing" in said.getvalue()


def test_a_run_on_flower_is_not_resumed_by_the_simulator(tmp_path):
    world = World(beings())
    with pytest.raises(Killed):
        strategy(world, record=tmp_path / "run").start(world, arrays(), num_rounds=4, evaluate_fn=dies_in(2))
    with pytest.raises(ConfigError, match="start its ServerApp again to continue it"):
        resume(tmp_path / "run")


# -- the client alone


def addressed(task, weights):
    s = DeadlineStrategy(budget=1.0)
    s._run = SimpleNamespace(iterate=weights)
    return s._message(1, task, ConfigRecord())


def task_message(batch=16, iterations=1, seconds=math.inf, pace=(), number=1, layers=LAYERS):
    world = World({1: Silent(), 2: Silent()})
    message = addressed(Task(number, batch, iterations, 0.1, seconds, layers, pace), arrays())
    world.push_messages([message])
    return message


DATA = Being().data


class Counted:
    """A clock that is asked with layers done: it says what it is told to."""

    def __init__(self, *moments):
        self.moments = list(moments)

    def now(self):
        return self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]


def test_a_task_and_a_report_survive_the_way():
    task = Task(3, 5, 2, 0.1, 1.5, LAYERS, (0.1, 0.2, 0.3))
    assert Task.read(ConfigRecord(task.write())) == task
    report = Report(3, 2, 0.1, 0.2, 0.05, 0.4, (0.1, 0.05), 16)
    assert Report.read(dict(MetricRecord(report.write())), 3) == report
    with pytest.raises(ConfigError, match="no task of"):
        Task.read({"lr": 0.1})


def test_a_job_that_has_time_sends_everything():
    reply = train(task_message(), model(), DATA)
    assert sorted(reply.content["arrays"]) == sorted(n for layer in LAYERS for n in layer)
    assert reply.content["metrics"]["adelfl-done"] == 3
    assert reply.content["metrics"]["num-examples"] == 16


def test_a_job_whose_time_is_up_sends_the_layers_that_it_finished():
    # arrival, first batch, forward, third, second (too late)
    reply = train(task_message(seconds=5.0), model(), DATA, clock=Counted(0, 1, 2, 4, 6, 7))
    assert sorted(reply.content["arrays"]) == sorted(LAYERS[2])
    assert reply.content["metrics"]["adelfl-done"] == 1
    assert list(reply.content["metrics"]["adelfl-times"]) == [1.0, 2.0]


def test_a_layer_that_is_not_expected_in_time_is_not_begun():
    message = task_message(seconds=5.0, pace=(0.1, 0.2, 0.1))  # times 16 samples: 1.6, 3.2, 1.6 s
    job = Job(message, model(), clock=Counted(0, 0.5, 1, 2.5, 2.6))
    for x, y in job.batches(DATA):
        job.backward(nn.functional.cross_entropy(job.model(x), y))
    assert (job.report.done, job.stopped) == (1, True)
    assert job.model.third.weight.grad is not None
    assert job.model.second.weight.grad is None


def test_a_job_without_time_for_one_layer_sends_none():
    reply = train(task_message(seconds=1.0, pace=(1.0, 1.0, 1.0)), model(), DATA, clock=Counted(0, 0.1, 0.2, 0.3))
    assert len(reply.content["arrays"]) == 0
    assert reply.content["metrics"]["adelfl-done"] == 0


def test_several_iterations_count_layers_over_all_of_them():
    net = model()
    reply = train(task_message(iterations=3), net, DATA, rng=np.random.default_rng(0))
    assert reply.content["metrics"]["adelfl-done"] == 9
    for name, p in net.named_parameters():
        expected = weights_of(arrays())[name] + reply.content["arrays"][name].numpy()
        assert np.allclose(p.detach().numpy(), expected, atol=1e-6)


def test_data_may_be_a_dataset_or_a_loader():
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(*DATA)
    for data in (dataset, DataLoader(dataset, batch_size=16)):
        assert train(task_message(), model(), data).content["metrics"]["num-examples"] == 16


class Loading(torch.utils.data.Dataset):
    """Every batch of 16 samples takes five seconds to load."""

    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 64

    def __getitem__(self, i):
        self.clock.time += 5 / 16
        return DATA[0][i], DATA[1][i]


def test_the_time_of_loading_batches_is_no_lag():
    clock = LayerClock(1.0)  # for the forward pass and for each layer
    reply = train(task_message(iterations=3), model(), Loading(clock), clock=clock)
    report = Report.read(dict(reply.content["metrics"]), 3)
    assert (report.setup, report.compute, report.steps) == (5.0, 4.0 + 9.0 + 9.0, (16.0, 2.0, 9.0, 0.0))
    assert report.timing(clock.time + 1.0).outside == 1.0


def test_a_batch_that_is_not_expected_in_time_is_not_loaded():
    clock = LayerClock(1.0)
    message = task_message(iterations=9, seconds=20.0, pace=(1 / 16, 1 / 16, 1 / 16))
    reply = train(message, model(), Loading(clock), clock=clock)
    assert reply.content["metrics"]["adelfl-done"] == 6
    assert clock.time == 18.0  # a third batch and one layer would take until 25


def test_batches_may_be_mappings_and_loaders_short():
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(DATA[0][:20], DATA[1][:20]), batch_size=16)
    reply = train(task_message(iterations=5), model(), loader)
    assert reply.content["metrics"]["adelfl-done"] == 15
    assert reply.content["metrics"]["adelfl-samples"] == 16
    job = Job(task_message(), model())
    for batch in job.batches(iter([{"x": DATA[0][:7], "y": DATA[1][:7]}])):
        job.backward(nn.functional.cross_entropy(job.model(batch["x"]), batch["y"]))
    assert job.reply().content["metrics"]["num-examples"] == 7


def test_a_parameter_of_two_names_must_be_sent_under_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x):
            return self.out(torch.relu(self.into(x)))

    def message(names, layers):
        found = {n: Array(v.detach().numpy()) for n, v in Tied().state_dict().items() if n in names}
        task = Task(1, 16, 1, 0.1, math.inf, layers)
        made = addressed(task, ArrayRecord(found))
        World({1: Silent(), 2: Silent()}).push_messages([made])
        return made

    with pytest.raises(ConfigError, match="are one parameter"):
        train(message({"into.weight", "out.weight"}, (("into.weight",),)), Tied(), DATA)
    reply = train(message({"into.weight"}, (("into.weight",),)), Tied(), DATA)
    assert list(reply.content["arrays"]) == ["into.weight"]


def test_what_a_client_cannot_do_is_one_sentence():
    with pytest.raises(ConfigError, match="belong to another model"):
        Job(task_message(), Net(width=9))

    backwards = tuple(reversed(LAYERS))
    with pytest.raises(ConfigError, match="order is not that of backpropagation"):
        train(task_message(layers=backwards), model(), DATA)
    with pytest.raises(ConfigError, match="no samples"):
        train(task_message(), model(), (DATA[0][:0], DATA[1][:0]))


# -- running statistics and dropout


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.norm(self.first(x)))))


class Norming(Being):
    """Trains a model with batch norm and dropout."""

    def answer(self, message):
        self.asked.append(Task.read(message.content["config"]))
        rng = np.random.default_rng([self.seed, self.asked[-1].round])
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            reply = train(message, Normed(), self.data, clock=TickingClock(self.seconds_per_layer), rng=rng)
        self.sent = {n: a.numpy() for n, a in reply.content["adelfl-statistics"].items()}
        return self.spoil(reply), self.lag + 1.0


def test_running_statistics_are_averaged_over_the_nodes_that_report():
    nodes = {i: Norming(0.01, seed=i) for i in (1, 2, 3)}
    _, result = run(nodes, rounds=6, method="salf")
    final = weights_of(result.arrays)
    assert set(final) == set(Normed().state_dict())
    for name in ("norm.running_mean", "norm.running_var"):
        assert final[name] == pytest.approx(np.mean([node.sent[name] for node in nodes.values()], axis=0), rel=1e-5)
    assert final["norm.num_batches_tracked"] == 7  # two steps in the opening round, and one in each of five
    assert nodes[1].asked[0].layers == (("first.weight", "first.bias"), ("norm.weight", "norm.bias"),
                                        ("second.weight", "second.bias"))  # fmt: skip
    losses = [m["train-loss"] for m in result.train_metrics_clientapp.values()]
    assert losses[-1] < losses[0]


def test_statistics_that_are_not_the_models_are_rejected(tmp_path):
    class Lying(Norming):
        def spoil(self, reply):
            statistics = {n: a.numpy() for n, a in reply.content["adelfl-statistics"].items()}
            statistics["norm.running_var"] = np.full(8, np.nan, dtype=np.float32)
            reply.content["adelfl-statistics"] = ArrayRecord({n: Array(v) for n, v in statistics.items()})
            return reply

    world = World({i: Norming(0.01, seed=i) for i in (1, 2)} | {3: Lying(0.01, seed=3)})
    result = strategy(world, method="salf", record=tmp_path / "run").start(world, arrays(Normed()), num_rounds=4)
    assert all(np.isfinite(value).all() for value in weights_of(result.arrays).values())
    assert all(row.rejected == {"not finite": 1} for row in RunRecord.open(tmp_path / "run").rounds[2:])


# -- what the documents show


def blocks():
    text = (Path(__file__).parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_server_and_client_work_as_the_documents_show(tmp_path, monkeypatch):
    server, client = blocks()
    data = torch.utils.data.TensorDataset(*DATA)
    there = {"Net": Net, "trainset": data, "criterion": nn.functional.cross_entropy}
    exec(compile(client, "docs/flower.md", "exec"), there)

    class Shown(Being):
        def answer(self, message):
            self.asked.append(Task.read(message.content["config"]))
            return there["train"](message, None), 0.2

    world = World({i: Shown(seed=i) for i in (1, 2, 3)})
    monkeypatch.setattr("adelfl.flower.strategy.RealClock", lambda now: world.clock)
    monkeypatch.setattr("adelfl.flower.client.RealClock", lambda: TickingClock(0.01))  # however busy the machine
    monkeypatch.chdir(tmp_path)
    here = {"Net": Net}
    exec(compile(server, "docs/flower.md", "exec"), here)
    here["main"](world, None)
    record = RunRecord.open("runs/deployment")
    assert record.result.rounds == 50
    assert record.result.abandoned == 0
    assert world.clock.now() <= 600.0


def test_a_node_does_not_load_what_only_the_server_needs():
    """Every message starts a process on the node, and the time that its imports take is lost for training."""
    code = "import sys, adelfl.flower.client; sys.exit(any(m in sys.modules for m in ('scipy', 'adelfl.planner')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
