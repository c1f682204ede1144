"""What a table says of a run, from its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

FINAL_MOMENTS = (0.92, 0.94, 0.96, 0.98, 1.0)
"""The final accuracy is the mean at these shares of the budget, since the last iterate alone is noisy. At each of them
the model of the last finished round counts, so that a method of few long rounds is not judged by its early ones."""

QUARTERS = {"25%": 0.25, "50%": 0.5, "75%": 0.75, "100%": 1.0}
"""Shares of the budget at which accuracy is summed up."""

SUMMED_UP = {*FINAL_MOMENTS, *QUARTERS.values()}
"""Shares of the budget at which a run must be evaluated for its summary to be true."""

MAX_EVALUATIONS = 1_000_000
"""More evaluations of one run are taken for a mistake."""


class Summary:
    """Counts rows as they come.

    Parameters
    ----------
    budget : float
        T_max.
    steps : int
        E·L: what a device that finishes everything finishes.
    """

    def __init__(self, budget: float, steps: int) -> None:
        self.budget, self.steps = budget, steps
        self.times: list[float] = []
        self.accuracies: list[float] = []
        self.depths: list[float] = []
        self.rounds = 0
        self.time = 0.0

    def add(self, row: dict[str, Any]) -> None:
        """Count one row."""
        self.time = row["time"]
        if row["accuracy"] is not None:
            self.times.append(row["time"])
            self.accuracies.append(row["accuracy"])
        if row["round"] > 0:
            self.rounds = row["round"]
            self.depths.append(sum(row["depth"]) / (max(1, len(row["depth"])) * self.steps))

    def result(self) -> dict[str, Any]:
        """Final accuracy, accuracy at quarters of the budget, mean depth, rounds done, time.

        Accuracies are None where nobody had evaluated by then.
        """
        last = [known for s in FINAL_MOMENTS if (known := self.accuracy_at(s)) is not None]
        return {
            "final_accuracy": float(np.mean(last)) if last else None,
            "accuracy": {name: self.accuracy_at(s) for name, s in QUARTERS.items()},
            "depth": float(np.mean(self.depths)) if self.depths else 0.0,
            "rounds": self.rounds,
            "time": self.time,
        }

    def accuracy_at(self, share: float) -> float | None:
        """What the last evaluation said at a share of the budget; None before the first one."""
        last = int(np.searchsorted(self.times, share * self.budget * (1 + 1e-9), side="right")) - 1
        return self.accuracies[last] if last >= 0 else None
