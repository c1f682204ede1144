"""Clocks: the only module that imports :mod:`time`."""

from __future__ import annotations

import time
from typing import Protocol


def monotonic() -> float:
    """Seconds on a clock that never jumps; only differences mean anything."""
    return time.perf_counter()


class Clock(Protocol):
    """What tells the time to a run: simulated or real."""

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    def sleep_until(self, moment: float) -> None:
        """Return when :meth:`now` is at least ``moment``."""
        ...


class RealClock:
    """Seconds since it was made, or since so many seconds before that; never jumps."""

    def __init__(self, now: float = 0.0) -> None:
        self._start = monotonic() - now

    def now(self) -> float:
        """Seconds since the run began."""
        return monotonic() - self._start

    def sleep_until(self, moment: float) -> None:
        """Sleep until ``moment``; not at all if that is over."""
        while (left := moment - self.now()) > 0:
            time.sleep(left)


def wall_seconds() -> float:
    """Seconds since 1970 by this machine's clock: to tell how long a process was away, never to compare machines."""
    return time.time()
