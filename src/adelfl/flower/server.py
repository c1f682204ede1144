"""The server's side: a Flower strategy whose rounds close when a plan says.

strategy = DeadlineStrategy(budget=600, method="adel", learning_rate=0.1)
result = strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=50)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from adelfl.clock import Clock, RealClock
from adelfl.errors import AdelError, ConfigError
from adelfl.flower.exchange import Exchange
from adelfl.flower.keeping import Keeper
from adelfl.flower.protocol import Task
from adelfl.flower.replies import Aggregate, average_metrics
from adelfl.flower.session import Session
from adelfl.flower.terms import Round, Terms
from adelfl.learning_rate import ConstantRate, LearningRate
from adelfl.planner import Constants
from adelfl.seeds import rng_for

log = logging.getLogger("flwr")

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

_MARGIN = 1.1  # of the longest time that the server took between rounds

_CLOCK_ERROR = 2 * 3600.0
"""A reply carries its sender's wall clock, and Flower refuses it if that is ahead by more than the message's time to
live. So messages live longer than any clock is wrong, and a node is sent no second one before it has answered."""


class DeadlineStrategy(Strategy):
    """Federated training that ends in time.

    Parameters
    ----------
    budget : float
        T_max, seconds from the call of :meth:`start` to its end.
    method : {"adel", "salf", "drop", "wait"}
        How stragglers are treated; or ``package.module:Class`` of an own :class:`~adelfl.strategies.Strategy`.
    learning_rate : float or LearningRate
        η_t; sent to the clients with every round.
    batch : int
        Samples per local iteration, of the baselines and while nodes are measured; adel plans its own.
    local_iterations : int
        E.
    layers : sequence, optional
        Names of parameters of each layer, input side first. By default the arrays' names are grouped by what comes
        before their last dot, in their order, which is right for models that list their layers in the order of
        execution; the clients check that.
    plan_options : mapping, optional
        Options of the method, such as ``{"correction": "none"}``.
    constants : Constants, optional
        What the bound needs to know; by default estimated while nodes are measured.
    min_reports : int
        A round in which fewer nodes deliver something is abandoned: the model stays as it is.
    norm_limit : float
        k: updates with a layer whose norm exceeds k times the round's median are rejected; infinite to switch that off.
    measure_share : float
        Share of the budget that measuring may take at most.
    record : str or Path, optional
        Folder for the run's record. If it holds a run that was interrupted, that run is continued.
    evaluate_seconds : float, optional
        How long federated evaluation may take after a round; by default a quarter of a mean round.
    seed : int
        Of the choice of nodes where not all take part.
    oversample : bool
        Whether a batch may be larger than the data of its node, whose samples are then drawn with replacement. By
        default it is cut to the data, and drawn without.
    clock : Clock, optional
        For tests.
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes, weighted_by_key,
    arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As for Flower's ``FedAvg``, but that federated evaluation is off by default, since its time is the budget's, and
        that ``weighted_by_key`` weighs metrics only: the merge weighs nodes as the paper does.
    """

    def __init__(
        self,
        *,
        budget: float,
        method: str = "adel",
        learning_rate: float | LearningRate = 0.1,
        batch: int = 16,
        local_iterations: int = 1,
        layers: Sequence[Sequence[str]] | None = None,
        plan_options: Mapping[str, Any] | None = None,
        constants: Constants | None = None,
        min_reports: int = 1,
        norm_limit: float = 10.0,
        measure_share: float = 0.2,
        record: str | Path | None = None,
        evaluate_seconds: float | None = None,
        seed: int = 0,
        oversample: bool = False,
        clock: Clock | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
    ) -> None:
        if not 0 <= fraction_evaluate <= 1:
            raise ConfigError(f"fraction_evaluate must be between 0 and 1, not {fraction_evaluate!r}")
        rate = learning_rate if isinstance(learning_rate, LearningRate) else ConstantRate(float(learning_rate))
        self._terms = Terms(
            rounds=1,  # start says how many
            budget=float(budget),
            method=method,
            options=dict(plan_options or {}),
            batch=batch,
            learning_rate=rate,
            local_iterations=local_iterations,
            constants=constants,
            fraction_train=fraction_train,
            min_train_nodes=min_train_nodes,
            min_available_nodes=min_available_nodes,
            min_reports=min_reports,
            norm_limit=norm_limit,
            measure_share=measure_share,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            seed=seed,
            oversample=oversample,
        )
        self.layers = None if layers is None else [list(layer) for layer in layers]
        self.record = None if record is None else Path(record)
        self.evaluate_seconds, self.fraction_evaluate = evaluate_seconds, fraction_evaluate
        self.min_evaluate_nodes = min_evaluate_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or aggregate_metricrecords
        self._clock = clock
        self._session: Session | None = None
        self._round: Round | None = None

    @property
    def session(self) -> Session:
        """What is known of the run that is going on."""
        if self._session is None:
            raise AdelError("DeadlineStrategy keeps the time itself: call its start method")
        return self._session

    def summary(self) -> None:
        """Log what was asked for."""
        t = self._terms
        log.info("\t└──> %s, %g s, batch %d, %d local iterations", t.method, t.budget, t.batch, t.local_iterations)

    # -- Flower's four questions

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Decide when the round closes, and what each node is asked to do until then."""
        self._round = self.session.open_round(server_round - 1)
        if self._round is None:
            return []
        config["server-round"] = server_round
        return [self._message(node, task, arrays, config) for node, task in self._round.tasks.items()]

    def _addressed(self, content: RecordDict, node: int, kind: str, number: int) -> Message:
        lives = _CLOCK_ERROR + self._terms.budget
        return Message(content, dst_node_id=node, message_type=kind, ttl=lives, group_id=str(number))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merge what was delivered, layer by layer; None if the round is abandoned."""
        current = self._round
        if current is None:
            return None, None
        merged = self.session.merge(current)
        metrics = average_metrics(replies, self.train_metrics_aggr_fn, self.weighted_by_key)
        return (self._arrays() if merged else None), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask some nodes to evaluate the model."""
        if self.fraction_evaluate == 0.0:
            return []
        idle = [n for n in self.session.exchange.nodes() if n not in self.session.exchange.busy]
        wanted = max(self.min_evaluate_nodes, round(self.fraction_evaluate * len(idle)))
        chosen = rng_for(self._terms.seed, "evaluate", server_round).permutation(idle)[:wanted].tolist()
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [self._addressed(content, n, MessageType.EVALUATE, server_round) for n in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average what they found."""
        return average_metrics(replies, self.evaluate_metrics_aggr_fn, self.weighted_by_key)

    # -- the run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Measure, plan, train until the rounds or the budget are over.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn
            As for Flower's strategies. What ``evaluate_fn`` takes is the budget's time too.
        timeout : float, optional
            Not needed: rounds close when the plan says.
        """
        weights = {name: array.numpy().copy() for name, array in initial_arrays.items()}
        layers = self.layers or group_by_module(list(weights))
        terms = replace(self._terms, rounds=num_rounds)
        keeper = Keeper(self.record, terms, layers)
        with keeper:
            clock = self._clock or RealClock(keeper.time_used)
            self._session = Session(terms, Exchange(grid, clock), keeper.weights or weights, layers)
            keeper.recall(self._session)
            self.summary()
            return self._go(keeper, train_config or ConfigRecord(), evaluate_config or ConfigRecord(), evaluate_fn)

    def _go(
        self,
        keeper: Keeper,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: Evaluate | None,
    ) -> Result:
        s, result = self.session, Result(arrays=self._arrays())
        if s.clock.now() >= s.terms.budget:
            log.warning("the budget was over before this process began; the model is that of round %d", keeper.round)
            keeper.finish(s)
            return result
        try:
            s.wait_for_nodes(2 if keeper.round else s.terms.min_available_nodes)
            if keeper.round == 0 and not s.nodes:
                s.measure(lambda node, task: self._message(node, task, result.arrays, train_config))
                keeper.begin(s, self._evaluate(0, evaluate_fn, result))
            number = keeper.round
            while number < s.rounds:
                number += 1
                log.info("[ROUND %d/%d] %.1f s of %.1f s", number, s.rounds, s.clock.now(), s.terms.budget)
                messages = list(self.configure_train(number, result.arrays, train_config, s.exchange.grid))
                if self._round is None:
                    log.info("the budget is used up after %d rounds", number - 1)
                    break
                self._one_round(self._round, messages, keeper, result, train_config, evaluate_config, evaluate_fn)
        except AdelError as trouble:
            if keeper.round == 0 and not result.train_metrics_clientapp:
                raise
            log.error("the run ends early, with the model that it has: %s", trouble)
        keeper.finish(s)
        log.info("ended after %.2f s of %.2f s", s.clock.now(), s.terms.budget)
        return result

    def _one_round(
        self,
        current: Round,
        messages: list[Message],
        keeper: Keeper,
        result: Result,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        evaluate_fn: Evaluate | None,
    ) -> None:
        s, number = self.session, current.number
        current.asked = s.exchange.send(messages, number, current.end)
        guests = [self._message(node, task, result.arrays, train_config) for node, task in current.guests.items()]
        s.exchange.send(guests, 0, current.end)
        s.collect(current)
        accepted = [current.contents[u.node] for u in current.updates if u.depth > 0]
        if not accepted and not math.isinf(current.orders.deadline):
            s.clock.sleep_until(current.end)  # errors may come at once; rounds are not thrown away for that
        closed = s.clock.now()
        arrays, metrics = self.aggregate_train(number, accepted)
        s.look_back(current)
        if arrays is None:
            log.warning("round %d is abandoned: %d of %d nodes delivered", number, len(accepted), len(current.asked))
        else:
            result.arrays = arrays
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        self._evaluate_at_nodes(number, result, evaluate_config)
        found = self._evaluate(number, evaluate_fn, result)
        keeper.keep(s, current, closed, merged=arrays is not None, metrics=metrics, evaluated=found)
        s.between = max(s.between, _MARGIN * (s.clock.now() - closed))

    def _evaluate(self, number: int, evaluate_fn: Evaluate | None, result: Result) -> MetricRecord | None:
        if evaluate_fn is None:
            return None
        clock = self.session.clock
        began = clock.now()
        found = evaluate_fn(number, result.arrays)
        self.session.between = max(self.session.between, _MARGIN * (clock.now() - began))
        if found is not None:
            log.info("\t└──> %s", dict(found))
            result.evaluate_metrics_serverapp[number] = found
        return found

    def _evaluate_at_nodes(self, number: int, result: Result, config: ConfigRecord) -> None:
        s = self.session
        messages = list(self.configure_evaluate(number, result.arrays, config, s.exchange.grid))
        if not messages:
            return
        allowed = self.evaluate_seconds or s.terms.budget / s.terms.rounds / 4
        end = min(s.clock.now() + allowed, s.terms.budget)
        asked = s.exchange.send(messages, -number, end)
        found = []
        for reply in s.exchange.gather(asked, -number, end):
            if reply.round != -number:
                s.too_late(reply)
            elif reply.error is None and reply.message is not None:
                found.append(reply.message)
        metrics = self.aggregate_evaluate(number, found)
        if metrics is not None:
            result.evaluate_metrics_clientapp[number] = metrics

    def _message(self, node: int, task: Task, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        said = ConfigRecord({**config, **task.write()})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: said})
        return self._addressed(content, node, MessageType.TRAIN, task.round)

    def _arrays(self) -> ArrayRecord:
        return ArrayRecord({name: Array(value) for name, value in self.session.weights.items()})


def group_by_module(names: Sequence[str]) -> list[list[str]]:
    """Parameters by the module that holds them, in the order in which the modules come first."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return list(found.values())
