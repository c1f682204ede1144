"""Send a record to a target: all of it at once, or round by round while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo, RunResult

SCALARS = ("time", "deadline", "accuracy", "loss", "train_loss", "depth")
"""Names of the numbers that a round may have; ``depth`` is the mean share of layers that devices finished."""

SPREADS = {"batch_sizes": "batch", "depths": "depth"}
"""Names of the values per device, and their fields in a row."""

_TARGETS = {"tensorboard": "TensorBoardLog", "mlflow": "MlflowLog", "csv": "CsvLog"}


@dataclass(frozen=True)
class Entry:
    """One row as named numbers: ``scalars`` (SCALARS and ``contributors/…`` per layer), and ``spreads`` per device."""

    round: int
    time: float
    scalars: dict[str, float]
    spreads: dict[str, Sequence[float]] = field(default_factory=dict)

    @property
    def quantiles(self) -> dict[str, float]:
        """Minimum, median and maximum of each spread, for targets without histograms."""
        return {
            f"{name}/{word}": float(value)
            for name, values in self.spreads.items()
            for word, value in zip(("min", "median", "max"), np.quantile(values, (0.0, 0.5, 1.0)), strict=True)
        }


@dataclass(frozen=True)
class ExportedRun:
    """The run that is exported; while it is ``live``, its rounds are to be visible at once."""

    folder: Path
    info: RunInfo
    live: bool = False

    @property
    def started(self) -> float:
        """Start of the run, in seconds since 1970."""
        return float(self.info.started or (self.folder / "run.json").stat().st_mtime)

    @property
    def layers(self) -> list[str]:
        """``contributors/1 first``, ``contributors/2 second``, …, in an order that sorts."""
        width = len(str(len(self.info.layers)))
        return [f"contributors/{i:0{width}d} {name}" for i, name in enumerate(self.info.layers, start=1)]

    def entry(self, row: Row) -> Entry:
        """Return a row of the record as an entry."""
        spreads = {name: values for name, key in SPREADS.items() if (values := getattr(row, key))}
        scalars = {name: float(value) for name in SCALARS[:-1] if (value := getattr(row, name)) is not None}
        if row.depth:
            scalars["depth"] = float(np.mean(row.depth)) / self.info.steps
        scalars |= {name: float(n) for name, n in zip(self.layers, row.contributors, strict=False)}
        return Entry(row.round, float(row.time), scalars, spreads)


class Log(Protocol):
    """A target of entries."""

    def add(self, entry: Entry) -> None:
        """Write one round."""

    def close(self, result: RunResult | None) -> str:
        """End the log and return its place; ``result`` is None if the run did not finish."""

    def discard(self) -> None:
        """Remove what a failed export wrote; an earlier export stays as it was."""


def find_target(target: str) -> Callable[[ExportedRun], Log]:
    """Return the class of a target's logs.

    Raises
    ------
    ConfigError
        If there is no such target.
    MissingExtraError
        If its package is not installed.
    """
    if target not in _TARGETS:
        raise ConfigError(f"{target!r} is no target of an export; allowed are {', '.join(_TARGETS)}")
    try:
        kind: Callable[[ExportedRun], Log] = getattr(import_module(f"adelfl.export.{target}"), _TARGETS[target])
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != target:
            raise
        raise MissingExtraError(target, target) from None
    return kind


def export_run(folder: Path, target: str) -> str:
    """Export a recorded run, and return the place of the export."""
    record, kind = RunRecord.open(folder), find_target(target)
    rows, run, log = record.rounds, ExportedRun(folder, record.info), None
    try:
        log = kind(run)
        for row in rows:
            log.add(run.entry(row))
        return log.close(record.result)
    except Exception as error:
        if log is not None:
            with suppress(Exception):  # the first error is the one to report
                log.discard()
        raise AdelError(f"{folder}: cannot be exported to {target} ({_in_short(error)})") from error


def _in_short(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


class Logs:
    """Sends rounds to several targets as they are done; a target that fails is dropped with one warning.

    Parameters
    ----------
    targets : sequence of str
    folder : Path
        The run's folder, which must exist when the first row is sent.
    warn : callable
        Called with a sentence.
    """

    def __init__(self, targets: Sequence[str], folder: Path, warn: Callable[[str], None]) -> None:
        self._unopened = {target: find_target(target) for target in targets}
        self._logs: dict[str, tuple[ExportedRun, Log]] = {}
        self._folder, self._warn = folder, warn

    def row(self, row: Row) -> None:
        """Send a row."""
        unopened, self._unopened = self._unopened, {}
        for target, kind in unopened.items():
            with self._dropping(target):
                run = ExportedRun(self._folder, RunRecord.open(self._folder).info, live=True)
                self._logs[target] = run, kind(run)
        for target, (run, log) in list(self._logs.items()):
            with self._dropping(target):
                log.add(run.entry(row))

    @contextmanager
    def _dropping(self, target: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._logs.pop(target, None)
            self._warn(
                f"{target} failed and is left out ({_in_short(error)}); "
                f"the record is complete, and adelfl export {self._folder} --to {target} sends it again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for target, (_, log) in list(self._logs.items()):
            with self._dropping(target):
                log.close(RunRecord(self._folder).result)
