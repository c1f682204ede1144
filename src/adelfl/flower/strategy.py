"""A Flower strategy whose rounds close at planned deadlines.

strategy = DeadlineStrategy(budget=600, method="adel", learning_rate=0.1)
result = strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=50)
"""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

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
from adelfl.strategies import BUILT_IN, find_strategy, strategy_names
from adelfl.strategies import Strategy as Method
from adelfl.strategies.deployment import MOST_MERGES, deployed
from adelfl.strategies.deployment_planner import Settings
from adelfl.updates import Shape

log = logging.getLogger("flwr")

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]

METHODS = tuple(name for name in BUILT_IN if name not in ("oracle", "clairvoyant", "heterofl", "scaffold"))
"""Built-in methods that can run on a deployment."""

_OWN_LOOP = "DeadlineStrategy runs its own loop: call its start method"
_CLOCK_ERROR = 2 * 3600.0
"""Seconds that are added to the messages' time to live, since Flower refuses replies of nodes whose wall clock is ahead
by more than that."""


@dataclass(kw_only=True, eq=False, repr=False)
class DeadlineStrategy(Strategy):
    """Federated training that ends in time.

    Options that are not described here are those of Flower's ``FedAvg``. But federated evaluation is off by default,
    since it takes time of the budget, and ``weighted_by_key`` affects metrics only.
    """

    budget: float
    """T_max, seconds from the call of :meth:`start` to its end."""
    method: str = "adel"
    """Straggler method: "adel", "salf", "wait", "fedbuff" or another of :data:`METHODS`, or the registered name or
    ``package.module:Class`` of your own :class:`~adelfl.strategies.Strategy`."""
    learning_rate: float | LearningRate = 0.1
    """η_t, which clients receive with every task."""
    batch: int = 16
    """Samples per local iteration, for the baselines and in the opening round; adel plans batch sizes."""
    local_iterations: int | Literal["auto"] = 1
    """E, or "auto" to let the plan choose it: as many local steps as fit into a round, with a batch that the learning
    rate allows."""
    layers: Sequence[Sequence[str]] | None = None
    """Names of parameters of each layer, input side first. By default, arrays are grouped by the part of their name
    before the last dot, in their order. This is correct for models that list their layers in the order of execution,
    which clients check."""
    plan_options: Mapping[str, Any] | None = None
    """Options of the method, such as ``{"correction": "none"}``."""
    constants: Constants | None = None
    """Constants of the bound; estimated in the opening round by default."""
    server_step: str | ServerStep = "auto"
    """Server step for merged changes: "sgd" as in the paper, "momentum", "adagrad", "adam", "yogi" or "average"; by
    default that of the method."""
    min_reports: int = 1
    """A round with fewer updates than this is abandoned, without a change of the model."""
    norm_limit: float = 10.0
    """k: updates with a layer whose norm exceeds k times the median of the round, or of an earlier round if that was
    larger, are rejected; infinite to allow all."""
    measure_share: float = 0.2
    """Largest share of the budget for the opening round, which trains and measures."""
    record: str | Path | None = None
    """Folder of the run's record. An interrupted run in this folder is continued."""
    evaluate_seconds: float | None = None
    """Time limit of federated evaluation after a round; by default a quarter of a mean round."""
    seed: int = 0
    """Seed for the choice of nodes if not all take part."""
    oversample: bool = False
    """Whether a batch may be larger than the data of its node; samples are then drawn with replacement. By default, a
    batch is cut to the data, and drawn without replacement."""
    clock: Clock | None = None
    """Clock of the run, for tests; by default a real clock."""
    fraction_train: float = 1.0
    fraction_evaluate: float = 0.0
    min_train_nodes: int = 2
    min_evaluate_nodes: int = 2
    min_available_nodes: int = 2
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: Aggregate | None = None
    evaluate_metrics_aggr_fn: Aggregate | None = None
    _run: FlowerRun | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        def real(key: str) -> float:
            value = getattr(self, key)
            return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)

        def counts(key: str) -> bool:
            return isinstance(getattr(self, key), Integral) and real(key) >= 1

        auto = self.local_iterations == "auto"
        for key, holds, allowed in (
            ("budget", math.isfinite(real("budget")) and real("budget") > 0, "a positive number of seconds"),
            ("batch", counts("batch"), "a whole number of at least 1"),
            ("local_iterations", auto or counts("local_iterations"), 'a whole number of at least 1, or "auto"'),
            ("min_reports", counts("min_reports"), "a whole number of at least 1"),
            ("norm_limit", real("norm_limit") > 1, "above 1"),
            ("measure_share", 0 < real("measure_share") < 1, "between 0 and 1"),
            ("fraction_train", 0 < real("fraction_train") <= 1, "above 0 and at most 1"),
            ("fraction_evaluate", 0 <= real("fraction_evaluate") <= 1, "between 0 and 1"),
        ):
            if not holds:
                raise ConfigError(f"{key} must be {allowed}, not {getattr(self, key)!r}")
        if self.method not in BUILT_IN and ":" not in self.method and self.method not in strategy_names():
            allowed = f"one of {', '.join(METHODS)}, or package.module:Class"
            raise ConfigError(f"method must be {allowed}, not {self.method!r}")
        self.plan_options = dict(self.plan_options or {})
        self.budget, self.learning_rate = float(self.budget), as_learning_rate(self.learning_rate)
        if not isinstance(self.server_step, ServerStep):
            own = self.server_step == "auto"
            self.server_step = ServerStep(find_strategy(self.method).server_step if own else self.server_step)

    @property
    def run(self) -> FlowerRun:
        """The run that :meth:`start` began."""
        if self._run is None:
            raise AdelError(_OWN_LOOP)
        return self._run

    def summary(self) -> None:
        """Log the settings."""
        settings = f"{self.method}, {self.budget:g} s, batch {self.batch}, local steps: {self.local_iterations}"
        log.info("\t└──> %s", settings)

    # -- methods that Flower's strategies have

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise an error, since the loop of :meth:`start` sends the tasks."""
        raise AdelError(_OWN_LOOP)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the metrics of replies; the loop of :meth:`start` merges the weights."""
        return self.run.result.arrays, average_metrics(replies, self.train_metrics_aggr_fn, self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return messages that request an evaluation of the model from some nodes."""
        if self.fraction_evaluate == 0.0:
            return []
        idle = self.run.backend.idle_nodes()
        wanted = max(self.min_evaluate_nodes, round(self.fraction_evaluate * len(idle)))
        order = rng_for(self.seed, "evaluate", server_round).permutation(len(idle))[:wanted]
        chosen = [idle[i] for i in order]  # a list, since Flower's unsigned 64-bit ids do not fit into int64
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
            As for Flower's strategies. With ``num_rounds="auto"``, the plan chooses the number of rounds, and the run
            lasts until the budget is over. For an asynchronous method, ``num_rounds`` is the number of merges. The time
            of ``evaluate_fn`` is part of the budget.
        timeout : float, optional
            Not used: rounds close at planned deadlines.
        """
        rounds = None if num_rounds == "auto" else num_rounds
        if rounds is not None and rounds < 1:
            raise ConfigError(f"num_rounds must be at least 1, not {num_rounds!r}")
        weights = {name: array.numpy().copy() for name, array in initial_arrays.items()}
        own = self.layers or group_by_module([name for name in weights if not is_statistic(name)])
        layers = [list(layer) for layer in own]
        shape = Shape.of(weights, layers)
        strategy = self._strategy(len(layers), rounds)
        info = self._info(layers, num_rounds, strategy.rounds)
        folder = None if self.record is None else Path(self.record)
        with Record.open(folder, info, partial(check_same_run, info)) as record:
            began = None if record.writer is None else record.info.started
            known = 0.0 if record.checkpoint is None else record.checkpoint.time  # if the wall clock was set back
            clock = self.clock or RealClock(known if began is None else max(known, wall_seconds() - began))
            message = partial(self._message, config=train_config or ConfigRecord())
            evaluate = partial(self._evaluate, evaluate_fn=evaluate_fn, config=evaluate_config or ConfigRecord())
            backend = OnFlower(Exchange(grid, clock, self.budget), shape, message, self)
            self._run = FlowerRun(strategy, backend, weights, record, self, evaluate)
            self.summary()
            return self._run.go(self.min_available_nodes, rounds)

    def _strategy(self, layers: int, rounds: int | None) -> Method:
        settings = Settings(
            layers=layers,
            rounds=rounds,
            budget=self.budget,
            learning_rate=as_learning_rate(self.learning_rate),
            batch=self.batch,
            local_iterations=None if self.local_iterations == "auto" else self.local_iterations,
            constants=self.constants,
            fraction=self.fraction_train,
            min_devices=self.min_train_nodes,
            min_reports=self.min_reports,
            opening_share=self.measure_share,
            oversample=self.oversample,
            tell=log.info,
        )
        return deployed(self.method, self.plan_options or {}, settings)

    def _info(self, layers: list[list[str]], num_rounds: int | str, rounds: int) -> RunInfo:
        hidden = ("layers", "record", "plan_options", "clock")
        config = {k: recorded(v) for k, v in vars(self).items() if not k.startswith("_") and k not in hidden}
        options = {key: recorded(value) for key, value in (self.plan_options or {}).items()}
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
        backend = self.run.backend
        if number > 0 and (messages := self.configure_evaluate(number, result.arrays, config, backend.exchange.grid)):
            rounds = self.run.strategy.rounds
            mean_round = self.budget / rounds if rounds < MOST_MERGES else backend.now() / number
            seconds = self.evaluate_seconds or mean_round / 4
            answers = backend.collect(messages, min(backend.now() + seconds, self.budget))
            if (at_nodes := self.aggregate_evaluate(number, answers)) is not None:
                result.evaluate_metrics_clientapp[number] = at_nodes
        metrics = None if evaluate_fn is None else evaluate_fn(number, result.arrays)
        if metrics is not None:
            log.info("\t└──> %s", dict(metrics))
            result.evaluate_metrics_serverapp[number] = metrics
        return metrics

    def _message(self, node: int, task: Task, config: ConfigRecord) -> Message:
        full = ConfigRecord({**config, "server-round": task.round, **task.write()})
        content = RecordDict({self.arrayrecord_key: self.run.iterate, self.configrecord_key: full})
        return self._addressed(content, node, MessageType.TRAIN, task.round)

    def _addressed(self, content: RecordDict, node: int, kind: str, number: int) -> Message:
        lives = _CLOCK_ERROR + self.budget
        return Message(content, dst_node_id=node, message_type=kind, ttl=lives, group_id=str(number))


def group_by_module(names: Sequence[str]) -> list[list[str]]:
    """Group parameters by the module that contains them, in the order of their first occurrence."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return list(groups.values())
