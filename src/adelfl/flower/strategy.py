"""A Flower strategy whose rounds close when a plan says.

strategy = DeadlineStrategy(budget=600, method="adel", learning_rate=0.1)
result = strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=50)
"""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from adelfl.clock import Clock, RealClock, wall_seconds
from adelfl.errors import AdelError, ConfigError
from adelfl.flower.backend import OnFlower
from adelfl.flower.exchange import Exchange
from adelfl.flower.protocol import Task, is_statistic
from adelfl.flower.replies import Aggregate, average_metrics
from adelfl.flower.run import FlowerRun, check_same_run, recorded
from adelfl.learning_rate import LearningRate, as_learning_rate
from adelfl.planner import Constants
from adelfl.records.schema import RunInfo
from adelfl.runtime.run import Record
from adelfl.runtime.server_step import ServerStep
from adelfl.seeds import rng_for
from adelfl.strategies import BUILT_IN
from adelfl.strategies import Strategy as Method
from adelfl.strategies.deployed import deployed
from adelfl.updates import Shape

log = logging.getLogger("flwr")

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

METHODS = tuple(name for name in BUILT_IN if name not in ("oracle", "clairvoyant", "heterofl", "scaffold"))
"""Built-in methods that can run on a deployment."""

_CLOCK_ERROR = 2 * 3600.0
"""Flower refuses a reply whose wall clock is ahead by more than the message's time to live. So messages live longer
than clocks are wrong, and a node is sent no second message before it has answered the first."""


