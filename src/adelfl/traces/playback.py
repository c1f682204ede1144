"""Bandwidth and availability of devices at a moment of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from adelfl.array_types import Floats, Ints
from adelfl.durations import Trace
from adelfl.seeds import rng_for


def deal(rows: int, devices: int, seed: int, what: str) -> Ints:
    """Assign a row of a file to each device: all rows in random order, before any is used again."""
    rng = rng_for(seed, "traces", what)
    permutations = [rng.permutation(rows) for _ in range(-(-devices // rows))]
    return np.concatenate(permutations)[:devices]


@dataclass(frozen=True, eq=False)
class Links:
    """Uplinks of the devices: bandwidth traces that repeat, started at a random moment of each."""

    traces: tuple[Trace, ...]
    row: Ints
    """Trace of each device."""
    begin: Floats
    """Share of the trace at which each device is at the start of the run."""

    @classmethod
    def dealt(cls, traces: tuple[Trace, ...], devices: int, seed: int) -> Links:
        """Assign a trace to each device, and the moment at which it starts."""
        begin = rng_for(seed, "traces", "bandwidth", "begin").random(devices)
        return cls(traces, deal(len(traces), devices, seed, "bandwidth"), begin)

    @cached_property
    def mean_rate(self) -> Floats:
        """Mean bandwidth of each device, in the unit of the traces."""
        return np.array([trace.mean_rate for trace in self.traces])[self.row]

    def seconds(self, devices: Ints, moments: Floats, amounts: Floats) -> Floats:
        """Return the durations of uploads that begin at these moments of the run, shape (U, K).

        ``amounts`` are their durations at the mean bandwidth of the device, shape (U, 1) or (U, K).
        """
        seconds = np.empty(np.broadcast_shapes(moments.shape, amounts.shape))
        for i, u in enumerate(devices):
            trace = self.traces[self.row[u]]
            seconds[i] = trace.times(amounts[i], (self.begin[u] + moments[i] / trace.length) % 1.0)
        return seconds

    def lead(self, devices: Ints, moment: float, amounts: Floats) -> Floats:
        """Return how long before a moment of the run uploads must begin to be complete by then, shape (U,)."""
        seconds = np.empty(devices.size)
        for i, u in enumerate(devices):
            trace = self.traces[self.row[u]]
            seconds[i] = trace.lead(amounts[i], (self.begin[u] + moment / trace.length) % 1.0)
        return seconds


@dataclass(frozen=True, eq=False)
class Schedules:
    """Periods in which devices are available, in seconds; each row repeats after its length."""

    starts: Floats
    """Starts of all periods, row after row, ascending in each."""
    ends: Floats
    row: Ints
    """Row of each period, ascending."""
    length: Floats
    """Seconds after which each row repeats."""

    @classmethod
    def of(cls, rows: list[tuple[list[tuple[float, float]], float]]) -> Schedules:
        """Build schedules from the periods and the length of each row; a period ends with its row at the latest."""
        within = [(i, max(0.0, a), min(b, length)) for i, (own, length) in enumerate(rows) for a, b in sorted(own)]
        periods = [(i, start, end) for i, start, end in within if end > start]
        row, starts, ends = np.array(periods, dtype=np.float64).reshape(-1, 3).T
        return cls(starts, ends, row.astype(np.int64), np.array([length for _, length in rows]))

    @cached_property
    def share(self) -> Floats:
        """Share of the time in which each row is available."""
        return np.bincount(self.row, self.ends - self.starts, self.length.size) / self.length

    def available(self, rows: Ints, moment: float | Floats) -> NDArray[np.bool_]:
        """Return which rows are available at a moment, or each at a moment of its own."""
        span = float(self.length.max()) + 1.0  # all rows lie on one axis, so that one search is enough
        time = moment % self.length[rows]
        place = np.searchsorted(self.row * span + self.starts, rows * span + time, side="right") - 1
        here = np.maximum(place, 0)
        available: NDArray[np.bool_] = (place >= 0) & (self.row[here] == rows) & (time < self.ends[here])
        return available


@dataclass(frozen=True, eq=False)
class Availability:
    """When each device is available."""

    schedules: Schedules
    row: Ints
    """Row of each device."""
    begin: float
    """Moment of the schedules at which the run starts, in seconds."""
    speedup: float = 1.0
    """Factor by which the schedules pass faster than the run."""

    @classmethod
    def dealt(cls, schedules: Schedules, devices: int, seed: int, begin: float | None, speedup: float) -> Availability:
        """Assign a row that is available at times to each device; a run starts at a random moment if none is given."""
        useful = np.flatnonzero(schedules.share > 0)
        if begin is None:
            begin = float(rng_for(seed, "traces", "begin").random() * schedules.length.max())
        return cls(schedules, useful[deal(useful.size, devices, seed, "availability")], begin, speedup)

    def at(self, devices: Ints, now: float | Floats) -> NDArray[np.bool_]:
        """Return which devices are available at a moment of the run."""
        return self.schedules.available(self.row[devices], self.begin + now * self.speedup)
