"""One run as arrays, checked as a whole before anything is drawn of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunInfo
from adelfl.records.summary import QUARTERS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Quantiles of a round's batch sizes that are kept."""

_LIMIT = 1e12  # seconds or samples; larger values are errors, and axes overflow
_BLANK = ("null", "[]", "None")
_PER_SEED = ("training.seed", "flower.seed", "data.data_dir", "engine.")  # in which seeds of one experiment may differ


@dataclass(frozen=True, eq=False)
class RunData:
    """What figures and tables need of one run with R finished rounds."""

    record: RunRecord
    planned: Floats | None  # deadlines of the schedule, if there was one before the first round
    lengths: Floats  # duration of each round, seconds
    evaluated: Floats  # times of the evaluations, seconds
    accuracy: Floats  # at those times; NaN where it was not evaluated
    loss: Floats  # likewise
    coverage: Floats  # shape (R, L): share of the round's devices whose layer was merged
    batches: Floats  # shape (R, 5): BATCH_QUANTILES of the batch sizes above 0; NaN if there are none
    idle: Ints  # number of devices with an empty batch
    depths: list[Floats]  # share of the layers that each device finished, 0 where its work was not merged
    devices: list[Ints]  # numbers of those devices
    refused: Counter[str]  # updates that were not merged, by reason, and abandoned rounds, on Flower

    @property
    def info(self) -> RunInfo:
        """The run information."""
        return self.record.info

    @property
    def state(self) -> Literal["finished", "failed", "unfinished"]:
        """Whether the run reached its end."""
        if self.record.result is not None:
            return "finished"
        return "unfinished" if self.record.failure is None else "failed"

    @property
    def name(self) -> str:
        """The strategy with its options, as ``adelfl compare --strategies`` takes it."""
        options = ";".join(f"{key}={str(value).strip(chr(39))}" for key, value in self.info.options.items())
        return f"{self.info.strategy}[{options}]" if options else self.info.strategy

    @cached_property
    def settings(self) -> dict[str, str]:
        """The configuration by dotted keys, without blanks and without what seeds of one experiment may differ in."""
        more = {"run.devices": str(self.info.devices), "run.layers": ", ".join(self.info.layers)}
        config = self.info.flat_config().items()
        settings = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in config} | more
        return {key: value for key, value in settings.items() if not key.startswith(_PER_SEED) and value not in _BLANK}


def read_run(folder: Path) -> RunData:
    """Read a run.

    Raises
    ------
    ConfigError
        If a file cannot be read, or if values in it cannot be drawn.
    """
    try:
        record = RunRecord.open(folder)
        info, result = record.info, record.result
        _numbers([info.budget, info.rounds, info.devices])
        _ = record.failure
        if result is not None:
            accuracies = [result.final_accuracy, *(result.accuracy.get(quarter) for quarter in QUARTERS)]
            _numbers([result.depth, result.time, *(value for value in accuracies if value is not None)])
        # Another reader for the rows, so that they are released when they have become arrays.
        data = _arrays(record, RunRecord(folder).rounds)
        _ = data.settings
        return data
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{folder}: not as adelfl records runs ({error})") from None


def _arrays(record: RunRecord, rows: list[Row]) -> RunData:
    info = record.info
    done = [row for row in rows if row.round > 0]
    evaluated = [row for row in rows if row.accuracy is not None or row.loss is not None]
    coverage, batches, depths, refused = np.zeros((len(done), len(info.layers))), [], [], Counter[str]()
    for t, row in enumerate(done):
        depth, contributors = _numbers(row.depth), _numbers(row.contributors)
        coverage[t] = contributors / max(1, depth.size)
        batches.append(_quantiles(_numbers(row.batch)))
        depths.append(_used(depth, contributors, info.steps) / info.steps)
        refused.update(_refused(row))
    return RunData(
        record=record,
        planned=_numbers(info.deadlines) if info.deadlines else None,
        lengths=_numbers([row.duration for row in done]),
        evaluated=_numbers([row.time for row in evaluated]),
        accuracy=np.array([row.accuracy for row in evaluated], dtype=np.float64),
        loss=np.array([row.loss for row in evaluated], dtype=np.float64),
        coverage=coverage,
        batches=np.array(batches).reshape(-1, len(BATCH_QUANTILES)),
        idle=np.array([list(row.batch).count(0) for row in done], dtype=np.int64),
        depths=depths,
        devices=[np.array(range(len(r.depth)) if r.devices is None else r.devices, dtype=np.int64) for r in done],
        refused=refused,
    )


def _numbers(values: Iterable[float | None]) -> Floats:
    values = list(values)
    array = np.array(values, dtype=np.float64)
    if not ((array >= 0) & (array <= _LIMIT)).all():
        raise ValueError(f"{str(values)[:60]} where numbers from 0 to {_LIMIT:g} belong")
    return array


def _quantiles(batch: Floats) -> Floats:
    sizes = np.sort(batch[batch > 0])
    if sizes.size == 0:
        return np.full(len(BATCH_QUANTILES), np.nan)
    quantiles: Floats = sizes[np.rint(np.array(BATCH_QUANTILES) * (sizes.size - 1)).astype(int)]
    return quantiles


def _used(depth: Floats, contributors: Floats, steps: int) -> Floats:
    """Return the depths, with 0 for devices that were left out of the merge.

    Rows hold the number of contributors per layer, not their identity. If it equals the number of devices that finished
    everything, and others delivered some layers too, then the others' layers were not merged.
    """
    delivered = (depth[:, None] >= np.arange(contributors.size, 0, -1)).sum(axis=0)
    finished = depth >= steps
    if (delivered > contributors).any() and (contributors == finished.sum()).all():
        return np.where(finished, depth, 0.0)
    return depth


def _refused(row: Row) -> Counter[str]:
    late = sum(count for number, count in row.late.items() if number != "0")  # round 0 only measures devices
    return Counter(row.rejected) + Counter({"late": late, "round given up: too few updates": int(row.abandoned)})
