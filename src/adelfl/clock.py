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


class VirtualClock:
    """A clock that stands still until it is told to sleep, and then jumps."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def sleep_until(self, moment: float) -> None:
        """Jump to ``moment``; time never runs backwards."""
        self._now = max(self._now, moment)
