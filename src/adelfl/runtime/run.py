"""One recorded run, in a simulation or on a deployment: begin or continue its record, step the model, write its rows.

The two worlds differ in where the model is and when it is evaluated. Each passes that in as a :class:`ModelHost`.
"""

from __future__ import annotations

import errno
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.array_types import Floats
from adelfl.atomic import RunFinishedError, Weights
from adelfl.clock import monotonic
from adelfl.errors import AdelError
from adelfl.plugins import in_words
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo, RunResult
from adelfl.records.summary import Summary
from adelfl.records.writer import Checkpoint, RunWriter
from adelfl.runtime.backend import Backend, Change, Computed
from adelfl.runtime.loop import Loop, Step
from adelfl.runtime.reactions import Reaction
from adelfl.runtime.server_step import Array, ServerStep, State
from adelfl.strategies.base import Strategy

_SERVER = "server/"  # before the names of what the server step remembers, in checkpoints
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  # full, or not writable


@dataclass(eq=False)
class Record:
    """The record of a run: new, interrupted or finished. Nothing is written without a folder.

    As a context manager it notes the error that ends a run in failed.json, and closes the files. Of an interrupted run
    it has the checkpoint, and the rows and logged events up to it; of a finished run the result. ``failure`` says what
    ended the run, if it was no AdelError.
    """

    folder: Path | None
    info: RunInfo
    result: RunResult | None = None
    checkpoint: Checkpoint | None = None
    rows: list[Row] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    writer: RunWriter | None = None
    failure: str = ""

    @classmethod
    def open(cls, folder: Path | None, info: RunInfo, check: Callable[[RunRecord], None]) -> Record:
        """Read the record of an interrupted or finished run, which ``check`` may refuse, or prepare a new one."""
        if folder is None or not folder.exists():
            return cls(folder, info)
        old = RunRecord.open(folder)
        check(old)
        record = cls(folder, old.info, old.result)
        if record.result is None:
            try:
                record.writer, record.checkpoint = RunWriter.reopen(folder)
            except RunFinishedError:
                record.result = RunRecord(folder).result
        if record.checkpoint is not None:
            cut = RunRecord(folder)
            record.rows, record.events = cut.rounds, cut.events
        return record

    def begin(self) -> None:
        """Make the folder of a new run."""
        if self.folder is not None and self.writer is None:
            self.writer = RunWriter.create(self.folder, self.info)

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        with writer:
            if isinstance(error, AdelError):
                writer.fail(str(error))
            elif isinstance(error, Exception | SystemExit) and not is_disk_error(error):
                self.failure = f"{self.folder}: {in_words(error)}; failed.json there has the traceback"
                writer.fail(self.failure, "".join(traceback.format_exception(error)))


def _known(seconds: Floats) -> float:
    """Return the sum of the numbers that are not NaN, as ``np.nansum`` does in twice the time."""
    return float(np.where(np.isnan(seconds), 0.0, seconds).sum())


def is_disk_error(error: BaseException) -> bool:
    """Return whether the disk is full or not writable; the run can go on when that is over."""
    return isinstance(error, OSError) and error.errno in _DISK


class ModelHost(ABC):
    """The model of a run where it lives, and the server step that moves it.

    Attributes
    ----------
    server_step : ServerStep
    server : dict
        What the server step remembers.
    checkpoint_seconds : float
        Wall-clock seconds between two checkpoints; 0 for one after every merge.
    """

    checkpoint_seconds: float = 0.0

    def __init__(self, server_step: ServerStep) -> None:
        self.server_step, self.server = server_step, State()

    @abstractmethod
    def parameters(self) -> Mapping[str, Array]:
        """Return the parameters, which the server step moves in place."""

    @abstractmethod
    def set_buffers(self, buffers: Mapping[str, Array]) -> None:
        """Set running statistics that changed."""

    @abstractmethod
    def look(self, step: Step | None) -> Mapping[str, Any]:
        """Evaluate the model if it is time, and return fields of the row that only this world knows.

        ``step`` was just applied; None for the initial model.
        """

    @abstractmethod
    def final_weights(self) -> Weights:
        """Return the weights to hand out."""

    @abstractmethod
    def state(self) -> Weights:
        """Return what a checkpoint keeps, besides the memory of the server step."""

    @abstractmethod
    def load(self, state: Weights, version: int) -> None:
        """Go on from a checkpoint, whose weights have this version."""

    def from_numpy(self, value: NDArray[Any]) -> Array:
        """Return an array of the kind that the model has."""
        return value

    def to_numpy(self, value: Array) -> NDArray[Any]:
        """Return an array of NumPy."""
        return np.asarray(value)

    def described(self, info: RunInfo) -> RunInfo:
        """Return the run information with what has become known since; the same object if there is nothing new."""
        return info

    def outcome(self) -> Mapping[str, Any]:
        """Return fields of the result that only this world knows."""
        return {}

    def apply(self, change: Change) -> None:
        """Move the model by a merged change."""
        self.server_step.apply(self.parameters(), change.parameters, self.server)
        self.set_buffers(change.buffers)

    def shown(self) -> Mapping[str, Array]:
        """Return the parameters to evaluate and to hand out."""
        return self.server_step.shown(self.parameters(), self.server)


