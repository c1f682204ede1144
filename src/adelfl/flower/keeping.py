"""The record of a run on Flower, and what a server that was killed needs to go on."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord

from adelfl.atomic import write_json
from adelfl.clock import wall_seconds
from adelfl.errors import ConfigError
from adelfl.flower.nodes import Node
from adelfl.flower.session import Session, Weights
from adelfl.flower.terms import Round, Terms
from adelfl.planner import Constants
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo
from adelfl.records.summary import Summary
from adelfl.records.writer import RunWriter

_STATE = "flower.json"


class Keeper:
    """Writes a run's record as it goes, or nothing if there is no folder.

    Parameters
    ----------
    folder : Path or None
        A new one, or one of a run that was interrupted.
    terms : Terms
    layers : list of list of str

    Attributes
    ----------
    round : int
        The last finished round of the run that is continued; 0 for a new one.
    time_used : float
        Seconds of the budget that are over, those in which no server ran included.
    weights : dict or None
        The model after that round.
    """

    def __init__(self, folder: Path | None, terms: Terms, layers: list[list[str]]) -> None:
        self.folder, self.terms, self.layers = folder, terms, layers
        self.round, self.time_used, self.abandoned = 0, 0.0, 0
        self.weights: Weights | None = None
        self._writer: RunWriter | None = None
        self._state: dict[str, Any] = {}
        self._roster: list[int] = []
        self._summary = Summary(terms.budget, len(layers) * terms.local_iterations)
        if folder is not None and (folder / "run.json").is_file():
            self._continue(folder)

    def _continue(self, folder: Path) -> None:
        record = RunRecord.open(folder)
        if record.result is not None:
            raise ConfigError(f"{folder}: this run has ended; choose another folder")
        for key in ("budget", "rounds"):
            if (then := getattr(record.info, key)) != (now := getattr(self.terms, key)):
                raise ConfigError(f"{folder}: this run was begun with {key} = {then}, not {now}")
        self._writer, checkpoint = RunWriter.reopen(folder)
        self.time_used = max(0.0, wall_seconds() - (record.info.started or 0.0))
        if checkpoint is None:
            return
        self.round, self.weights = checkpoint.round, dict(checkpoint.weights)
        self._state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        away = max(0.0, wall_seconds() - self._state["wall"])
        self.time_used = self._state["time"] + away
        for row in RunRecord(folder).rounds:
            self._summary.add(row)
            self.abandoned += row.abandoned

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def recall(self, s: Session) -> None:
        """Tell a session what the one before it knew."""
        s.nodes = {n["id"]: Node.from_json(n, s.L) for n in self._state.get("nodes", [])}
        s.between = self._state.get("between", 0.0)
        self._roster = list(self._state.get("roster", []))
        said = self._state.get("constants")
        if said is not None and s.constants is None:
            s.constants = Constants.from_dict(said)

    def begin(self, s: Session, evaluated: MetricRecord | None) -> None:
        """After measuring: the folder appears, and the plan is in it."""
        if self.folder is None:
            return
        s.make_plan(0)
        assert s.plan is not None
        schedule = s.plan.strategy.schedule
        info = RunInfo(
            label=s.plan.strategy.label,
            strategy=self.terms.method,
            config={"flower": _said(self.terms)},
            seed=self.terms.seed,
            budget=self.terms.budget,
            rounds=self.terms.rounds,
            devices=len(s.plan.nodes),
            nodes=[str(n) for n in s.plan.nodes],
            layers=[_title(layer) for layer in self.layers],
            schedule=None if schedule is None else schedule.to_dict(),
            notes=list(s.plan.strategy.notes),
            data="held by the nodes",
            clock="real",
            started=wall_seconds() - s.clock.now(),
            versions={
                "adelfl": version("adelfl"),
                "flwr": version("flwr"),
                "python": platform.python_version(),
            },
        )
        if self._writer is None:  # otherwise a run was killed before its first round
            self._writer = RunWriter.create(self.folder, info)
        self._roster = list(s.plan.nodes)
        accuracy, loss = (_number(evaluated, key) for key in ("accuracy", "loss"))
        self._add(Row(0, s.clock.now(), loss=loss, accuracy=accuracy), s.clock.now())
        self._checkpoint(s, 0)

    def keep(
        self,
        s: Session,
        current: Round,
        closed: float,
        *,
        merged: bool,
        metrics: MetricRecord | None,
        evaluated: MetricRecord | None,
    ) -> None:
        """Add a round, and make it the one to go on from."""
        if self._writer is None:
            return
        ids = [s.plan.nodes[i] for i in current.devices] if s.plan is not None else []
        counted = {update.node for update in current.updates} if merged else set()
        depth = [current.done.get(n, 0) if n in counted else 0 for n in ids]
        accuracy, loss = (_number(evaluated, key) for key in ("accuracy", "loss"))
        row = Row(
            round=current.number,
            time=s.clock.now(),
            deadline=current.end - current.begin,
            length=closed - current.begin,
            loss=loss,
            accuracy=accuracy,
            train_loss=_number(metrics, "train-loss"),
            batch=[current.tasks[n].batch if n in current.tasks else 0 for n in ids],
            depth=depth,
            contributors=[sum(z >= s.L - l for z in depth) for l in range(s.L)],
            devices=[self._position(n) for n in ids],
            nodes=[str(n) for n in ids],
            abandoned=not merged,
            rejected=dict(current.rejected),
            late={str(number): count for number, count in s.late.items()},
        )
        s.late.clear()
        self.abandoned += not merged
        self._add(row, closed - current.begin)
        self._checkpoint(s, current.number)

    def _position(self, node: int) -> int:
        """Of a node among those of run.json; one that came later has a place behind them."""
        if node not in self._roster:
            self._roster.append(node)
        return self._roster.index(node)

    def _add(self, row: Row, seconds: float) -> None:
        assert self._writer is not None
        self._summary.add(row)
        self._writer.append(row, seconds)

    def _checkpoint(self, s: Session, number: int) -> None:
        assert self._writer is not None
        state: dict[str, Any] = {
            "time": s.clock.now(),
            "wall": wall_seconds(),
            "between": s.between,
            "roster": self._roster,
            "nodes": [node.to_json() for node in s.nodes.values()],
        }
        if s.constants is not None:
            state["constants"] = s.constants.to_dict()
        write_json(self._writer.folder / _STATE, state)
        self._writer.checkpoint(number, s.clock.now(), s.weights)

    def finish(self, s: Session) -> None:
        """End the record: model, then result."""
        if self._writer is None:
            return
        result = replace(self._summary.result(), abandoned=self.abandoned, time=s.clock.now())
        self._writer.finish(result, s.weights)


def _said(terms: Terms) -> dict[str, Any]:
    """What the user asked for, as far as JSON can say it."""
    said = {key: value if isinstance(value, int | float | str) else repr(value) for key, value in vars(terms).items()}
    return said | {"options": {key: repr(value) for key, value in terms.options.items()}}


def _number(metrics: MetricRecord | None, key: str) -> float | None:
    value = None if metrics is None else metrics.get(key)
    return float(value) if isinstance(value, int | float) else None


def _title(layer: list[str]) -> str:
    return layer[0].rpartition(".")[0] or layer[0]
