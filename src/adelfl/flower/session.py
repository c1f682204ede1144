"""One run on Flower: measure the nodes, plan, then rounds that close when the plan says.

    budget  =  round 0 (measuring)  +  T_1  +  …  +  T_R  +  what the server does in between

Deadlines are scaled by what is really left of the budget, so nothing that happens moves its end.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from adelfl.clock import Clock
from adelfl.errors import AdelError, InfeasibleBudgetError
from adelfl.flower.exchange import Exchange, Reply
from adelfl.flower.nodes import Node, fleet_of
from adelfl.flower.protocol import Report, Task
from adelfl.learning_rate import LearningRate
from adelfl.planner import Constants
from adelfl.seeds import rng_for
from adelfl.strategies import Strategy, find_strategy
from adelfl.strategies.base import Floats, Ints, Orders, Progress, Setting
from adelfl.updates import Array, Gate, Merge, Reason, Shape, Update, UpdateRejected

log = logging.getLogger("flwr")

_IDLE_POLL = 0.25
_WORTH_WHILE = 1.5  # how much longer than a median node's lag a round is at least
_SAVED = 0.1  # of the time that was planned with: from then on it is worth a new plan
Weights = dict[str, Array]


@dataclass(frozen=True)
class Terms:
    """What the user asked for; see :class:`~adelfl.flower.server.DeadlineStrategy`."""

    budget: float
    rounds: int
    method: str
    options: Mapping[str, Any]
    batch: int
    learning_rate: LearningRate
    local_iterations: int
    constants: Constants | None
    fraction_train: float
    min_train_nodes: int
    min_available_nodes: int
    min_reports: int
    norm_limit: float
    measure_share: float
    weighted_by_key: str
    arrayrecord_key: str
    seed: int


@dataclass(frozen=True)
class _Rest:
    """A learning rate from a round on."""

    whole: LearningRate
    rounds: int
    first: int

    def values(self, rounds: int) -> Floats:
        return self.whole.values(self.rounds)[self.first : self.first + rounds]


@dataclass(frozen=True, eq=False)
class Plan:
    """What the method decided, from a round on."""

    strategy: Strategy
    nodes: tuple[int, ...]
    first: int

    def planned(self, t: int) -> float:
        """Seconds that the method meant rounds t, t+1, … to take; infinite if it does not say."""
        if self.strategy.schedule is not None:
            return float(self.strategy.schedule.deadlines[t - self.first :].sum())
        T = self.strategy.orders(0, np.arange(1)).deadline
        return T * (self.strategy.setting.rounds - (t - self.first))


@dataclass(eq=False)
class Round:
    """A round that is going on.

    Attributes
    ----------
    number : int
        From 1.
    begin, end : float
        Moments on the run's clock.
    devices : ndarray of int
        Positions in the plan of those who were asked, in ascending order.
    orders : Orders
        What for.
    """

    number: int
    begin: float
    end: float
    devices: Ints
    orders: Orders
    gate: Gate
    tasks: dict[int, Task]
    asked: set[int] = field(default_factory=set)
    updates: list[Update] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    contents: dict[int, Message] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)


class Session:
    """A run's state: weights, nodes, plan.

    Parameters
    ----------
    terms : Terms
    exchange : Exchange
    weights : dict of str to ndarray
        The model.
    layers : sequence of sequences of str
        Names of parameters, input side first.
    """

    def __init__(self, terms: Terms, exchange: Exchange, weights: Weights, layers: list[list[str]]) -> None:
        self.terms, self.exchange, self.weights = terms, exchange, weights
        self.shape = Shape.of(weights, layers)
        self.L = len(layers)
        self.clock: Clock = exchange.clock
        self.eta = terms.learning_rate.values(terms.rounds)
        self.nodes: dict[int, Node] = {}
        self.constants = terms.constants
        self.plan: Plan | None = None
        self.rounds = terms.rounds
        self.reserve = 0.0
        self.late: Counter[int] = Counter()

    # -- before the first round

    def wait_for_nodes(self) -> None:
        """Until enough are connected; an error if that takes the whole budget."""
        needed = max(2, self.terms.min_available_nodes)
        told = -1
        while len(found := self.exchange.nodes()) < needed:
            if self.clock.now() >= self.terms.budget:
                raise AdelError(f"the budget is over: {len(found)} nodes are connected, {needed} are needed")
            if len(found) != told:
                told = len(found)
                log.info("waiting for nodes: %d connected, %d needed", told, needed)
            self.clock.sleep_until(min(self.terms.budget, self.clock.now() + _IDLE_POLL))

    def measure(self, make: Any) -> None:  # noqa: ANN401
        """Round 0: everybody does the whole work twice, on the same weights, and nothing of it is merged.

        The first time warms up whatever has to be; the second tells speeds and lags. Two updates of a node differ by
        batch noise alone, which gives σ² and G² of the bound.
        """
        found: dict[int, list[dict[str, Array]]] = {}
        first = self.clock.now()
        troubles: list[str] = []
        for turn in range(2):
            nodes = [n for n in self.exchange.nodes() if n not in self.exchange.busy]
            end = first + self.terms.measure_share * self.terms.budget * (turn + 1) / 2
            if turn == 1:
                nodes = [n for n in nodes if n in self.nodes and self.nodes[n].measured]
                if self.clock.now() >= end:
                    break
                for node in self.nodes.values():
                    node.lags.clear()  # those of a cold start
            gate = Gate(self.shape, 0, nodes, norm_limit=self.terms.norm_limit)
            tasks = {n: self._task(0, self.terms.batch, math.inf, self.nodes.get(n)) for n in nodes}
            missing = self.exchange.send([make(n, task) for n, task in tasks.items()], 0)
            # Two nodes are the least to plan with: they are waited for longer, but not for ever.
            while missing and self.clock.now() < (end if self._measured() >= 2 else first + self.terms.budget / 2):
                for reply in self.exchange.gather(missing, 0, self.clock.now() + _IDLE_POLL):
                    missing.discard(reply.node)
                    try:
                        update, _ = self._admit(gate, reply)
                        found.setdefault(reply.node, []).append(update.changes)
                    except UpdateRejected as no:
                        troubles.append(f"node {reply.node}: {no}")
                        log.warning("round 0: %s", troubles[-1])
        if self._measured() == 0:
            why = f" ({troubles[0]})" if troubles else ""
            raise AdelError(f"no node answered in {self.clock.now() - first:.1f} s while they were measured{why}")
        if self.constants is None:
            self.constants = estimate(found, self.shape, self.terms.batch, float(self.eta[0])) or Constants()

    def _measured(self) -> int:
        return sum(node.measured for node in self.nodes.values())

    def make_plan(self, t: int) -> None:
        """Plan rounds t, t+1, … for the nodes that are measured, with the budget that is left.

        If too little of a round would be computing, there are fewer of them; more again when lags turn out shorter.
        """
        nodes = [self.nodes[n] for n in sorted(self.nodes) if self.nodes[n].measured]
        left = self.terms.budget - self.clock.now() - self.reserve
        if left <= 0:
            raise AdelError("the budget was used up before the first round")
        strategy, asked = None, self.terms.rounds - t
        lag = float(np.median([node.upload for node in nodes]))
        most = min(asked, max(1, int(left / (_WORTH_WHILE * lag)))) if lag > 0 else asked
        for rounds in range(most, 0, -1):
            try:
                strategy = self._strategy(nodes, t, rounds, left)
                break
            except InfeasibleBudgetError:
                if rounds == 1:
                    raise
        assert strategy is not None
        self.plan, self.rounds = Plan(strategy, tuple(n.id for n in nodes), t), t + strategy.setting.rounds
        if strategy.setting.rounds < asked:
            log.warning(
                "%d rounds do not fit into %.1f s, since %.1f s of each are not computing: %d are planned",
                asked, left, lag, strategy.setting.rounds,
            )  # fmt: skip
        log.info("%s: %d rounds, %d nodes, %.1f s left", strategy.label, strategy.setting.rounds, len(nodes), left)
        for note in strategy.notes:
            log.info("%s", note)

    def _strategy(self, nodes: list[Node], t: int, rounds: int, left: float) -> Strategy:
        cohort = max(2, self.terms.min_train_nodes, round(self.terms.fraction_train * len(nodes)))
        setting = Setting(
            fleet=fleet_of(nodes),
            layers=self.L,
            rounds=rounds,
            budget=left,
            batch=self.terms.batch,
            learning_rate=_Rest(self.terms.learning_rate, self.terms.rounds, t),
            constants=self.constants or Constants(),
            cohort=cohort if cohort < len(nodes) else None,
            local_iterations=self.terms.local_iterations,
        )
        uploads = sorted(node.upload for node in nodes)
        needed = uploads[min(len(nodes), max(2, self.terms.min_reports)) - 1]
        if needed >= setting.uniform_deadline:
            what = f"{needed:.1f} s of a round are not computing"
            raise InfeasibleBudgetError(
                f"a round of {setting.uniform_deadline:.1f} s is too short: {what}",
                binding=what,
                smallest_budget=None,
            )
        return find_strategy(self.terms.method)(setting, **self.terms.options)

    # -- a round

    def open_round(self, t: int) -> Round | None:
        """Choose who is asked to do what in round t (from 0); None if there is no time for it any more."""
        begin = self.clock.now()
        left = self.terms.budget - self.reserve - begin
        if left <= 0:
            return None
        if self._is_outdated(t, left):
            self.make_plan(t)
        assert self.plan is not None
        plan = self.plan
        devices = self._choose(t, begin + left)
        orders = plan.strategy.orders(t - plan.first, devices)
        meant = plan.planned(t)
        T = left if math.isinf(meant) else orders.deadline * left / meant
        tasks = {}
        for position, batch in zip(devices, orders.batch, strict=True):
            node = self.nodes[plan.nodes[position]]
            seconds = math.inf if math.isinf(meant) else T - node.lag - node.tail
            if batch > 0 and seconds > node.setup:
                tasks[node.id] = self._task(t + 1, min(int(batch), node.rows or int(batch)), seconds, node)
            else:
                node.rest()
        end = begin + left if math.isinf(meant) else min(begin + T, begin + left)
        # Not the gate tells what is late, but the exchange, which knows what has arrived by the end.
        gate = Gate(self.shape, t + 1, tasks, norm_limit=self.terms.norm_limit)
        return Round(t + 1, begin, end, devices, orders, gate, tasks)

    def _is_outdated(self, t: int, left: float) -> bool:
        """Whether a node is there that the plan does not know, or rounds closed so early that time was saved."""
        if self.plan is None:
            return True
        measured = {n for n, node in self.nodes.items() if node.measured}
        return bool(measured - set(self.plan.nodes)) or left > (1 + _SAVED) * self.plan.planned(t)

    def _choose(self, t: int, until: float) -> Ints:
        """Positions in the plan of nodes that are connected and idle: all, or a random cohort.

        Where there are none, some are waited for, but no longer than a mean round.
        """
        assert self.plan is not None
        setting = self.plan.strategy.setting
        patience = min(until, self.clock.now() + setting.budget / setting.rounds)
        while True:
            idle = set(self.exchange.nodes()) - self.exchange.busy
            free = np.array([i for i, n in enumerate(self.plan.nodes) if n in idle], dtype=np.int64)
            if free.size or self.clock.now() >= patience:
                break
            for reply in self.exchange.gather({-1}, t + 1, min(patience, self.clock.now() + _IDLE_POLL)):
                self._too_late(reply)
        if setting.cohort is not None and free.size > setting.cohort:
            free = np.sort(rng_for(self.terms.seed, "cohort", t).choice(free, setting.cohort, replace=False))
        return free

    def _task(self, number: int, batch: int, seconds: float, node: Node | None) -> Task:
        rate = float(self.eta[max(0, number - 1)])
        pace = node.expected if node is not None and node.measured else ()
        return Task(number, batch, self.terms.local_iterations, rate, seconds, self.shape.layers, pace)

    def collect(self, current: Round) -> None:
        """Take replies in until the round closes: at its end, or when nobody is left to wait for."""
        for reply in self.exchange.gather(current.asked, current.number, current.end):
            if reply.round != current.number:
                self._too_late(reply)
                continue
            try:
                update, done = self._admit(current.gate, reply)
            except UpdateRejected as no:
                if no.reason is Reason.no_content:
                    current.failed[reply.node] = no.sentence
                self._reject(current, reply.node, no)
            else:
                current.updates.append(update)
                current.done[update.node] = done
                current.contents[update.node] = reply.message
        current.updates, out = current.gate.in_line(current.updates)
        for update, reason in out:
            self._reject(current, update.node, reason)

    def _reject(self, current: Round, node: int, no: UpdateRejected) -> None:
        current.rejected[no.reason.value] += 1
        log.warning("round %d, node %d: rejected, %s", current.number, node, no)

    def _too_late(self, reply: Reply) -> None:
        """Of a round that is over: nothing of it is used but how long it took."""
        self.late[reply.round] += 1
        self._learn(reply)
        why = "no reply" if reply.error else f"{reply.arrived:.2f} s after it was asked"
        log.warning("round %d, node %d: rejected, late: %s", reply.round, reply.node, why)

    def _learn(self, reply: Reply) -> None:
        if reply.error is None:
            node = self.nodes.setdefault(reply.node, Node(reply.node, self.L))
            node.learn(reply.arrived, Report.read(_metrics(reply.message), self.L))

    def _admit(self, gate: Gate, reply: Reply) -> tuple[Update, int]:
        """A reply that passed every check, and how many layers it finished over all iterations."""
        if reply.error is not None:
            raise UpdateRejected(Reason.no_content, reply.error)
        self._learn(reply)
        said = _metrics(reply.message)
        report = Report.read(said, self.L)
        files = _files(reply.message, self.terms.arrayrecord_key)
        update = gate.admit(reply.node, report.round, files, said.get(self.terms.weighted_by_key), reply.arrived)
        most = self.L * self.terms.local_iterations
        whole = type(report.done) is int and update.depth <= report.done <= most
        if not whole or update.depth != min(self.L, report.done):  # type: ignore[call-overload]
            raise UpdateRejected(Reason.bad_depth, f"{update.depth} layers, and it says {str(report.done)[:20]}")
        return update, report.done  # type: ignore[return-value]

    def merge(self, current: Round) -> bool:
        """Move the weights by what was delivered; whether enough was."""
        assert self.plan is not None
        useful = [update for update in current.updates if update.depth > 0]
        waiting = math.isinf(current.orders.deadline)
        silent = current.asked - {u.node for u in current.updates} - set(current.failed)
        if len(useful) < max(1, self.terms.min_reports) or (waiting and silent):
            return False
        ids = [self.plan.nodes[i] for i in current.devices]
        z = np.array([current.done.get(n, 0) if n in {u.node for u in useful} else 0 for n in ids])
        rate = self._rates(current, ids)
        progress = Progress(z, self.L, self.terms.local_iterations, rate)
        A = self.plan.strategy.weights(current.number - 1 - self.plan.first, progress)
        merge = Merge[Array](self.shape.layers)
        by_node = {update.node: update for update in useful}
        for node, weights in zip(ids, A, strict=True):
            if node in by_node:
                merge.add(by_node[node].changes, weights)
        self.weights = self.weights | {name: self.weights[name] + change for name, change in merge.total.items()}
        return True

    def _rates(self, current: Round, ids: list[int]) -> Floats:
        """λ_u with what is known of the nodes, 0 for one that was not asked."""
        T = current.end - current.begin
        found = np.zeros(len(ids))
        for i, n in enumerate(ids):
            if n in current.tasks:
                node = self.nodes[n]
                found[i] = node.compute * max(0.0, T - node.upload) / current.tasks[n].batch
        return found


def _metrics(message: Message) -> dict[str, Any]:
    """The first metrics record of a reply, whatever its name; of equal names the last counts."""
    for record in message.content.metric_records.values():
        return dict(record)
    return {}


def _files(message: Message, key: str) -> dict[str, bytes]:
    record = message.content.array_records.get(key)
    if record is None:
        others = list(message.content.array_records.values())
        record = others[0] if len(others) == 1 else ArrayRecord()
    found = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise UpdateRejected(Reason.unreadable, f"{name!r} is of serialisation {array.stype!r}")
        found[name] = array.data
    return found


def estimate(found: Mapping[int, list[dict[str, Array]]], shape: Shape, batch: int, rate: float) -> Constants | None:
    """σ² and G² per layer from two updates of each node at the same weights; None if nobody sent two.

    With another optimizer than SGD an update is no gradient, but only the ratio of the two numbers moves a plan.
    """
    differences, sizes = [], []
    whole = {name for layer in shape.layers for name in layer}
    for updates in found.values():
        if len(updates) < 2 or any(set(u) != whole for u in updates[:2]):
            continue
        one, other = ({n: v.astype(np.float64) / rate for n, v in u.items()} for u in updates[:2])
        differences.append(sum(float(np.square(one[n] - other[n]).sum()) for n in whole))
        sizes.append([sum(float(np.square(one[n] + other[n]).sum()) / 4.0 for n in layer) for layer in shape.layers])
    return Constants.from_pairs(differences, sizes, batch) if differences else None
