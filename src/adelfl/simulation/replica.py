"""A simulated replica of a recorded deployment.

The durations of a task are those of the device's recorded reply that is nearest in time: set-up, time outside the
device, seconds per layer. Devices are present at the same times as in the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from adelfl.planner.beliefs import Timing
from adelfl.runtime.backend import Compute, Computed
from adelfl.runtime.reactions import of_devices
from adelfl.seeds import rng_for
from adelfl.simulation.backend import VirtualClock
from adelfl.simulation.engine import Simulation
from adelfl.simulation.history import History
from adelfl.strategies.actions import Arrivals, Event, Ints, Joined, Late, Merge, Tasks
from adelfl.theory.gradient_stats import GradientStats

_LAST = 0.1  # seconds before the end of the budget at which the last round closes


class _Result(NamedTuple):
    """Result of one device's task: seconds until its reply (NaN if it sits out), layers, durations."""

    trip: float
    z: int = 0
    seconds: float = math.nan
    lag: float = math.nan
    timing: Timing | None = None


class Replica(VirtualClock):
    """Simulate tasks with the durations of a recorded deployment.

    ``stats`` are the gradient statistics of its opening round. ``simulation`` computes merges; without it, only times
    are simulated.
    """

    def __init__(
        self, history: History, layers: int, budget: float, stats: GradientStats | None, simulation: Simulation | None
    ) -> None:
        self.devices, self.between, self.L, self.budget = history.devices, history.between, layers, budget
        self.stats, self.trainer = stats, None if simulation is None else simulation.backend
        super().__init__(history.start)
        self._free = [0.0] * len(history.devices)
        for u, device in enumerate(self.devices):
            if not device.there(self._now):
                self._push(device.back(self._now), Joined(np.array([u])))

    def cohort(self, k: int, size: int | None) -> Ints:
        """Return the devices that are present and idle, or a random choice of them."""
        idle = [u for u, d in enumerate(self.devices) if d.there(self._now) and self._free[u] <= self._now]
        chosen = idle if size is None else rng_for(0, "cohort", k).permutation(idle)[:size]
        return np.sort(np.array(chosen, dtype=np.int64))

    def dispatch(self, tasks: Tasks, version: int) -> None:
        """Let each device do its task with the durations of one of its replies."""
        results = [self._result(tasks, i) for i in range(tasks.devices.size)]
        (self._together if tasks.together else self._apart)(tasks, version, results)

    def _result(self, tasks: Tasks, i: int) -> _Result:
        u, batch = int(tasks.devices[i]), int(tasks.batch[i])
        if batch == 0 or not self.devices[u].replies:
            return _Result(math.nan if batch == 0 else math.inf)
        reply, overhead = self.devices[u].reply(self._now), self.devices[u].overhead
        cost = reply.per_layer * (batch + overhead) / (reply.batch + overhead)
        stop = math.inf if tasks.stop is None else float(tasks.stop[i]) - reply.timing.setup
        most = self.L * int(tasks.each_steps[i])
        z = most if math.isinf(stop) else int(min(most, max(0.0, stop) // cost))
        end = self._now + reply.lag + z * cost
        self._free[u] = self.devices[u].back(end)
        trip = end - self._now if self._free[u] == end else math.inf
        return _Result(trip, z, z * cost if z else math.nan, reply.lag if z else math.nan, reply.timing)

    def _together(self, tasks: Tasks, version: int, results: list[_Result]) -> None:
        cutoff = min(tasks.cutoff, max(0.0, self.budget - self._now - _LAST))
        trips = [r.trip for r in results if not math.isnan(r.trip)]
        length = max(trips) if trips and tasks.early and max(trips) <= cutoff else cutoff
        for i, r in enumerate(results):
            if r.trip > cutoff:
                if r.timing is not None and r.seconds > 0:
                    late = Late(int(tasks.devices[i]), int(tasks.batch[i]), r.z, r.seconds, r.timing)
                    self._push(self._now + r.trip, late)
                results[i] = _Result(math.inf)
        self._arrive(length, tasks, version, results)

    def _apart(self, tasks: Tasks, version: int, results: list[_Result]) -> None:
        for i, r in enumerate(results):
            if math.isinf(r.trip):
                self._push(self._free[int(tasks.devices[i])], Joined(tasks.devices[i : i + 1]))
                continue
            if self.trainer is not None:
                self.trainer.past.want(version, 1)
            alone = replace(of_devices(tasks, tasks.devices[i : i + 1]), stop=None)
            self._arrive(r.trip, alone, version, [r])

    def _arrive(self, seconds: float, tasks: Tasks, version: int, results: list[_Result]) -> None:
        z, computing, lag = (np.array([getattr(r, key) for r in results]) for key in ("z", "seconds", "lag"))
        timings = tuple(r.timing for r in results)
        event = Arrivals(tasks, next(self._numbers), version, self._now, z, computing, lag, timings)
        self._push(self._now + seconds, event)

    def next(self, wake_at: float | None) -> Event | None:
        """Advance the clock to the next event; None when the budget is over."""
        event = None if self._now >= self.budget else super().next(wake_at)
        if self.trainer is not None:
            self.trainer.past.release_lost(event)
        return event

    def prepare(self, merges: Sequence[Merge]) -> list[Compute]:
        """Advance the clock by the server's time between rounds, and prepare merges."""
        self._now += self.between * len(merges)
        computes = [] if self.trainer is None else self.trainer.prepare(merges)
        return [partial(self._compute, merge, *computes) for merge in merges]

    def _compute(self, merge: Merge, compute: Compute = lambda: Computed(None)) -> Computed:
        computed = compute()
        return replace(computed, spread=self.stats) if merge.spread and computed.spread is None else computed
