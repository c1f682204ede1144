"""One run on Flower: measure the nodes, plan, then rounds that close when the plan says.

    budget  =  round 0 (measuring)  +  T_1  +  …  +  T_R  +  what the server does in between

Deadlines are scaled by what is really left of the budget, so nothing that happens moves its end.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

import numpy as np

from adelfl.clock import Clock
from adelfl.errors import AdelError, ConfigError, InfeasibleBudgetError
from adelfl.flower.exchange import Exchange, Reply
from adelfl.flower.hindsight import look_back
from adelfl.flower.nodes import Node, check_lags, fleet_of
from adelfl.flower.protocol import Report, Task
from adelfl.flower.replies import estimate, files_of, metrics_of, moved_by
from adelfl.flower.terms import Plan, Rest, Round, Terms
from adelfl.planner import Constants, Problem
from adelfl.seeds import rng_for
from adelfl.strategies import find_strategy
from adelfl.strategies.rounds import Ints, Progress, RoundStrategy
from adelfl.updates import Array, Gate, Reason, Shape, Update, UpdateRejected

log = logging.getLogger("flwr")

_IDLE_POLL = 0.25
_PATIENCE = 3.0  # mean rounds after which a node that does not answer has lost its message
_RESTED = 3  # rounds that a node is left out before the plan is made again
_MOST_CORRECTION = 5.0
"""Most that 1/(1 − p) may come to: real layer times are not exponential, so p is a guess where it is near 1."""
_WORTH_WHILE = 1.5  # how much longer than a median node's lag a round is at least
_SAVED = 0.1  # of the time that was planned with: from then on it is worth a new plan

Weights = dict[str, Array]


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
        self.nodes: dict[int, Node] = {}
        self.constants = terms.constants
        self.plan: Plan | None = None
        self.rounds = terms.rounds
        self.between = 0.0  # seconds that the server needs between two rounds
        self.late: Counter[int] = Counter()

    @property
    def measured(self) -> int:
        """How many nodes can be planned with."""
        return sum(node.measured for node in self.nodes.values())

    # -- before the first round

    def wait_for_nodes(self, needed: int) -> None:
        """Until enough are connected; an error if that takes the whole budget."""
        needed, told = max(2, needed), -1
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
            gate = Gate(self.shape, 0, nodes, norm_limit=self.terms.norm_limit)
            tasks = {n: self._task(0, self.terms.batch, math.inf, self.nodes.get(n)) for n in nodes}
            for n in nodes:
                self.nodes[n] = Node(n, self.L)  # what was learned from a cold start is forgotten
            missing = self.exchange.send([make(n, task) for n, task in tasks.items()], 0, end)
            # Two nodes are the least to plan with: they are waited for longer, but not for ever.
            while missing and self.clock.now() < (end if self.measured >= 2 else first + self.terms.budget / 2):
                for reply in self.exchange.gather(missing, 0, self.clock.now() + _IDLE_POLL):
                    missing.discard(reply.node)
                    try:
                        update, _ = self._admit(gate, reply)
                        found.setdefault(reply.node, []).append(update.changes)
                    except UpdateRejected as no:
                        if no.reason is Reason.unselected:  # it answers the first turn when the second is on
                            self._learn(reply)
                            continue
                        troubles.append(f"node {reply.node}: {no}")
                        log.warning("round 0: %s", troubles[-1])
        if self.measured == 0:
            why = f" ({troubles[0]})" if troubles else ""
            raise AdelError(f"no node answered in {self.clock.now() - first:.1f} s while they were measured{why}")
        if self.constants is None:
            self.constants = estimate(found, self.shape, self.terms.batch, self.terms.rate_in(1)) or Constants()

    def make_plan(self, t: int) -> None:
        """Plan rounds t, t+1, … for the nodes that are measured, with the budget that is left.

        If too little of a round would be computing, there are fewer of them; more again when lags turn out shorter.
        """
        nodes = [self.nodes[n] for n in sorted(self.nodes) if self.nodes[n].measured]
        left = self.terms.budget - self.clock.now() - self.between
        if left <= 0:
            raise AdelError("the budget was used up before the first round")
        strategy, asked = None, max(1, self.rounds - t)
        lag = float(np.median([node.upload for node in nodes]))
        most = min(asked, max(1, int(left / (_WORTH_WHILE * lag)))) if lag > 0 else asked
        for rounds in range(most, 0, -1):
            try:
                strategy = self._strategy(nodes, t, rounds, self._time_for(rounds))
                break
            except InfeasibleBudgetError:
                if rounds > 1:
                    continue
                if self.plan is None:
                    raise
                return  # better an old plan than none
        assert strategy is not None
        for node in nodes:
            node.rested = 0
        plan = Plan(strategy, tuple(n.id for n in nodes), t)
        if self.plan is not None:
            plan.inherit(self.plan)
        self.plan, self.rounds = plan, t + strategy.rounds
        if strategy.problem.rounds < asked:
            log.warning(
                "%d rounds do not fit into %.1f s, since %.1f s of each are not computing: %d are planned",
                asked, left, lag, strategy.problem.rounds,
            )  # fmt: skip
        self.exchange.patience = _PATIENCE * max(1.0, strategy.problem.uniform_deadline)
        log.info("%s: %d rounds, %d nodes, %.1f s left", strategy.label, strategy.rounds, len(nodes), left)
        for note in strategy.notes:
            log.info("%s", note)

    def _time_for(self, rounds: int) -> float:
        """Seconds of the budget that so many more rounds may take, without what lies between them."""
        return max(1e-9, self.terms.budget - self.clock.now() - rounds * self.between)

    def _strategy(self, nodes: list[Node], t: int, rounds: int, left: float) -> RoundStrategy:
        cohort = max(2, self.terms.min_train_nodes, round(self.terms.fraction_train * len(nodes)))
        problem = Problem(
            fleet=fleet_of(nodes),
            layers=self.L,
            rounds=rounds,
            budget=left,
            batch=self.terms.batch,
            learning_rate=Rest(self.terms.learning_rate, t),
            constants=self.constants or Constants(),
            cohort=cohort if cohort < len(nodes) else None,
            local_iterations=self.terms.local_iterations,
            samples=None if self.terms.oversample else [node.rows or math.inf for node in nodes],
        )
        check_lags(nodes, max(2, self.terms.min_reports), problem.uniform_deadline)
        options = dict(self.terms.options)
        if self.plan is not None:  # how many rounds there are was chosen once
            options.pop("rounds", None)
        strategy = find_strategy(self.terms.method)(problem, **options)
        if not isinstance(strategy, RoundStrategy):
            raise ConfigError(f"method {self.terms.method!r} is not synchronous; a deployment has rounds")
        return strategy

    # -- a round

    def open_round(self, t: int) -> Round | None:
        """Choose who is asked to do what in round t (from 0); None if there is no time for it any more."""
        if self.clock.now() + self.between >= self.terms.budget:
            return None
        if self._is_outdated(t):
            self.make_plan(t)
        assert self.plan is not None
        plan = self.plan
        devices = self._choose(t)
        begin = self.clock.now()
        left = self._time_for(self.rounds - t)
        if begin + self.between >= self.terms.budget:
            return None
        orders = plan.strategy.orders(t - plan.first, devices)
        meant = plan.planned(t)
        waits = math.isinf(meant)
        end = self.terms.budget - self.between if waits else begin + orders.deadline * left / meant
        tasks = {}
        for position, batch in zip(devices, orders.batch, strict=True):
            node = self.nodes[plan.nodes[position]]
            seconds = math.inf if waits else end - begin - node.lag - node.tail
            if batch > 0 and seconds > node.setup:
                most = int(batch) if self.terms.oversample else node.rows or int(batch)
                tasks[node.id] = self._task(t + 1, min(int(batch), most), seconds, node)
            else:
                node.rest()
        ids = [plan.nodes[i] for i in devices]
        rates = np.array([self.nodes[n].rate(tasks[n].batch, end - begin) if n in tasks else 0.0 for n in ids])
        guests = {n: self._task(0, self.terms.batch, math.inf, None) for n in self._strangers()}
        # Not the gate tells what is late, but the exchange, which knows what has arrived by the end.
        gate = Gate(self.shape, t + 1, tasks, norm_limit=self.terms.norm_limit)
        return Round(t + 1, begin, end, devices, orders, gate, tasks, rates, guests)

    def _strangers(self) -> list[int]:
        """Connected and idle nodes that are not measured: they came late, or failed when it was their turn."""
        busy = self.exchange.busy
        return [n for n in self.exchange.nodes() if n not in busy and not (n in self.nodes and self.nodes[n].measured)]

    def _is_outdated(self, t: int) -> bool:
        """Whether the plan does not know a node, or leaves one out for long, or time was saved since it was made."""
        if self.plan is None:
            return True
        measured = {n: node for n, node in self.nodes.items() if node.measured}
        if measured.keys() - set(self.plan.nodes) or any(node.rested >= _RESTED for node in measured.values()):
            return True
        return self._time_for(self.rounds - t) > (1 + _SAVED) * self.plan.planned(t)

    def _choose(self, t: int) -> Ints:
        """Positions in the plan of nodes that are connected and idle: all, or a random cohort.

        Where there are too few, some are waited for, but no longer than a mean round.
        """
        assert self.plan is not None
        problem = self.plan.strategy.problem
        needed = min(len(self.plan.nodes), max(1, self.terms.min_train_nodes))
        patience = min(self.terms.budget - self.between, self.clock.now() + problem.budget / problem.rounds)
        while True:
            idle = set(self.exchange.nodes()) - self.exchange.busy
            free = np.array([i for i, n in enumerate(self.plan.nodes) if n in idle], dtype=np.int64)
            if free.size >= needed or self.clock.now() >= patience:
                break
            for reply in self.exchange.gather({-1}, t + 1, min(patience, self.clock.now() + _IDLE_POLL)):
                self.too_late(reply)
        if problem.cohort is not None and free.size > problem.cohort:
            free = np.sort(rng_for(self.terms.seed, "cohort", t).choice(free, problem.cohort, replace=False))
        return free

    def _task(self, number: int, batch: int, seconds: float, node: Node | None) -> Task:
        pace = node.expected if node is not None and node.measured else ()
        E, rate = self.terms.local_iterations, self.terms.rate_in(number)
        return Task(number, batch, E, rate, seconds, self.shape.layers, pace, self.terms.oversample)

    def collect(self, current: Round) -> None:
        """Take replies in until the round closes: at its end, or when nobody is left to wait for."""
        for reply in self.exchange.gather(current.asked, current.number, current.end):
            if reply.round != current.number:
                self.too_late(reply)
                continue
            current.replied.add(reply.node)
            try:
                update, done = self._admit(current.gate, reply)
            except UpdateRejected as no:
                self._reject(current, reply.node, no)
            else:
                assert reply.message is not None
                current.updates.append(update)
                current.done[update.node] = done
                compute = Report.read(metrics_of(reply.message), self.L).compute
                if 0 < compute <= reply.arrived:
                    current.took[update.node] = (compute, reply.arrived - compute)
                current.contents[update.node] = reply.message
        current.updates, out = current.gate.in_line(current.updates)
        for update, reason in out:
            self._reject(current, update.node, reason)

    def _reject(self, current: Round, node: int, no: UpdateRejected) -> None:
        current.rejected[no.reason.value] += 1
        log.warning("round %d, node %d: rejected, %s", current.number, node, no)

    def too_late(self, reply: Reply) -> None:
        """Of a round that is over, or of none: nothing of it is used but how long it took."""
        if reply.round < 0:  # an evaluation
            return
        self._learn(reply)
        if reply.round == 0:
            log.info("node %d is measured", reply.node)
            return
        self.late[reply.round] += 1
        if reply.error is None:
            self.nodes[reply.node].overran(reply.arrived - reply.due)
        why = reply.error or f"{reply.arrived:.2f} s after it was asked"
        log.warning("round %d, node %d: rejected, late: %s", reply.round, reply.node, why)

    def _learn(self, reply: Reply) -> None:
        if reply.error is None and reply.message is not None:
            node = self.nodes.setdefault(reply.node, Node(reply.node, self.L))
            node.learn(reply.arrived, Report.read(metrics_of(reply.message), self.L))

    def _admit(self, gate: Gate, reply: Reply) -> tuple[Update, int]:
        """A reply that passed every check, and how many layers it finished over all iterations."""
        if reply.error is not None or reply.message is None:
            raise UpdateRejected(Reason.no_content, reply.error or "")
        said = metrics_of(reply.message)
        report = Report.read(said, self.L)
        files = files_of(reply.message, self.terms.arrayrecord_key)
        update = gate.admit(reply.node, report.round, files, said.get(self.terms.weighted_by_key), reply.arrived)
        most = self.L * self.terms.local_iterations
        whole = type(report.done) is int and update.depth <= report.done <= most
        if not whole or update.depth != min(self.L, report.done):  # type: ignore[call-overload]
            raise UpdateRejected(Reason.bad_depth, f"{update.depth} layers, and it says {str(report.done)[:20]}")
        self._learn(reply)
        return update, report.done  # type: ignore[return-value]

    def merge(self, current: Round) -> bool:
        """Move the weights by what was delivered; whether enough was."""
        assert self.plan is not None
        useful = {update.node: update for update in current.updates if update.depth > 0}
        waits = math.isinf(current.orders.deadline)
        if len(useful) < max(1, self.terms.min_reports) or (waits and current.asked - current.replied):
            return False
        ids = [self.plan.nodes[i] for i in current.devices]
        z = np.array([current.done[n] if n in useful else 0 for n in ids])
        progress = Progress(z, self.L, self.terms.local_iterations, current.rates, batch=current.batches(ids))
        A = self.plan.strategy.weights(current.number - 1 - self.plan.first, progress)
        A = A / np.maximum(1.0, A.sum(axis=0) / _MOST_CORRECTION)
        counting = ((useful[node], weights) for node, weights in zip(ids, A, strict=True) if node in useful)
        moved = moved_by(counting, self.weights, self.shape)
        if moved is None:
            log.warning("round %d: the merged model would not be finite", current.number)
            return False
        self.weights = moved
        return True

    def look_back(self, current: Round) -> None:
        """Let the method learn from a round that is over, and plan the rest with the time that is left."""
        assert self.plan is not None
        left = self._time_for(self.rounds - current.number)
        look_back(current, self.plan, self.nodes, self.shape, self.terms.rate_in(current.number), left)