class DeadlineStrategy(Strategy):
    """Federated training that ends in time.

    Parameters
    ----------
    budget : float
        T_max, seconds from the call of :meth:`start` to its end.
    method : str
        How stragglers are treated: "adel", "salf", "wait", "fedbuff" or another of :data:`METHODS`, or
        ``package.module:Class`` of a :class:`~adelfl.strategies.Strategy` of your own.
    learning_rate : float or LearningRate
        η_t; sent to the clients with every task.
    batch : int
        Samples per local iteration, of the baselines and in the opening round; adel plans its own.
    local_iterations : int or "auto"
        E, or "auto" to let the plan choose it: as many local steps as fit until a round closes, of a batch that the
        learning rate bears.
    layers : sequence, optional
        Names of parameters of each layer, input side first. By default the arrays' names are grouped by what comes
        before their last dot, in their order, which is right for models that list their layers in the order of
        execution; the clients check that.
    plan_options : mapping, optional
        Options of the method, such as ``{"correction": "none"}``.
    constants : Constants, optional
        What the bound needs to know; by default estimated in the opening round.
    server_step : str or ServerStep
        How the server uses merged changes: "sgd" as in the paper, "momentum", "adagrad", "adam", "yogi", "average".
    min_reports : int
        A round in which fewer nodes deliver something is abandoned: the model stays as it is.
    norm_limit : float
        k: updates with a layer whose norm exceeds k times the round's median are rejected; infinite to switch that off.
    measure_share : float
        Share of the budget that the opening round, which trains and measures, may take.
    record : str or Path, optional
        Folder for the run's record. If it holds a run that was interrupted, that run is continued.
    evaluate_seconds : float, optional
        Limit for federated evaluation after a round; by default a quarter of a mean round.
    seed : int
        Seed of the choice of nodes where not all take part.
    oversample : bool
        Whether a batch may be larger than the data of its node, whose samples are then drawn with replacement. By
        default it is cut to the data, and drawn without.
    clock : Clock, optional
        For tests.
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes, weighted_by_key,
    arrayrecord_key, configrecord_key, train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        As for Flower's ``FedAvg``, except that federated evaluation is off by default, since its time is the budget's,
        and that ``weighted_by_key`` weighs metrics only.
    """

    def __init__(
        self,
        *,
        budget: float,
        method: str = "adel",
        learning_rate: float | LearningRate = 0.1,
        batch: int = 16,
        local_iterations: int | Literal["auto"] = 1,
        layers: Sequence[Sequence[str]] | None = None,
        plan_options: Mapping[str, Any] | None = None,
        constants: Constants | None = None,
        server_step: str | ServerStep = "sgd",
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
        for key, value, holds, allowed in (
            ("budget", budget, math.isfinite(budget) and budget > 0, "a positive number of seconds"),
            ("batch", batch, batch >= 1, "at least 1"),
            ("local_iterations", local_iterations, local_iterations == "auto" or local_iterations >= 1, "at least 1"),
            ("min_reports", min_reports, min_reports >= 1, "at least 1"),
            ("norm_limit", norm_limit, norm_limit > 1, "above 1"),
            ("measure_share", measure_share, 0 < measure_share < 1, "between 0 and 1"),
            ("fraction_train", fraction_train, 0 < fraction_train <= 1, "above 0 and at most 1"),
            ("fraction_evaluate", fraction_evaluate, 0 <= fraction_evaluate <= 1, "between 0 and 1"),
        ):
            if not holds:
                raise ConfigError(f"{key} must be {allowed}, not {value!r}")
        if method not in BUILT_IN and ":" not in method:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, or package.module:Class, not {method!r}")
        self.budget, self.method, self.plan_options = float(budget), method, dict(plan_options or {})
        self.learning_rate, self.batch, self.local_iterations = as_learning_rate(learning_rate), batch, local_iterations
        self.constants, self.min_reports, self.norm_limit = constants, min_reports, norm_limit
        self.server_step = server_step if isinstance(server_step, ServerStep) else ServerStep(server_step)  # type: ignore[arg-type]
        self.measure_share, self.seed, self.oversample = measure_share, seed, oversample
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_available_nodes = min_train_nodes, min_available_nodes
        self.min_evaluate_nodes, self.evaluate_seconds = min_evaluate_nodes, evaluate_seconds
        self.layers = None if layers is None else [list(layer) for layer in layers]
        self.record = None if record is None else Path(record)
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or aggregate_metricrecords
        self._clock = clock
        self._run: FlowerRun | None = None

    @property
    def run(self) -> FlowerRun:
        """The run that :meth:`start` began."""
        if self._run is None:
            raise AdelError("DeadlineStrategy runs its own loop: call its start method")
        return self._run

    def summary(self) -> None:
        """Log the settings."""
        log.info(
            "\t└──> %s, %g s, batch %d, local steps: %s",
            self.method,
            self.budget,
            self.batch,
            self.local_iterations,
        )

    # -- Flower's four questions

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuse: tasks are sent by the loop that :meth:`start` runs, when the method says."""
        raise AdelError("DeadlineStrategy runs its own loop: call its start method")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the metrics of replies; the weights are merged by the loop that :meth:`start` runs."""
        return self.run.result.arrays, average_metrics(replies, self.train_metrics_aggr_fn, self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask some nodes to evaluate the model."""
        if self.fraction_evaluate == 0.0:
            return []
        exchange = self.run.backend.exchange
        busy = exchange.busy
        idle = [n for n in exchange.nodes() if n not in busy]
        wanted = max(self.min_evaluate_nodes, round(self.fraction_evaluate * len(idle)))
        order = rng_for(self.seed, "evaluate", server_round).permutation(len(idle))[:wanted]
        chosen = [idle[i] for i in order]  # Flower's ids have 64 bits without a sign: no array holds them all
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [self._addressed(content, n, MessageType.EVALUATE, server_round) for n in chosen]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of nodes that evaluated the model."""
        return average_metrics(replies, self.evaluate_metrics_aggr_fn, self.weighted_by_key)

    # -- the run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | Literal["auto"] = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Train until the rounds or the budget are over.

        Parameters
        ----------
        grid, initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn
            As for Flower's strategies. ``num_rounds="auto"`` lets the plan choose the number of rounds, which then go
            on until the budget is used up. For an asynchronous method, ``num_rounds`` is the number of merges. The time
            that ``evaluate_fn`` takes is part of the budget.
        timeout : float, optional
            Not used: rounds close when the plan says.
        """
        rounds = None if num_rounds == "auto" else num_rounds
        if rounds is not None and rounds < 1:
            raise ConfigError(f"num_rounds must be at least 1, not {num_rounds!r}")
        weights = {name: array.numpy().copy() for name, array in initial_arrays.items()}
        layers = self.layers or group_by_module([name for name in weights if not is_statistic(name)])
        shape = Shape.of(weights, layers)
        strategy = self._strategy(len(layers), rounds)
        info = self._info(layers, num_rounds, strategy.rounds)
        with Record.open(self.record, info, partial(check_same_run, info)) as record:
            began = None if record.writer is None else record.info.started
            clock = self._clock or RealClock(0.0 if began is None else max(0.0, wall_seconds() - began))
            config = train_config or ConfigRecord()

            def message(node: int, task: Task) -> Message:
                return self._message(node, task, self.run.iterate, config)

            backend = OnFlower(Exchange(grid, clock), shape, lambda: self.run.weights, message, self)
            backend.exchange.until = self.budget
            self._run = FlowerRun(
                strategy,
                backend,
                weights,
                record,
                self.server_step,
                lambda replies: average_metrics(replies, self.train_metrics_aggr_fn, self.weighted_by_key),
                lambda number, result: self._evaluate(number, result, evaluate_fn, evaluate_config or ConfigRecord()),
            )
            self.summary()
            return self._run.go(self.min_available_nodes, rounds)

    def _strategy(self, layers: int, rounds: int | None) -> Method:
        return deployed(
            self.method,
            self.plan_options,
            layers=layers,
            rounds=rounds,
            budget=self.budget,
            learning_rate=self.learning_rate,
            batch=self.batch,
            local_iterations=None if self.local_iterations == "auto" else self.local_iterations,
            constants=self.constants,
            fraction=self.fraction_train,
            min_devices=self.min_train_nodes,
            min_reports=self.min_reports,
            opening_share=self.measure_share,
            oversample=self.oversample,
            tell=lambda sentence: log.info("%s", sentence),
        )

    def _info(self, layers: list[list[str]], num_rounds: int | str, rounds: int) -> RunInfo:
        hidden = ("layers", "record", "plan_options")
        config = {k: recorded(v) for k, v in vars(self).items() if not k.startswith("_") and k not in hidden}
        options = {key: recorded(value) for key, value in self.plan_options.items()}
        return RunInfo(
            config={"flower": config | {"num_rounds": num_rounds, "options": options}},
            seed=self.seed,
            strategy=self.method,
            label=self.method,
            budget=self.budget,
            rounds=rounds,
            layers=[layer[0].rpartition(".")[0] or layer[0] for layer in layers],
            devices=max(2, self.min_available_nodes),
            data="held by the nodes",
            clock="real",
            versions={"python": platform.python_version()} | {name: version(name) for name in ("adelfl", "flwr")},
        )

    def _evaluate(
        self, number: int, result: Result, evaluate_fn: Evaluate | None, config: ConfigRecord
    ) -> MetricRecord | None:
        """Evaluate the model after a round, at nodes and on the server."""
        if number > 0:
            self._evaluate_at_nodes(number, result, config)
        metrics = None if evaluate_fn is None else evaluate_fn(number, result.arrays)
        if metrics is not None:
            log.info("\t└──> %s", dict(metrics))
            result.evaluate_metrics_serverapp[number] = metrics
        return metrics

    def _evaluate_at_nodes(self, number: int, result: Result, config: ConfigRecord) -> None:
        backend = self.run.backend
        messages = list(self.configure_evaluate(number, result.arrays, config, backend.exchange.grid))
        if not messages:
            return
        seconds = self.evaluate_seconds or self.budget / self.run.strategy.rounds / 4
        answers = backend.collect(messages, min(backend.now() + seconds, self.budget))
        metrics = self.aggregate_evaluate(number, answers)
        if metrics is not None:
            result.evaluate_metrics_clientapp[number] = metrics

    def _message(self, node: int, task: Task, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        full = ConfigRecord({**config, "server-round": task.round, **task.write()})
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: full})
        return self._addressed(content, node, MessageType.TRAIN, task.round)

    def _addressed(self, content: RecordDict, node: int, kind: str, number: int) -> Message:
        lives = _CLOCK_ERROR + self.budget
        return Message(content, dst_node_id=node, message_type=kind, ttl=lives, group_id=str(number))


def group_by_module(names: Sequence[str]) -> list[list[str]]:
    """Group parameters by the module that holds them, in the order in which the modules come first."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())
