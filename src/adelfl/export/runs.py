"""A record as named numbers per round, for the targets of an export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np

from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row

TARGETS = ("tensorboard", "mlflow", "csv")
"""Modules of this package; each has a function ``write(run)`` that returns the place of the export."""

SCALARS = ("time", "deadline", "accuracy", "loss", "train_loss", "depth")
"""Names of the numbers that a round may have; ``depth`` is the mean share of layers that devices finished."""

SPREADS = {"batch_sizes": "batch", "depths": "depth"}
"""Names of the values per device, and their fields in a row."""


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


class ExportedRun(RunRecord):
    """A record that is exported."""

    @property
    def started(self) -> float:
        """Start of the run, in seconds since 1970."""
        return float(self.info.started or (self.folder / "run.json").stat().st_mtime)

    @property
    def layers(self) -> list[str]:
        """``contributors/1 first``, ``contributors/2 second``, …, in an order that sorts."""
        width = len(str(len(self.info.layers)))
        return [f"contributors/{i:0{width}d} {name}" for i, name in enumerate(self.info.layers, start=1)]

    def entries(self) -> Iterator[Entry]:
        """Yield the rows as entries."""
        return map(self._entry, self.rounds)

    def _entry(self, row: Row) -> Entry:
        spreads = {name: values for name, key in SPREADS.items() if (values := getattr(row, key))}
        scalars = {name: float(value) for name in SCALARS[:-1] if (value := getattr(row, name)) is not None}
        if row.depth:
            scalars["depth"] = float(np.mean(row.depth)) / self.info.steps
        scalars |= {name: float(n) for name, n in zip(self.layers, row.contributors, strict=False)}
        return Entry(row.round, float(row.time), scalars, spreads)


def find_target(target: str) -> Callable[[ExportedRun], str]:
    """Return the function that writes to a target.

    Raises
    ------
    ConfigError
        If there is no such target.
    MissingExtraError
        If its package is not installed.
    """
    if target not in TARGETS:
        raise ConfigError(f"{target!r} is no target of an export; allowed are {', '.join(TARGETS)}")
    try:
        write: Callable[[ExportedRun], str] = import_module(f"adelfl.export.{target}").write
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != target:
            raise
        raise MissingExtraError(target, target) from None
    return write


def export_run(folder: Path, target: str) -> str:
    """Export a run, finished or not, and return the place of the export; if it fails, an earlier one stays."""
    write = find_target(target)
    run = ExportedRun(RunRecord.open(folder).folder)
    _ = run.rounds  # errors of the record before anything is written
    try:
        return write(run)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise AdelError(f"{folder}: cannot be exported to {target} ({reason})") from error
