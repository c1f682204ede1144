"""One run as arrays: read once, and checked, so that no picture meets what adelfl did not write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import AdelError, ConfigError
from adelfl.record import RunRecord
from adelfl.summary import QUARTERS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BATCH_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""What is kept of a round's batch sizes."""

_LIMIT = 1e12  # seconds or samples; beyond it a record is broken, and axes overflow
_KINDS = {
    "config": dict,
    "devices": int,
    "label": str,
    "layers": list,
    "notes": list,
    "rounds": int,
    "seed": int,
    "strategy": str,
    "versions": dict,
}
_BLANK = ("null", "[]", "None")
_ASIDE = ("training.seed", "flower.seed", "data.data_dir", "engine.")  # what two seeds of one experiment may differ in


@dataclass(frozen=True, eq=False)
class Trace:
    """What pictures and tables need of one run; R rounds were done.

    Attributes
    ----------
    record : RunRecord
        Its folder, run.json and result.json.
    planned : ndarray or None
        The deadlines of its schedule, seconds, if it had one before the first round.
    lengths : ndarray, shape (R,)
        How long each round took, seconds.
    evaluated, accuracy, loss : ndarray, shape (evaluations,)
        When the model was looked at, seconds since the start, and what was found; NaN where it was not.
    coverage : ndarray, shape (R, L)
        Share of the devices asked whose layer was merged.
    batches : ndarray, shape (R, 5)
        BATCH_QUANTILES of the batch sizes of those who had any; NaN where nobody had.
    idle : ndarray, shape (R,)
        Number of devices asked whose batch was empty.
    depths : list of R ndarrays
        Share of its layers that each device asked finished, 0 where nothing of it was used.
    asked : list of R ndarrays
        The numbers of those devices.
    refused : Counter
        Updates that were not taken, by reason, and rounds given up: from runs on Flower.
    """

    record: RunRecord
    planned: Floats | None
    lengths: Floats
    evaluated: Floats
    accuracy: Floats
    loss: Floats
    coverage: Floats
    batches: Floats
    idle: Ints
    depths: list[Floats]
    asked: list[Ints]
    refused: Counter[str]

    @property
    def about(self) -> dict[str, Any]:
        """What its run.json says."""
        return self.record.about

    @property
    def label(self) -> str:
        """What reports call its strategy."""
        return str(self.about["label"])

    @property
    def budget(self) -> float:
        """T_max."""
        return float(self.about["budget"])

    @property
    def uniform(self) -> float:
        """T_max / R: the deadline of every round if all were alike."""
        return self.budget / int(self.about["rounds"])

    @property
    def clock(self) -> str:
        """``virtual`` in a simulation, ``real`` on a deployment."""
        return str(self.about.get("clock", "virtual"))

    @property
    def state(self) -> Literal["finished", "failed", "unfinished"]:
        """Whether it came to its end."""
        if self.record.result is not None:
            return "finished"
        return "unfinished" if self.record.failure is None else "failed"

    @property
    def name(self) -> str:
        """Its strategy with options, as ``adelfl compare --strategies`` takes it."""
        config = self.about["config"]
        options = config.get("strategy", config.get("flower", {})).get("options", {})
        said = ";".join(f"{key}={str(value).strip(chr(39))}" for key, value in options.items())
        return f"{self.about['strategy']}[{said}]" if said else str(self.about["strategy"])

    @cached_property
    def settings(self) -> dict[str, str]:
        """The configuration by dotted keys, without blanks, and without what seeds of one experiment may differ in."""
        about = self.about
        found = _flat(about["config"]) | {
            "run.devices": str(about["devices"]),
            "run.layers": ", ".join(about["layers"]),
        }
        return {key: value for key, value in found.items() if not key.startswith(_ASIDE) and value not in _BLANK}


def read_trace(folder: Path) -> Trace:
    """Read a run, or say in one sentence why it cannot be read."""
    try:
        record = RunRecord.open(folder)
        _check(record)
        # Another reader for the rows, so that they go when they have become arrays.
        trace = _trace(record, RunRecord(folder).rounds)
        _ = trace.name, trace.settings
        return trace
    except AdelError:
        raise
    except KeyError as trouble:
        raise ConfigError(f"{folder}: not as adelfl records runs (there is no {trouble})") from None
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as trouble:
        raise ConfigError(f"{folder}: not as adelfl records runs ({trouble})") from None


