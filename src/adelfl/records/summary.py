"""Summary of a run, accumulated from its rows."""

from __future__ import annotations

import numpy as np

from adelfl.records.schema import Row, RunResult

FINAL_MOMENTS = (0.92, 0.94, 0.96, 0.98, 1.0)
"""Shares of the budget over which the final accuracy is averaged, since a single evaluation is noisy. At each share the
newest model counts."""

QUARTERS = {"25%": 0.25, "50%": 0.5, "75%": 0.75, "100%": 1.0}
"""Shares of the budget at which a result states the accuracy."""

SUMMED_UP = {*FINAL_MOMENTS, *QUARTERS.values()}
"""Shares of the budget at which a run must be evaluated for its result."""

MAX_EVALUATIONS = 1_000_000
"""Largest number of evaluations of one run that a configuration may request."""


class Summary:
    """Accumulates rows into a result; ``steps`` is the depth of a device that finishes everything, E·L."""

    def __init__(self, budget: float, steps: int) -> None:
        self.budget, self.steps = budget, steps
        self.times: list[float] = []
        self.accuracies: list[float] = []
        self.depths: list[float] = []
        self.rounds = 0
        self.time = 0.0

    def add(self, row: Row) -> None:
        """Count one row."""
        self.time = row.time
        if row.accuracy is not None:
            self.times.append(row.time)
            self.accuracies.append(row.accuracy)
        if row.round > 0:
            self.rounds = row.round
            depth = row.depth
            if max(depth, default=0) > self.steps:  # some methods request more of fast devices
                depth = [min(z, self.steps) for z in depth]
            self.depths.append(sum(depth) / (max(1, len(depth)) * self.steps))

    def result(self) -> RunResult:
        """Return the result so far; an accuracy is None if there was no evaluation by then."""
        last = [accuracy for s in FINAL_MOMENTS if (accuracy := self.accuracy_at(s)) is not None]
        return RunResult(
            final_accuracy=float(np.mean(last)) if last else None,
            accuracy={name: self.accuracy_at(s) for name, s in QUARTERS.items()},
            depth=float(np.mean(self.depths)) if self.depths else 0.0,
            rounds=self.rounds,
            time=self.time,
        )

    def accuracy_at(self, share: float) -> float | None:
        """Return the last accuracy at a share of the budget; None before the first evaluation."""
        last = int(np.searchsorted(self.times, share * self.budget * (1 + 1e-9), side="right")) - 1
        return self.accuracies[last] if last >= 0 else None
