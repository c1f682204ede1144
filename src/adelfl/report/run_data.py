"""A run as arrays for figures; all of them are checked before a figure is drawn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.array_types import Floats
from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.records.summary import QUARTERS

BATCH_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Quantiles of a round's batch sizes that are drawn."""

_LIMIT = 1e12  # seconds or samples; larger values are errors, and would overflow axes
_BLANK = ("null", "[]", "None")
_PER_SEED = (
    "training.seed",
    "flower.seed",
    "data.data_dir",
    "engine.",
)  # keys that may differ between the seeds of one experiment


class RunData(RunRecord):
    """Arrays for figures and tables of one run, with R finished rounds and L layers."""

    @property
    def state(self) -> str:
        """``finished``, ``failed`` or ``unfinished``."""
        if self.result is not None:
            return "finished"
        return "unfinished" if self.failure is None else "failed"

    @property
    def name(self) -> str:
        """The strategy with its options, as ``adelfl compare --strategies`` takes it."""
        options = ";".join(f"{key}={str(value).strip(chr(39))}" for key, value in self.info.options.items())
        return f"{self.info.strategy}[{options}]" if options else self.info.strategy

    @cached_property
    def settings(self) -> dict[str, str]:
        """The configuration by dotted keys, without empty values and without keys that may differ between seeds."""
        more = {"run.devices": str(self.info.devices), "run.layers": ", ".join(self.info.layers)}
        config = _flat(self.info.config).items()
        settings = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in config} | more
        return {key: value for key, value in settings.items() if not key.startswith(_PER_SEED) and value not in _BLANK}

    @cached_property
    def done(self) -> list[Row]:
        """Rows of the finished rounds."""
        return [row for row in self.rounds if row.round > 0]

    @cached_property
    def planned(self) -> Floats:
        """Planned deadlines before the first round; empty without a plan."""
        return _numbers(self.info.deadlines)

    @cached_property
    def lengths(self) -> Floats:
        """Duration of each round in seconds, shape (R,)."""
        return _numbers(row.duration for row in self.done)

    @cached_property
    def coverage(self) -> Floats:
        """Share of the round's devices whose layer was merged, shape (R, L)."""
        shares = [_numbers(row.contributors) / max(1, len(row.depth)) for row in self.done]
        return np.array(shares).reshape(len(self.done), len(self.info.layers))

    @cached_property
    def batches(self) -> Floats:
        """BATCH_QUANTILES of the batch sizes above 0, shape (R, 5); NaN if there are none."""
        positive = [_numbers(size for size in row.batch if size > 0) for row in self.done]
        nearest = [np.quantile(b, BATCH_QUANTILES, method="nearest") if b.size else [np.nan] * 5 for b in positive]
        return np.array(nearest, dtype=np.float64).reshape(-1, len(BATCH_QUANTILES))

    @cached_property
    def work(self) -> tuple[list[NDArray[np.int64]], list[Floats]]:
        """For each round, the devices and the share of each device's layers that was merged."""
        devices = [np.array(range(len(r.depth)) if r.devices is None else r.devices, dtype=np.int64) for r in self.done]
        return devices, [_used(row, self.info.steps) / self.info.steps for row in self.done]

    @cached_property
    def refused(self) -> Counter[str]:
        """Updates that were not merged, by reason, and abandoned rounds, on Flower."""
        total = Counter[str]()
        for row in self.done:
            total.update(row.rejected)
            total["late"] += sum(row.late.values()) - row.late.get("0", 0)  # round 0 only measures devices
            total["abandoned round: too few updates"] += row.abandoned
        return +total


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted keys."""
    parts = (_flat(v, f"{prefix}{k}.") if isinstance(v, Mapping) else {prefix + k: v} for k, v in values.items())
    return {key: value for part in parts for key, value in part.items()}


def read_run(folder: Path) -> RunData:
    """Read a run; raise ConfigError if a file cannot be read, or if values in it cannot be drawn."""
    try:
        run = RunData(RunRecord.open(folder).folder)
        info, result = run.info, run.result
        _numbers([info.budget, info.rounds, info.devices, *(row.time for row in run.rounds)])
        if result is not None:
            accuracies = [result.final_accuracy, *(result.accuracy.get(quarter) for quarter in QUARTERS)]
            _numbers([result.depth, result.time, *(value for value in accuracies if value is not None)])
        _ = run.failure, run.settings, run.planned, run.lengths, run.coverage, run.batches, run.work, run.refused
        return run
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{folder}: not a valid record of a run ({error})") from None


def _numbers(values: Iterable[float | None]) -> Floats:
    values = list(values)
    array = np.array(values, dtype=np.float64)
    if not ((array >= 0) & (array <= _LIMIT)).all():
        raise ValueError(f"{str(values)[:60]} must be numbers from 0 to {_LIMIT:g}")
    return array


def _used(row: Row, steps: int) -> Floats:
    """Return the depths, with 0 for devices that were left out of the merge.

    Rows have the number of contributors per layer, not their identity. If it equals the number of devices that finished
    everything, although others delivered some layers too, then the layers of the others were not merged.
    """
    depth, contributors = _numbers(row.depth), _numbers(row.contributors)
    delivered = (depth[:, None] >= np.arange(contributors.size, 0, -1)).sum(axis=0)
    finished = depth >= steps
    if (delivered > contributors).any() and (contributors == finished.sum()).all():
        return np.where(finished, depth, 0.0)
    return depth