def _check(record: RunRecord) -> None:
    about, result = record.about, record.result
    for key, kind in _KINDS.items():
        if not isinstance(about.get(key, kind()), kind):
            raise ValueError(f"{key} is no {kind.__name__}")
    _numbers([about["budget"], about["rounds"], about["devices"]], least=1e-9)
    _numbers([about["seed"]])
    if not (about["layers"] and all(isinstance(name, str) for name in about["layers"])):
        raise ValueError("layers are no names")
    _ = record.failure
    if result is not None:
        _numbers([result["depth"], result["rounds"], result["time"]])
        known = [result["final_accuracy"], *(result["accuracy"][quarter] for quarter in QUARTERS)]
        _numbers([value for value in known if value is not None])


def _trace(record: RunRecord, rows: list[dict[str, Any]]) -> Trace:
    about = record.about
    L = len(about["layers"])
    steps = L * record.steps_of(about)
    done = [row for row in rows if row["round"] > 0]
    looked = [row for row in rows if row["accuracy"] is not None or row["loss"] is not None]
    coverage, batches, depths, asked, refused = np.zeros((len(done), L)), [], [], [], Counter[str]()
    idle = np.zeros(len(done), dtype=np.int64)
    for t, row in enumerate(done):
        depth, contributors = _numbers(row["depth"]), _numbers(row["contributors"])
        coverage[t] = contributors / max(1, depth.size)
        batch = _numbers(row["batch"])
        batches.append(_quantiles(batch))
        idle[t] = np.count_nonzero(batch == 0)
        depths.append(_used(depth, contributors, steps) / steps)
        asked.append(_numbers(row.get("devices", range(depth.size))).astype(np.int64))
        if asked[-1].size != depth.size:
            raise ValueError(f"round {row['round']} has {depth.size} depths for {asked[-1].size} devices")
        refused.update(_refused(row))
    schedule = about.get("schedule")
    return Trace(
        record=record,
        planned=None if schedule is None else _numbers(schedule["deadlines"]),
        lengths=_numbers([row.get("length", row["deadline"]) for row in done]),
        evaluated=_numbers([row["time"] for row in looked]),
        accuracy=np.array([row["accuracy"] for row in looked], dtype=np.float64),
        loss=np.array([row["loss"] for row in looked], dtype=np.float64),
        coverage=coverage,
        batches=np.array(batches).reshape(-1, len(BATCH_QUANTILES)),
        idle=idle,
        depths=depths,
        asked=asked,
        refused=refused,
    )


def _numbers(values: Iterable[Any], least: float = 0.0) -> Floats:
    values = list(values)
    found = np.array(values, dtype=np.float64)
    if found.ndim != 1 or not ((found >= least) & (found <= _LIMIT)).all():
        raise ValueError(f"{str(values)[:60]} where numbers from {least:g} to {_LIMIT:g} belong")
    return found


def _quantiles(batch: Floats) -> Floats:
    sizes = np.sort(batch[batch > 0])
    if sizes.size == 0:
        return np.full(len(BATCH_QUANTILES), np.nan)
    found: Floats = sizes[np.rint(np.array(BATCH_QUANTILES) * (sizes.size - 1)).astype(int)]
    return found


def _used(depth: Floats, contributors: Floats, steps: int) -> Floats:
    """Depths, 0 for devices left out of the merge.

    Rows say how many contributed to each layer, not who. If that is everybody who finished everything, and fewer than
    delivered something, the others' work was thrown away.
    """
    delivered = (depth[:, None] >= np.arange(contributors.size, 0, -1)).sum(axis=0)
    finished = depth >= steps
    if (delivered > contributors).any() and (contributors == finished.sum()).all():
        return np.where(finished, depth, 0.0)
    return depth


def _refused(row: Mapping[str, Any]) -> dict[str, int]:
    found = {str(reason): int(count) for reason, count in row.get("rejected", {}).items()}
    # Round 0 is the measurement, for which nobody can be late.
    late = sum(int(count) for number, count in row.get("late", {}).items() if number != "0")
    for reason, count in (("late", late), ("round given up: too few updates", int(bool(row.get("abandoned"))))):
        if count:
            found[reason] = found.get(reason, 0) + count
    return found


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found
