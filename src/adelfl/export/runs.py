"""A record as named numbers per round, for the targets of an export."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from adelfl.errors import AdelError, ConfigError, MissingExtraError
from adelfl.records.reader import RunRecord

TARGETS = ("tensorboard", "mlflow", "csv")
"""Modules of this package; each has a function ``write(run)`` that returns the place of the export."""

SCALARS = ("time", "deadline", "accuracy", "loss", "train_loss", "depth")
"""Names of the numbers that a round may have; ``depth`` is the mean share of layers that devices finished."""

QUANTILES = {"min": 0.0, "median": 0.5, "max": 1.0}


@dataclass(frozen=True)
class Entry:
    """One row as named numbers: ``scalars`` (SCALARS and ``contributors/…`` per layer), and ``spreads`` per device."""

    round: int
    scalars: dict[str, float]
    spreads: dict[str, Sequence[float]]

    @property
    def numbers(self) -> dict[str, float]:
        """The scalars, and quantiles of each spread, for targets without histograms."""
        return self.scalars | {
            f"{name}/{word}": float(np.quantile(values, q))
            for name, values in self.spreads.items()
            for word, q in QUANTILES.items()
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
        for row in self.rounds:
            scalars = {name: float(value) for name in SCALARS[:-1] if (value := getattr(row, name)) is not None}
            if row.depth:
                scalars["depth"] = float(np.mean(row.depth)) / self.info.steps
            scalars |= {name: float(n) for name, n in zip(self.layers, row.contributors, strict=False)}
            spreads = {"batch_sizes": row.batch, "depths": row.depth}
            yield Entry(row.round, scalars, {name: values for name, values in spreads.items() if values})


def find_target(target: str) -> Callable[[ExportedRun], str]:
    """Return the function that writes to a target; raise MissingExtraError if its package is not installed."""
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
