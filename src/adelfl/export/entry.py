"""A row of a record as named numbers: what every target is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from adelfl.record import RunRecord

SCALARS = ("time", "deadline", "accuracy", "loss", "train_loss", "depth")
"""Names of the numbers that a round may have; ``depth`` is the mean share of layers that devices finished."""

SPREADS = {"batch_sizes": "batch", "depths": "depth"}
"""What there is one number of per device, samples and layers finished: its name, and its key in a row."""


@dataclass(frozen=True)
class Entry:
    """One round.

    Attributes
    ----------
    round : int
        0 is before the first one.
    time : float
        Seconds since the run began, virtual ones in a simulation.
    scalars : dict
        Name → number, as far as the round has them: ``SCALARS``, and ``contributors/…`` of each layer.
    spreads : dict
        Name → a number per device.
    """

    round: int
    time: float
    scalars: dict[str, float]
    spreads: dict[str, list[float]] = field(default_factory=dict)

    @property
    def quantiles(self) -> dict[str, float]:
        """Least, median and largest of each spread, for targets that know no histograms."""
        found = {}
        for name, values in self.spreads.items():
            for word, value in zip(("min", "median", "max"), np.quantile(values, (0.0, 0.5, 1.0)), strict=True):
                found[f"{name}/{word}"] = float(value)
        return found


@dataclass(frozen=True)
class Source:
    """The run that is exported.

    Attributes
    ----------
    folder : Path
        Of its record.
    about : dict
        Its run.json.
    live : bool
        Whether the run is still going: rounds are then to be seen at once. Otherwise files are seen when they are
        complete.
    """

    folder: Path
    about: dict[str, Any]
    live: bool = False

    @classmethod
    def of(cls, record: RunRecord, *, live: bool = False) -> Source:
        """What a record says of itself."""
        return cls(record.folder, record.about, live)

    @property
    def started(self) -> float:
        """When the run began, in seconds since 1970."""
        return float(self.about.get("started") or (self.folder / "run.json").stat().st_mtime)

    @property
    def layers(self) -> list[str]:
        """``contributors/1 first``, ``contributors/2 second``, …, in an order that sorts."""
        names: Sequence[str] = self.about["layers"]
        width = len(str(len(names)))
        return [f"contributors/{i:0{width}d} {name}" for i, name in enumerate(names, start=1)]

    def entry(self, row: Mapping[str, Any]) -> Entry:
        """A row of the record as an entry."""
        spreads = {name: row[key] for name, key in SPREADS.items() if row.get(key)}
        scalars = {name: float(row[name]) for name in SCALARS if isinstance(row.get(name), int | float)}
        if "depths" in spreads:
            scalars["depth"] = float(np.mean(spreads["depths"])) / self._steps
        contributors = row.get("contributors") or ()
        scalars |= {name: float(n) for name, n in zip(self.layers, contributors, strict=False)}
        return Entry(row["round"], float(row["time"]), scalars, spreads)

    @property
    def _steps(self) -> int:
        """E·L: what a device that finishes everything finishes."""
        return len(self.about["layers"]) * RunRecord.steps_of(self.about)


class Log(Protocol):
    """Where entries go."""

    def add(self, entry: Entry) -> None:
        """Take one round."""

    def close(self, result: Mapping[str, Any] | None) -> str:
        """End the log; ``result`` is the run's summary, None if it did not end well. Says where the log is."""

    def discard(self) -> None:
        """Remove what was written by an export that failed; an earlier export stays as it was."""
