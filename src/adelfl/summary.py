"""What a table says of a run, from its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

LAST_EVALUATIONS = 5
"""The final accuracy is the mean of so many last evaluations, since the last iterate alone is noisy."""

QUARTERS = {"25%": 0.25, "50%": 0.5, "75%": 0.75, "100%": 1.0}
"""Shares of the budget at which accuracy is summed up."""


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

    def add(self, row: dict[str, Any]) -> None:
        """Count one row."""
        if row["accuracy"] is not None:
            self.times.append(row["time"])
            self.accuracies.append(row["accuracy"])
        if row["round"] > 0:
            self.rounds = row["round"]
            self.depths.append(sum(row["depth"]) / (len(row["depth"]) * self.steps))

    def result(self) -> dict[str, Any]:
        """Final accuracy, accuracy at quarters of the budget, mean depth, rounds done, virtual time."""
        times, accuracies = np.array(self.times), np.array(self.accuracies)
        last = {
            name: np.searchsorted(times, share * self.budget * (1 + 1e-9), side="right") - 1
            for name, share in QUARTERS.items()
        }
        return {
            "final_accuracy": float(np.mean(accuracies[-LAST_EVALUATIONS:])),
            "accuracy": {name: float(accuracies[i]) for name, i in last.items()},
            "depth": float(np.mean(self.depths)) if self.depths else 0.0,
            "rounds": self.rounds,
            "time": float(times[-1]),
        }
