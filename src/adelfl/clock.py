"""Clocks: the only module that imports :mod:`time`."""

from __future__ import annotations

import time
from typing import Protocol


def monotonic() -> float:
    """Return seconds of a clock that never jumps; only differences have a meaning."""
    return time.perf_counter()


class Clock(Protocol):
    """The clock of a run, simulated or real."""

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def sleep_until(self, moment: float) -> None:
        """Return when :meth:`now` is at least ``moment``."""
        ...


class RealClock:
    """A clock that never jumps, and starts at ``now`` seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self._start = monotonic() - now

    def now(self) -> float:
        """Seconds since the run began."""
        return monotonic() - self._start

    def sleep_until(self, moment: float) -> None:
        """Sleep until ``moment``, unless it is past."""
        while (left := moment - self.now()) > 0:
            time.sleep(left)


def wall_seconds() -> float:
    """Return seconds since 1970 by this machine's clock, to measure how long a process was away."""
    return time.time()