class Run:
    """Drive a strategy on a backend, and record what happens; ``report`` is given every row."""

    def __init__(
        self,
        strategy: Strategy,
        backend: Backend,
        host: ModelHost,
        record: Record,
        report: Callable[[Row], None] | None = None,
    ) -> None:
        self.backend, self.host, self.record, self.report = backend, host, record, report
        info = record.info
        self.everyone = list(range(info.devices))
        self.loop = Loop(strategy, backend, info.budget, self._log if info.clock == "real" else None)
        self.summary = Summary(info.budget, info.steps)
        self.backward = np.arange(len(info.layers), 0, -1)  # layers to finish before each is delivered
        self.began = self.saved = monotonic()
        for row in record.rows:
            self.summary.add(row)

    def begin(self) -> Iterator[Step]:
        """Begin the record with the initial model, and return the steps of the run."""
        self.record.begin()
        initial = Row(**{"round": 0, "time": self.backend.now(), **self.host.look(None)})
        self.began = self.saved = monotonic()
        self._write(initial)
        return self.loop.steps()

    def resume(self) -> Iterator[Step]:
        """Decide the steps up to the checkpoint again, and return those that are left.

        What a strategy keeps from one round to the next it has again after that.
        """
        checkpoint = self.record.checkpoint
        assert checkpoint is not None
        steps = self.loop.steps(map(Reaction.from_json, self.record.events))
        for step in islice(steps, checkpoint.round):
            row = self.record.rows[step.version]
            step.computed = Computed.recorded(row.gradients, row.losses)
        self.load(checkpoint)
        self.began = self.saved = monotonic()
        return steps

    def load(self, checkpoint: Checkpoint) -> None:
        """Give the model the weights of a checkpoint."""
        host, kept = self.host, checkpoint.weights
        host.server = State(
            {n.removeprefix(_SERVER): host.from_numpy(v) for n, v in kept.items() if n.startswith(_SERVER)}
        )
        host.load({n: v for n, v in kept.items() if not n.startswith(_SERVER)}, checkpoint.round)

    def go(self, steps: Iterator[Step]) -> None:
        """Compute, apply and record steps until the end."""
        self.loop.run(map(self._with_row, steps), self._apply, self._keep)

    def finish(self) -> RunResult:
        """Write the final model and the result."""
        result = replace(self.summary.result(), **self.host.outcome())
        if self.record.writer is not None:
            self._describe()
            self.record.writer.finish(result, self.host.final_weights())
        return result

    def _apply(self, step: Step) -> None:
        if step.computed is not None and step.computed.change is not None:
            self.host.apply(step.computed.change)

    def _keep(self, step: Step) -> None:
        self._write(self._row(step))
        self._describe()
        writer = self.record.writer
        if writer is not None and self.began - self.saved >= self.host.checkpoint_seconds:
            server = {_SERVER + name: self.host.to_numpy(value) for name, value in self.host.server.items()}
            writer.checkpoint(step.version, self.backend.now(), self.host.state() | server)
            self.saved = monotonic()

    def _with_row(self, step: Step) -> Step:
        """Fill in what is known of a step's row, as long as training has not swept the caches."""
        arrivals, A = step.merge.arrivals, step.merge.A
        counted = [(a.z[:, None] >= self.backward) & (w != 0) for a, w in zip(arrivals, A, strict=True)]
        devices = [u for a in arrivals for u in a.tasks.devices.tolist()]
        step.row = {
            "round": step.version,
            "time": step.time,
            "deadline": step.time - step.began,
            "batch": [size for a in arrivals for size in a.tasks.batch.tolist()],
            "depth": [z for a in arrivals for z in a.z.tolist()],
            "contributors": sum(layers.sum(axis=0) for layers in counted).tolist(),
            "devices": None if devices == self.everyone else devices,
            "computing": sum(_known(a.seconds[c.any(axis=1)]) for a, c in zip(arrivals, counted, strict=True)),
        }
        return step

    def _row(self, step: Step) -> Row:
        computed = step.computed or Computed(None)
        fields: dict[str, Any] = {
            **step.row,
            "train_loss": None if computed.change is None else computed.change.loss,
            "gradients": None if computed.spread is None else computed.spread.to_dict(),
            "losses": computed.losses_listed,
        }
        return Row(**{**fields, **self.host.look(step)})

    def _write(self, row: Row) -> None:
        now = monotonic()
        self.summary.add(row)
        if self.record.writer is not None:
            self.record.writer.append(row, now - self.began)
        if self.report is not None:
            self.report(row)
        self.began = now

    def _describe(self) -> None:
        new = self.host.described(self.record.info)
        if new is not self.record.info:
            self.record.info = new
            if self.record.writer is not None:
                self.record.writer.describe(new)

    def _log(self, reaction: Reaction) -> None:
        if self.record.writer is not None:
            self.record.writer.log_event(reaction.to_json())
