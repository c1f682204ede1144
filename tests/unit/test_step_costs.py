"""Fixed cost of a batch and spread of layer times, as learned from the durations of local steps."""

import numpy as np
import pytest

from adelfl.flower import DeadlineStrategy
from adelfl.flower.client import train
from adelfl.flower.protocol import PREFIX, Report, Task
from adelfl.planner.beliefs import Beliefs, Timing
from adelfl.planner.step_costs import PRIOR_SPREAD, step_costs
from adelfl.seeds import rng_for
from support.flower_world import Being, LayerClock, Net, World, arrays

L, NONE = 4, np.empty((0, 4))


def reports(seed, overhead, spread, speed=100.0, batches=(4, 8, 16, 32), steps=20, tasks=12):
    """Reports of one device whose layers take (S + s₀)/P on average, by a gamma law."""
    rng, rows, shape = rng_for(seed, "steps"), [], spread**-2.0
    for i in range(tasks):
        S = batches[i % len(batches)]
        times = (S + overhead) / speed * (rng.standard_gamma(shape, (steps, L)) / shape).sum(axis=1)
        rows.append((S, steps, times.mean(), times.var(ddof=1)))
    return np.array(rows)


@pytest.mark.parametrize("overhead", [0.0, 6.0, 20.0])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_cost_and_spread_are_recovered_from_a_fleet(overhead, spread):
    found = [step_costs([reports(10 * k + u, overhead, spread) for u in range(6)], L) for k in range(8)]
    s0, v = (np.array([pair[i] for pair in found]) for i in (0, 1))
    errors = s0.mean(axis=1).std(ddof=1) / np.sqrt(8), v.mean(axis=1).std(ddof=1) / np.sqrt(8)
    # Besides the standard errors: what shrinking takes away, and what cutting negative costs to zero adds.
    assert s0.mean() == pytest.approx(overhead, abs=3 * errors[0] + 0.15 * overhead + 0.8)
    assert v.mean() == pytest.approx(spread, abs=3 * errors[1] + 0.05 * spread)


def test_devices_are_told_apart():
    s0, v = step_costs([reports(1, 0.0, 0.05), reports(2, 20.0, 0.05), reports(3, 0.0, 0.8)], L)
    assert s0[1] > 3 * max(s0[0], s0[2])
    assert v[2] > 3 * max(v[0], v[1])


def test_without_evidence_there_is_the_prior():
    s0, v = step_costs([NONE, NONE], L)
    assert s0 == pytest.approx(0.0)
    assert v == pytest.approx(PRIOR_SPREAD)
    s0, v = step_costs([np.array([(16.0, 1.0, 0.5, 0.0)])], L)  # one step
    assert (s0[0], v[0]) == pytest.approx((0.0, PRIOR_SPREAD))


def test_batches_of_one_size_tell_no_fixed_cost_but_the_fleet_does():
    alone, _ = step_costs([reports(1, 20.0, 0.1, batches=(16,))], L)
    assert alone[0] == 0.0
    s0, v = step_costs([reports(1, 20.0, 0.1, batches=(16,)), reports(2, 20.0, 0.1), NONE], L)
    assert s0[0] == pytest.approx(s0[2])
    assert s0[0] > 10.0
    assert v[2] < 0.2


def test_a_device_whose_times_do_not_depend_on_the_batch_has_a_finite_cost():
    rows = [(S, 10.0, 0.5, 1e-6) for S in (4.0, 8.0, 16.0, 32.0)]
    s0, _ = step_costs([np.array(rows)], L)
    assert 30.0 < s0[0] < 500.0


def test_what_a_batch_of_the_usual_size_takes_stays_the_same_when_its_cost_is_split():
    beliefs, one = Beliefs(np.array([32.0, 32.0]), np.zeros(2)), np.array([0])
    for S, n, mean, variance in reports(4, 12.0, 0.2, batches=(8, 24)):
        seconds = np.array([n * mean])
        beliefs.observe(one, np.array([S]), np.array([n * L]), seconds, np.zeros(1), np.array([True]))
        beliefs.note(0, Timing(0.1, 0.1, steps=(S, n, mean, variance)))
    usual = beliefs._seconds[0] / beliefs._exposure[0]
    before = usual / beliefs.compute(one)[0]
    beliefs.learn_costs(L)
    assert beliefs.overhead[0] == pytest.approx(12.0, rel=0.3)
    assert (usual + beliefs.overhead[0]) / beliefs.compute(one)[0] == pytest.approx(before, rel=0.02)
    predicted = (np.array([8.0, 24.0]) + beliefs.overhead[0]) / beliefs.compute(one)[0]
    assert predicted == pytest.approx(np.array([20.0, 36.0]) / 100.0, rel=0.1)


def test_an_old_reply_and_an_old_log_have_no_steps():
    record = {f"{PREFIX}{key}": 0.1 for key in ("setup", "compute", "aside", "total")}
    assert Report.read(record, L).timing(1.0).steps == ()
    assert Timing.of([0.1, 0.2, [0.3], 5]) == Timing(0.1, 0.2, (0.3,), 5)
    assert Timing.of([0.1, 0.2, [], 5, [16.0, 3.0, 0.1, 0.0]]).steps == (16.0, 3.0, 0.1, 0.0)


@pytest.mark.parametrize(
    "steps", [[16.0, 3.0, 0.1], [16.0, 3.0, -0.1, 0.0], "many", [0.5, 3.0, 0.1, 0.0], [16, 1, 9, 0]]
)
def test_steps_that_cannot_be_are_left_out(steps):
    record = {f"{PREFIX}{key}": 0.1 for key in ("setup", "compute", "aside", "total")} | {f"{PREFIX}steps": steps}
    assert Report.read(record, L).timing(1.0).steps == ()


class Laden(Being):
    """A node whose batches cost as much as twelve samples, besides their own."""

    def answer(self, message):
        task = Task.read(message.content["config"])
        self.asked.append(task)
        clock = LayerClock(self.seconds_per_layer * (task.batch + 12) / 16)
        reply = train(message, Net(), self.data, clock=clock, rng=np.random.default_rng([self.seed, task.round]))
        return reply, self.lag + clock.time


def test_a_deployment_plans_with_what_its_nodes_report():
    world = World({1: Laden(0.01, seed=1), 2: Laden(0.03, seed=2), 3: Laden(0.1, seed=3)})
    strategy = DeadlineStrategy(budget=60.0, method="adel", clock=world.clock, local_iterations=4)
    strategy.start(world, arrays(), num_rounds=20)
    beliefs = strategy.run.strategy.beliefs
    sizes = {task.batch for node in world.nodes.values() for task in node.asked}
    assert len(sizes) > 2
    spread = beliefs.learn_costs(3)
    assert beliefs.overhead == pytest.approx(12.0, rel=0.3)
    assert np.all(spread < 0.2)  # the nodes' layer times are constant
