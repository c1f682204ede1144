"""The only module that imports :mod:`time`."""

from __future__ import annotations

import time


def monotonic() -> float:
    """Seconds on a clock that never jumps; only differences mean anything."""
    return time.perf_counter()
