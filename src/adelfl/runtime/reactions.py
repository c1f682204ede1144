"""Reactions of a strategy as values for the log of a real run, from which its decisions can be repeated."""

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
    """An event as JSON values, the time of the strategy's reaction, and the cohorts that the strategy drew."""

    now: float
    event: Mapping[str, Any]
    """Fields of the event; arrivals refer to their tasks by number."""
    cohorts: list[list[int]]

    @classmethod
    def of(cls, now: float, event: Event, cohorts: Sequence[Ints]) -> Reaction:
        """Describe a reaction."""
        return cls(now, _described(event), [devices.tolist() for devices in cohorts])

    def to_json(self) -> dict[str, Any]:
        """Return values for JSON."""
        return vars(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Reaction:
        """Build a reaction from the values of :meth:`to_json`."""
        return cls(float(values["now"]), values["event"], list(values["cohorts"]))

    def cohort(self, k: int, size: int | None) -> Ints:
        """Return the next logged cohort."""
        if not self.cohorts:
            raise AdelError("the log of this run does not fit the strategy: it draws a cohort that is not in the log")
        return np.array(self.cohorts.pop(0), dtype=np.int64)

    def event_of(self, dispatched: Sequence[Tasks]) -> Event:
        """Rebuild the event, given all tasks that were dispatched before."""
        e = self.event
        match e["kind"]:
            case "arrivals":
                if e["number"] >= len(dispatched):
                    raise AdelError("the log of this run does not fit the strategy: it dispatched fewer tasks")
                timings = tuple(None if t is None else Timing.of(t) for t in e["timings"])
                seconds, upload = (np.array(e[key], dtype=np.float64) for key in ("seconds", "upload"))  # null: NaN
                z = np.array(e["z"], dtype=np.int64)
                tasks = of_devices(dispatched[e["number"]], np.array(e["devices"], dtype=np.int64))
                return Arrivals(tasks, e["number"], e["version"], e["began"], z, seconds, upload, timings)
            case "late":
                return Late(e["device"], e["batch"], e["z"], e["seconds"], Timing.of(e["timing"]))
            case "joined":
                return Joined(np.array(e["devices"], dtype=np.int64))
            case "started":
                return Started()
        return Timer()


def of_devices(tasks: Tasks, devices: Ints) -> Tasks:
    """Return the tasks of some of their devices."""
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
    """Return a value for JSON, with None for NaN."""
    if isinstance(value, np.ndarray):
        return [None if math.isnan(number) else number for number in value.tolist()]
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return list(astuple(value)) if isinstance(value, Timing) else value
