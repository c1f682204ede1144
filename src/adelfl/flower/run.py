"""One run on Flower: the loop, evaluations, and the record from which a killed server goes on."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

from adelfl.atomic import write_json
from adelfl.clock import Clock, wall_seconds
from adelfl.errors import AdelError
from adelfl.flower.backend import OnFlower, Weights
from adelfl.flower.protocol import is_statistic
from adelfl.flower.record import Record
from adelfl.records.schema import Row, RunInfo, RunResult
from adelfl.records.summary import Summary
from adelfl.records.writer import RunWriter
from adelfl.runtime.backend import Computed
from adelfl.runtime.loop import Loop, Step
from adelfl.runtime.reactions import Reaction
from adelfl.runtime.server_step import ServerStep, State
from adelfl.strategies.base import Strategy

log = logging.getLogger("flwr")

_SERVER = "server/"  # prefix of what the server step remembers, in checkpoints
_POLL = 0.25


class FlowerRun:
    """Run a strategy on a backend, step the model, evaluate it, and record everything.

    Parameters
    ----------
    strategy : Strategy
    backend : OnFlower
    weights : dict of str to ndarray
        Initial model.
    record : Record
    server_step : ServerStep
        Moves the weights by merged changes.
    train_metrics, evaluate : callable
        Averages the metrics of replies; evaluates a model after a round, on the server or at nodes.

    Attributes
    ----------
    weights : dict of str to ndarray
        The present iterate, from which tasks start; ``iterate`` holds it as Flower's arrays.
    result : Result
        Flower's result, with the weights that the server step hands out.
    """

    def __init__(
        self,
        strategy: Strategy,
        backend: OnFlower,
        weights: Weights,
        record: Record,
        server_step: ServerStep,
        train_metrics: Callable[[Iterable[Message]], MetricRecord | None],
        evaluate: Callable[[int, Result], MetricRecord | None],
    ) -> None:
        self.strategy, self.backend, self.record, self.server_step = strategy, backend, record, server_step
        self.weights, self.state = weights, State()
        self.train_metrics, self.evaluate = train_metrics, evaluate
        info = record.info
        self.budget, self.L = info.budget, len(info.layers)
        self.loop = Loop(strategy, backend, info.budget, self._log)
        self.summary = Summary(info.budget, info.steps)
        self.abandoned, self.merges = 0, 0
        self.time_use = dict.fromkeys(("computing", "lag", "idle", "abandoned"), 0.0)
        self._logged_roster = 0
        for row in record.rows:
            self.summary.add(row)
            self.abandoned += row.abandoned
        if record.weights is not None:
            self.weights = {n: v for n, v in record.weights.items() if not n.startswith(_SERVER)}
            self.state = State({n.removeprefix(_SERVER): v for n, v in record.weights.items() if n.startswith(_SERVER)})
        self.result = Result(arrays=self.arrays())
        self.iterate = _record(self.weights)

    @property
    def clock(self) -> Clock:
        """Clock of the run."""
        return self.backend.clock

    def arrays(self) -> ArrayRecord:
        """Return the weights that the server step hands out, as Flower's arrays."""
        shown = self.server_step.shown(self._parameters(), self.state)
        return _record({name: shown.get(name, value) for name, value in self.weights.items()})

    def _parameters(self) -> Weights:
        return {name: value for name, value in self.weights.items() if not is_statistic(name)}

    def go(self, needed: int, rounds: int | None) -> Result:
        """Run until the budget or the rounds are over.

        Parameters
        ----------
        needed : int
            Nodes to wait for before the first round.
        rounds : int or None
            Most merges; None for no limit but the budget.
        """
        if self.clock.now() >= self.budget:
            log.warning(
                "the budget was over before this process began; the model is that of round %d", self.record.round
            )
            self._finish()
            return self.result
        try:
            steps = self._resumed() if self.record.round else None
        except AdelError:  # the record stays as it is
            raise AdelError(f"{self.record.folder}: this run cannot be continued by this version") from None
        try:
            self._wait_for_nodes(2 if self.record.round else needed)
            steps = steps or self._begun()
            self.loop.run(islice(steps, rounds and rounds - self.record.round), self._apply, self._keep)
            if not self.merges and not self.record.round and self.backend.last_error:
                log.warning("nothing was merged; the last error: %s", self.backend.last_error)
        except AdelError as error:
            if not self.merges and not self.record.round:
                raise
            log.error("the run ends early, with the model that it has: %s", error)
        if not self.merges and not self.record.round and not self.backend.answered:
            why = f" ({self.backend.last_error})" if self.backend.last_error else ""
            raise AdelError(f"no node answered in {self.clock.now():.1f} s{why}")
        self._finish()
        log.info("ended after %.2f s of %.2f s", self.clock.now(), self.budget)
        return self.result

    def _wait_for_nodes(self, needed: int) -> None:
        """Wait until enough nodes are connected; an error if that takes the whole budget."""
        needed, told = max(2, needed), -1
        while len(nodes := self.backend.exchange.nodes()) < needed:
            if self.clock.now() >= self.budget:
                raise AdelError(f"the budget is over: {len(nodes)} nodes are connected, {needed} are needed")
            if len(nodes) != told:
                told = len(nodes)
                log.info("waiting for nodes: %d connected, %d needed", told, needed)
            self.clock.sleep_until(min(self.budget, self.clock.now() + _POLL))

    def _begun(self) -> Any:  # noqa: ANN401 - an iterator of steps
        """Evaluate the initial model, and begin the record."""
        if self.record.folder is not None and self.record.writer is None:
            self.record.info = replace(self.record.info, started=wall_seconds() - self.clock.now())
            self.record.writer = RunWriter.create(self.record.folder, self.record.info)
        evaluated = self.evaluate(0, self.result)
        accuracy, loss = (_number(evaluated, key) for key in ("accuracy", "loss"))
        self._write(Row(0, self.clock.now(), loss=loss, accuracy=accuracy), self.clock.now())
        return self.loop.steps()

    def _resumed(self) -> Any:  # noqa: ANN401 - an iterator of steps
        """Make the decisions of the finished rounds again, from the log."""
        self.backend.roster = list(self.record.roster)
        self._logged_roster = len(self.backend.roster)
        steps = self.loop.steps(self.record.past)
        for step in islice(steps, self.record.round):
            row = self.record.rows[step.version]
            step.computed = Computed.recorded(row.gradients, row.losses)
        log.info("resumed after round %d, %.1f s of %.1f s used", self.record.round, self.clock.now(), self.budget)
        return steps

    def _log(self, reaction: Reaction) -> None:
        if self.record.writer is None:
            return
        entry = reaction.to_json()
        if len(self.backend.roster) > self._logged_roster:
            entry["roster"] = [str(node) for node in self.backend.roster]
            self._logged_roster = len(self.backend.roster)
        self.record.writer.log_event(entry)

    # -- one step

    def _apply(self, step: Step) -> None:
        change = None if step.computed is None else step.computed.change
        if change is None:
            return
        self.weights = {name: value.copy() for name, value in self.weights.items()}
        self.server_step.apply(self._parameters(), change.parameters, self.state)
        self.weights |= {name: np.asarray(value) for name, value in change.buffers.items()}
        self.result.arrays, self.iterate = self.arrays(), _record(self.weights)
        self.merges += 1

    def _keep(self, step: Step) -> None:
        number, closed = step.version, step.time
        merged = step.computed is not None and step.computed.change is not None
        delivered = sum(int(np.count_nonzero(a.z)) for a in step.merge.arrivals)
        log.info("[ROUND %d] %.1f s of %.1f s, %d updates", number, closed, self.budget, delivered)
        self._account(step, merged=merged)
        if not merged:
            log.warning("round %d is abandoned: %d devices delivered something", number, delivered)
            self.abandoned += 1
        metrics = self.train_metrics(self.backend.accepted) if merged else None
        if metrics is not None:
            self.result.train_metrics_clientapp[number] = metrics
        evaluated = self.evaluate(number, self.result)
        if self.record.writer is None:
            return
        self._write(self._row(step, merged=merged, metrics=metrics, evaluated=evaluated), closed - step.began)
        self._note_plan()
        self.record.writer.checkpoint(number, self.clock.now(), self._kept())

    def _account(self, step: Step, *, merged: bool) -> None:
        """Add up what devices did in a round, as means over the devices that were asked."""
        arrivals = step.merge.arrivals
        began = step.began if not arrivals[0].tasks.together and step.version > 1 else min(a.began for a in arrivals)
        length = step.time - began
        if not merged:
            self.time_use["abandoned"] += length
            return
        asked = max(1, sum(int(np.count_nonzero(a.tasks.batch)) for a in arrivals))
        computing, lag = (
            min(length, sum(float(np.nansum(getattr(a, name))) for a in arrivals) / asked)
            for name in ("seconds", "upload")
        )
        self.time_use["computing"] += computing
        self.time_use["lag"] += min(lag, length - computing)
        self.time_use["idle"] += max(0.0, length - computing - lag)

    def _row(self, step: Step, *, merged: bool, metrics: MetricRecord | None, evaluated: MetricRecord | None) -> Row:
        arrivals = step.merge.arrivals
        devices = [int(u) for a in arrivals for u in a.tasks.devices]
        depth = [int(z) if merged else 0 for a in arrivals for z in a.z]
        accuracy, loss = (_number(evaluated, key) for key in ("accuracy", "loss"))
        computed = step.computed or Computed(None)
        began = min(a.began for a in arrivals)
        row = Row(
            round=step.version,
            time=self.clock.now(),
            deadline=min(float(arrivals[0].tasks.cutoff), self.budget - began),
            length=step.time - began,
            loss=loss,
            accuracy=accuracy,
            train_loss=_number(metrics, "train-loss"),
            batch=[int(n) for a in arrivals for n in a.tasks.batch],
            depth=depth,
            contributors=[sum(z >= self.L - l for z in depth) for l in range(self.L)],
            devices=devices,
            gradients=None if computed.spread is None else computed.spread.to_dict(),
            losses=computed.losses_listed,
            nodes=[str(self.backend.roster[u]) for u in devices],
            abandoned=not merged,
            rejected=dict(self.backend.rejected),
            late=dict(self.backend.late),
        )
        self.backend.rejected.clear()
        self.backend.late.clear()
        return row

    def _write(self, row: Row, seconds: float) -> None:
        self.summary.add(row)
        if self.record.writer is not None:
            self.record.writer.append(row, seconds)

    def _note_plan(self) -> None:
        """Write the plan to run.json once there is one."""
        schedule = self.strategy.schedule
        info = self.record.info
        known = len(self.backend.roster) or info.devices
        if self.record.writer is None or (info.devices == known and (schedule is None or info.schedule is not None)):
            return
        self.record.info = replace(
            info,
            label=self.strategy.label,
            schedule=None if schedule is None else schedule.to_dict(),
            devices=known,
            nodes=[str(node) for node in self.backend.roster],
        )
        write_json(self.record.writer.folder / "run.json", self.record.info.to_json())

    def _kept(self) -> Weights:
        return self.weights | {_SERVER + name: np.asarray(value) for name, value in self.state.items()}

    def _finish(self) -> None:
        if self.record.writer is None:
            return
        self._note_plan()
        summary = self.summary.result()
        time = self.clock.now()
        use = self.time_use | {"unused": max(0.0, self.budget - time)}
        use["between rounds"] = max(0.0, self.budget - sum(use.values()))
        values = summary.to_json() | {"abandoned": self.abandoned, "time": time, "time_use": use}
        shown = {name: array.numpy() for name, array in self.result.arrays.items()}
        self.record.writer.finish(RunResult.from_json(values), shown)


def describe(
    *, label: str, method: str, config: Mapping[str, Any], seed: int, budget: float, rounds: int,
    layers: Iterable[Iterable[str]], nodes: int,
) -> RunInfo:  # fmt: skip
    """Return what run.json says of a run before its first round."""
    names = [list(layer) for layer in layers]
    return RunInfo(
        config={"flower": dict(config)},
        seed=seed,
        strategy=method,
        label=label,
        budget=budget,
        rounds=rounds,
        layers=[layer[0].rpartition(".")[0] or layer[0] for layer in names],
        devices=nodes,
        data="held by the nodes",
        clock="real",
        versions={
            "adelfl": version("adelfl"),
            "flwr": version("flwr"),
            "python": platform.python_version(),
        },
    )


def _record(weights: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: FlowerArray(np.asarray(value)) for name, value in weights.items()})


def _number(metrics: MetricRecord | None, key: str) -> float | None:
    value = None if metrics is None else metrics.get(key)
    return float(value) if isinstance(value, int | float) else None
