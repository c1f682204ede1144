"""A run on Flower: the model as arrays of NumPy, its evaluation, and the start, resumption and end of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from adelfl.atomic import Weights
from adelfl.clock import Clock, wall_seconds
from adelfl.errors import AdelError, ConfigError
from adelfl.flower.backend import OnFlower
from adelfl.learning_rate import ConstantRate
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo
from adelfl.runtime.backend import Change
from adelfl.runtime.loop import Step
from adelfl.runtime.run import ModelHost, Record, Run
from adelfl.strategies.base import Strategy

if TYPE_CHECKING:
    from adelfl.flower.strategy import DeadlineStrategy

log = logging.getLogger("flwr")

_POLL = 0.25
_DECISIVE = (
    *("learning_rate", "batch", "local_iterations", "options", "constants", "oversample"),
    *("fraction_train", "min_train_nodes", "min_reports", "measure_share"),
)
"""Further settings on which decisions depend."""
_NORMS = "adelfl/norms"  # entry of a checkpoint beside the weights


class FlowerRun(ModelHost):
    """Run a strategy on a backend; evaluate the model after every merge, on the server or at nodes.

    ``weights`` is the present iterate, from which tasks start, and ``iterate`` the same as Flower's arrays. ``result``
    is Flower's result, with the weights that the server step returns.
    """

    def __init__(
        self,
        strategy: Strategy,
        backend: OnFlower,
        weights: Weights,
        record: Record,
        settings: DeadlineStrategy,
        evaluate: Callable[[int, Result], MetricRecord | None],
    ) -> None:
        super().__init__(settings.server_step)  # type: ignore[arg-type]
        self.strategy, self.backend, self.record = strategy, backend, record
        self.settings, self.evaluate = settings, evaluate
        info, self.budget, self.L = record.info, record.info.budget, len(record.info.layers)
        self.done = 0 if record.checkpoint is None else record.checkpoint.round
        backend.enroll(int(node) for node in info.nodes or ())
        self.abandoned, self.merges = sum(row.abandoned for row in record.rows), 0
        self.time_use = dict.fromkeys(("computing", "lag", "idle", "abandoned"), 0.0)
        self.result = Result()
        self._set(weights)
        self.run = Run(strategy, backend, self, record)

    @property
    def clock(self) -> Clock:
        """Clock of the run."""
        return self.backend.clock

    # -- the model

    def _set(self, weights: Weights) -> None:
        self.weights, self.iterate = weights, _record(weights)
        self.result.arrays = _record(self.final_weights())

    def parameters(self) -> Weights:
        """Return the arrays that updates may contain."""
        return {name: self.weights[name] for name in self.backend.shape.parameters}

    def set_buffers(self, buffers: Mapping[str, Any]) -> None:
        """Replace running statistics."""
        self.weights |= {name: np.asarray(value) for name, value in buffers.items()}

    def apply(self, change: Change) -> None:
        """Move a copy of the model, since tasks under way need the present arrays."""
        self.weights = {name: value.copy() for name, value in self.weights.items()}
        super().apply(change)
        self._set(self.weights)
        self.merges += 1

    def final_weights(self) -> Weights:
        """Return the weights that the server step returns."""
        return self.weights | dict(self.shown())

    def state(self) -> Weights:
        """Return the present iterate, and the norms that updates are compared with."""
        return self.weights | {_NORMS: np.array(self.backend.norms.usual)}

    def load(self, state: Weights, version: int) -> None:
        """Restore the iterate of a checkpoint, and the norms, which older ones lack."""
        weights = dict(state)
        if (usual := weights.pop(_NORMS, None)) is not None:
            self.backend.norms.usual = usual.tolist()
        self._set(weights)

    # -- the run

    def go(self, needed: int, rounds: int | None) -> Result:
        """Wait for the needed nodes, and run until the budget or the rounds (if limited) are over."""
        checkpoint = self.record.checkpoint
        if self.clock.now() >= self.budget:
            log.warning("the budget was over before this process began; the model is that of round %d", self.done)
            if checkpoint is not None:
                self.run.load(checkpoint)
            self.run.finish()
            return self.result
        try:
            steps = None if checkpoint is None else self.run.resume()
        except AdelError:
            raise AdelError(f"{self.record.folder}: this version cannot continue this run; start a new one") from None
        if steps is not None:
            log.info("resumed after round %d, %.1f s of %.1f s used", self.done, self.clock.now(), self.budget)
        try:
            self._wait_for_nodes(2 if self.done else needed)
            if self.record.writer is None:
                self.record.info = replace(self.record.info, started=wall_seconds() - self.clock.now())
            steps = steps or self.run.begin()
            self.run.go(islice(steps, rounds and rounds - self.done))
            if not self.merges and not self.done and self.backend.last_error:
                log.warning("nothing was merged; the last error: %s", self.backend.last_error)
        except AdelError as error:
            if not self.merges and not self.done:
                raise
            log.error("the run ends early, with the present model: %s", error)
        if not self.merges and not self.done and not self.backend.answered:
            why = f" ({self.backend.last_error})" if self.backend.last_error else ""
            raise AdelError(f"no node answered in {self.clock.now():.1f} s{why}")
        self.run.finish()
        log.info("ended after %.2f s of %.2f s", self.clock.now(), self.budget)
        return self.result

    def _wait_for_nodes(self, needed: int) -> None:
        """Wait until enough nodes are connected, or raise AdelError when the budget is over."""
        needed, connected = max(2, needed), -1
        while len(nodes := self.backend.exchange.nodes()) < needed:
            if self.clock.now() >= self.budget:
                raise AdelError(f"the budget is over: {len(nodes)} nodes are connected, {needed} are needed")
            if len(nodes) != connected:
                connected = len(nodes)
                log.info("waiting for nodes: %d connected, %d needed", connected, needed)
            self.clock.sleep_until(min(self.budget, self.clock.now() + _POLL))

    # -- what is recorded

    def look(self, step: Step | None) -> Mapping[str, Any]:
        """Evaluate the model, and describe the nodes and their replies."""
        if step is None:
            return self._evaluated(0)
        number, arrivals = step.version, step.merge.arrivals
        merged = step.computed is not None and step.computed.change is not None
        delivered = sum(int(np.count_nonzero(a.z)) for a in arrivals)
        log.info("[ROUND %d] %.1f s of %.1f s, %d updates", number, step.time, self.budget, delivered)
        self._account(step, merged=merged)
        metrics = self.settings.aggregate_train(number, self.backend.accepted)[1] if merged else None
        if metrics is not None:
            self.result.train_metrics_clientapp[number] = metrics
        began = min(a.began for a in arrivals)
        devices = [u for a in arrivals for u in a.tasks.devices.tolist()]
        fields: dict[str, Any] = {
            "deadline": min(float(arrivals[0].tasks.cutoff), self.budget - began),
            "length": step.time - began,
            "train_loss": _number(metrics, "train-loss"),
            "devices": devices,
            "nodes": [str(self.backend.roster[u]) for u in devices],
            "abandoned": not merged,
            "rejected": dict(self.backend.rejected),
            "late": dict(self.backend.late),
        }
        if not merged:
            log.warning("round %d is abandoned: %d devices delivered an update", number, delivered)
            self.abandoned += 1
            fields |= {"depth": [0] * len(devices), "contributors": [0] * self.L}
        self.backend.rejected.clear()
        self.backend.late.clear()
        return fields | self._evaluated(number)

    def _evaluated(self, number: int) -> dict[str, float | None]:
        metrics = self.evaluate(number, self.result)
        accuracy, loss = (_number(metrics, key) for key in ("accuracy", "loss"))
        return {"time": self.clock.now(), "loss": loss, "accuracy": accuracy}

    def _account(self, step: Step, *, merged: bool) -> None:
        """Add the time of a round by use, as means over the devices that had a task."""
        arrivals = step.merge.arrivals
        began = step.began if not arrivals[0].tasks.together and step.version > 1 else min(a.began for a in arrivals)
        length = step.time - began
        if not merged:
            self.time_use["abandoned"] += length
            return
        assigned = max(1, sum(int(np.count_nonzero(a.tasks.batch)) for a in arrivals))
        computing, lag = (
            min(length, sum(float(np.nansum(getattr(a, name))) for a in arrivals) / assigned)
            for name in ("seconds", "upload")
        )
        self.time_use["computing"] += computing
        self.time_use["lag"] += min(lag, length - computing)
        self.time_use["idle"] += max(0.0, length - computing - lag)

    def repeat(self, step: Step, row: Row) -> None:
        """Add the time of a round of an earlier process."""
        self._account(step, merged=not row.abandoned)

    def described(self, info: RunInfo) -> RunInfo:
        """Add the nodes, and the plan when it exists."""
        nodes, schedule = [str(node) for node in self.backend.roster], self.strategy.schedule
        if nodes == (info.nodes or []) and (schedule is None or info.schedule is not None):
            return info
        plan = None if schedule is None else schedule.to_dict()
        return replace(info, label=self.strategy.label, schedule=plan, devices=len(nodes) or info.devices, nodes=nodes)

    def outcome(self) -> Mapping[str, Any]:
        """Return the time of the end, abandoned rounds, and time by use."""
        time = self.clock.now()
        use = self.time_use | {"unused": max(0.0, self.budget - time)}
        use["between rounds"] = max(0.0, self.budget - sum(use.values()))
        return {"abandoned": self.abandoned, "time": time, "time_use": use}


def recorded(value: object) -> object:
    """Return a setting for run.json: a number or a string, which represents other values."""
    if isinstance(value, ConstantRate):
        return value.initial
    return value if value is None or isinstance(value, int | float | str) else repr(value)


def check_same_run(now: RunInfo, old: RunRecord) -> None:
    """Refuse the record of a finished run, or of one with other settings, with which decisions cannot be repeated."""
    if old.result is not None:
        raise ConfigError(f"{old.folder}: this run has ended; choose another folder")
    settings = [(key, getattr(old.info, key), getattr(now, key)) for key in ("budget", "rounds", "strategy", "layers")]
    before, after = old.info.config.get("flower", {}), now.config["flower"]
    settings += [(key, before[key], after[key]) for key in _DECISIVE if key in before]
    for key, then, given in settings:
        if then != given and " at 0x" not in str(given):  # the name of an object differs in every process
            raise ConfigError(f"{old.folder}: this run was begun with {key} = {then}, not {given}")


def _record(weights: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: FlowerArray(np.asarray(value)) for name, value in weights.items()})


def _number(metrics: MetricRecord | None, key: str) -> float | None:
    value = None if metrics is None else metrics.get(key)
    return float(value) if isinstance(value, int | float) else None
