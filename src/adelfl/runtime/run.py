"""Recorded runs of simulations and deployments: begin or continue the record, move the model, write rows.

A :class:`ModelHost` provides the parts that differ between the two: where the model is, and when it is evaluated.
"""

from __future__ import annotations

import errno
import math
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

_SERVER = "server/"  # prefix of the server step's state in checkpoints
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  # full, or not writable


@dataclass(eq=False)
class Record:
    """The record of a new, interrupted or finished run. Without a folder, nothing is written.

    As a context manager, it closes the files, and writes the error that ends a run into failed.json.
    """

    folder: Path | None
    info: RunInfo
    result: RunResult | None = None
    """Result of a finished run."""
    checkpoint: Checkpoint | None = None
    """Last checkpoint of an interrupted run; ``rows`` and ``events`` end there."""
    rows: list[Row] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    writer: RunWriter | None = None
    failure: str = ""
    """Message about the exception that ended the run, unless it was an AdelError."""

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
        """Create the folder of a new run."""
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
    """Return the sum of the numbers that are not NaN, in half the time of ``np.nansum``."""
    return float(np.where(np.isnan(seconds), 0.0, seconds).sum())


def is_disk_error(error: BaseException) -> bool:
    """Return whether the disk is full or not writable, so that the run can be continued later."""
    return isinstance(error, OSError) and error.errno in _DISK


class ModelHost(ABC):
    """The model of a run, and the server step that moves it, whose state is ``server``."""

    checkpoint_seconds: float = 0.0
    """Wall-clock seconds between two checkpoints; 0 for a checkpoint after every merge."""

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
        """Evaluate the model if it is due, and return further fields of the row of a step; None: the initial model."""

    @abstractmethod
    def final_weights(self) -> Weights:
        """Return the weights of the finished run."""

    @abstractmethod
    def state(self) -> Weights:
        """Return the content of a checkpoint, without the state of the server step."""

    @abstractmethod
    def load(self, state: Weights, version: int) -> None:
        """Restore the state of a checkpoint, whose weights have this version."""

    @abstractmethod
    def outcome(self) -> Mapping[str, Any]:
        """Return further fields of the result."""

    def repeat(self, step: Step, row: Row) -> None:  # noqa: B027 - only hosts that count something need it
        """Count a step that an earlier process computed and recorded."""

    def from_numpy(self, value: NDArray[Any]) -> Array:
        """Convert an array of NumPy to an array of the model."""
        return value

    def to_numpy(self, value: Array) -> NDArray[Any]:
        """Convert an array of the model to an array of NumPy."""
        return np.asarray(value)

    def described(self, info: RunInfo) -> RunInfo:
        """Return the run information with new facts added; the same object if there are none."""
        return info

    def apply(self, change: Change) -> None:
        """Move the model by a merged change."""
        self.server_step.apply(self.parameters(), change.parameters, self.server)
        self.set_buffers(change.buffers)

    def shown(self) -> Mapping[str, Array]:
        """Return the parameters to evaluate and to return."""
        return self.server_step.shown(self.parameters(), self.server)


class Run:
    """Run a strategy on a backend and record the run; ``report`` receives every row."""

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
        """Repeat the decisions up to the checkpoint, to restore the strategy's state; return the remaining steps."""
        checkpoint = self.record.checkpoint
        assert checkpoint is not None
        steps = self.loop.steps(map(Reaction.from_json, self.record.events))
        for step in islice(steps, checkpoint.round):
            row = self.record.rows[step.version]
            step.computed = Computed.recorded(row.gradients, row.losses)
            self.host.repeat(step, row)
        self.load(checkpoint)
        self.began = self.saved = monotonic()
        return steps

    def load(self, checkpoint: Checkpoint) -> None:
        """Restore the model and the state of the server step from a checkpoint."""
        host, kept = self.host, checkpoint.weights
        server = [name for name in kept if name.startswith(_SERVER)]
        host.server = {name.removeprefix(_SERVER): host.from_numpy(kept[name]) for name in server}
        host.load({name: value for name, value in kept.items() if name not in server}, checkpoint.round)

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
        """Set the fields of a step's row that are known already, while its arrays are still in the caches."""
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
        losses = None if computed.losses is None else computed.losses.tolist()
        fields: dict[str, Any] = {
            **step.row,
            "train_loss": None if computed.change is None else computed.change.loss,
            "gradients": None if computed.spread is None else computed.spread.to_dict(),
            "losses": losses and [None if math.isnan(loss) else loss for loss in losses],
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
