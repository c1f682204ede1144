"""Estimates from the reports of real devices: speeds, uploads, and other durations."""

from __future__ import annotations

import math

import numpy as np

from adelfl.array_types import Bools, Ints
from adelfl.planner.beliefs import Beliefs, Timing
from adelfl.strategies.actions import Arrivals, Late

_MOST_RESTS = 3  # rounds in a row that a device may sit out before a new plan is made


class Reports:
    """Estimates of devices that are known by their reports only.

    ``steps`` are the local steps of the opening round. ``beliefs`` is None until the first device has answered, whose
    speed is then assumed for all. ``sat_out`` counts the rounds in a row that each device has sat out.
    """

    def __init__(self, layers: int, steps: int) -> None:
        self.layers, self.steps = layers, steps
        self.beliefs: Beliefs | None = None
        self.sat_out: dict[int, int] = {}

    @property
    def neglects(self) -> bool:
        """Whether some device has sat out so many rounds that a new plan should consider it again."""
        return max(self.sat_out.values(), default=0) >= _MOST_RESTS

    def rest(self, devices: Ints, works: Bools) -> None:
        """Note which devices of a round work; slowly forget the durations of those that sit out."""
        for u, busy in zip(devices.tolist(), works.tolist(), strict=True):
            self.sat_out[u] = 0 if busy else self.sat_out.get(u, 0) + 1
            if not busy and self.beliefs is not None:
                self.beliefs.rest(u)

    def first(self, event: Arrivals) -> None:
        """Learn from the reply of one device in the opening round."""
        u, tasks = int(event.tasks.devices[0]), event.tasks
        self._speed(u, int(tasks.batch[0]), int(event.z[0]), float(event.seconds[0]), float(event.upload[0]))
        self.durations(event)

    def durations(self, event: Arrivals) -> None:
        """Remember the durations that devices report; the method learns their speeds."""
        tasks = event.tasks
        for u, S, z, timing in zip(tasks.devices.tolist(), tasks.batch.tolist(), event.z, event.timings, strict=False):
            if timing is not None:
                self._durations(u, S, int(z), timing)

    def late(self, event: Late) -> None:
        """Learn from an update that arrived too late to be merged."""
        if event.z > 0:
            self._speed(event.device, event.batch, event.z, event.seconds)
        self._durations(event.device, event.batch, event.z, event.timing)

    def _durations(self, u: int, batch: int, z: int, timing: Timing) -> None:
        """Remember the durations of one task.

        A device that answered without a finished layer is present but slow. Its forward pass takes about as long as a
        layer and shows its speed; the estimate moves halfway towards it.
        """
        if z == 0 and timing.pace:
            seconds, part = timing.pace[0] * batch, self.layers / (self.layers + 1)
            if self.beliefs is not None and self.beliefs.known(u) and seconds > 0:
                believed = float(self.beliefs.compute(np.array([u]))[0])
                cost = batch + self.beliefs.overhead[u]
                self.beliefs.restart(u, math.sqrt(believed * part * cost / seconds) / self.beliefs.faster)
            self._speed(u, batch, part, seconds)
        if self.beliefs is not None:
            self.beliefs.note(u, timing)

    def _speed(self, u: int, batch: int, z: float, seconds: float, upload: float = np.nan) -> None:
        if not seconds > 0:
            return
        per_sample = max(z, 0.5) / max(seconds, 1e-6)
        if self.beliefs is None:
            self.beliefs = Beliefs(np.full(u + 1, per_sample * batch), np.full(u + 1, np.nan_to_num(upload)))
        self.beliefs.grow(u + 1)
        cost = batch + self.beliefs.overhead[u]
        if not self.beliefs.known(u):
            self.beliefs.restart(u, per_sample * cost / self.beliefs.faster)
        through = np.array([z >= self.layers * self.steps])
        alone, sent = np.array([u]), np.array([upload])
        self.beliefs.observe(alone, np.array([cost]), np.array([float(z)]), np.array([seconds]), sent, through)
