"""Reactions of a strategy as values: what a log of a real run keeps, so that its decisions can be made again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np

from adelfl.errors import AdelError
from adelfl.planner.beliefs import Timing
from adelfl.strategies.actions import Arrivals, Event, Ints, Joined, Late, Merged, Started, Tasks, Timer


@dataclass(frozen=True, eq=False)
class Reaction:
    """One event, ready for JSON, when the strategy reacted to it, and the cohorts that it drew.

    Arrivals name their tasks by number.
    """

    now: float
    event: Mapping[str, Any]
    cohorts: list[list[int]]

    @classmethod
    def of(cls, now: float, event: Event, cohorts: Sequence[Ints]) -> Reaction:
        """Describe a reaction."""
        return cls(now, _described(event), [devices.tolist() for devices in cohorts])

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON can hold; :meth:`from_json` takes them back."""
        return {"now": self.now, "event": self.event, "cohorts": self.cohorts}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reaction:
        """Rebuild what :meth:`to_json` gave."""
        return cls(float(values["now"]), values["event"], [list(devices) for devices in values["cohorts"]])

    def cohort(self, k: int, size: int | None) -> Ints:
        """Return the next of the cohorts that were drawn."""
        if not self.cohorts:
            raise AdelError("the log of this run does not fit the strategy: it draws a cohort that is not in the log")
        return np.array(self.cohorts.pop(0), dtype=np.int64)

    def event_of(self, dispatched: Sequence[Tasks]) -> Event:
        """Rebuild the event; ``dispatched`` are all tasks so far, which arrivals refer to by number."""
        e = self.event
        match e["kind"]:
            case "arrivals":
                if e["number"] >= len(dispatched):
                    raise AdelError("the log of this run does not fit the strategy: it dispatched fewer tasks")
                devices = np.array(e["devices"], dtype=np.int64)
                timings = tuple(None if t is None else Timing.of(t) for t in e["timings"])
                seconds, upload = (_floats(e[key]) for key in ("seconds", "upload"))
                z = np.array(e["z"], dtype=np.int64)
                tasks = of_devices(dispatched[e["number"]], devices)
                return Arrivals(tasks, e["number"], e["version"], e["began"], z, seconds, upload, timings)
            case "late":
                return Late(e["device"], e["batch"], e["z"], e["seconds"], Timing.of(e["timing"]))
            case "joined":
                return Joined(np.array(e["devices"], dtype=np.int64))
            case "started":
                return Started()
        return Timer()


def of_devices(tasks: Tasks, devices: Ints) -> Tasks:
    """Return the part of some tasks that concerns some of their devices."""
    if np.array_equal(devices, tasks.devices):
        return tasks
    return tasks.only(np.searchsorted(tasks.devices, devices))


def _described(event: Event) -> dict[str, Any]:
    if isinstance(event, Merged):
        return {"kind": "merged"}
    values = {"kind": type(event).__name__.lower()} | {f.name: getattr(event, f.name) for f in fields(event)}
    if isinstance(event, Arrivals):
        values["devices"] = values.pop("tasks").devices
    return {key: _plain(value) for key, value in values.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401 - fields of events
    """Return a value fit for JSON; null stands for NaN."""
    if isinstance(value, np.ndarray):
        return [None if math.isnan(number) else number for number in value.tolist()]
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return list(astuple(value)) if isinstance(value, Timing) else value


def _floats(values: Sequence[float | None]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)
