"""Comparison of strategies: summaries over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adelfl.array_types import Floats
from adelfl.records.reader import RunRecord
from adelfl.records.schema import RunResult
from adelfl.records.summary import QUARTERS


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean; NaN for a single value."""
    return float(np.std(values, ddof=1) / np.sqrt(values.size)) if values.size > 1 else float("nan")


def plus_minus(mean: float, error: float, unit: str = "", *, sign: bool = False) -> str:
    """Return a mean with its standard error as text; the mean alone if the error is NaN."""
    head = f"{mean:+.1f}{unit}" if sign else f"{mean:.1f}{unit}"
    return head if math.isnan(error) else f"{head} ± {error:.1f}"


@dataclass(frozen=True, eq=False)
class Contender:
    """One strategy over its seeds."""

    name: str
    label: str
    records: Sequence[RunRecord]
    curves: Floats | None = field(default=None, kw_only=True)
    """Accuracies at equally spaced shares of the budget, shape (seeds, shares); None if there are records."""

    @property
    def results(self) -> list[RunResult]:
        """Results of the finished runs."""
        return [r.result for r in self.records if r.result is not None]

    @property
    def final(self) -> Floats:
        """Final accuracy, one per seed; NaN without evaluations."""
        return np.array([r.final_accuracy for r in self.results], dtype=np.float64)

    @property
    def final_text(self) -> str:
        """Mean and standard error of the final accuracy, in percent."""
        return plus_minus(100.0 * float(self.final.mean()), 100.0 * standard_error(self.final), "%")

    def at(self, quarter: str) -> float:
        """Return the mean accuracy at a share of the budget; NaN without evaluations."""
        return float(np.mean(np.array([r.accuracy.get(quarter) for r in self.results], dtype=np.float64)))

    @property
    def depth(self) -> float:
        """Mean share of layers that devices finished."""
        return float(np.mean([r.depth for r in self.results]))

    @property
    def rounds(self) -> float:
        """Mean number of finished rounds."""
        return float(np.mean([r.rounds for r in self.results]))

    @property
    def seeds(self) -> int:
        """Number of finished runs."""
        return len(self.results) if self.curves is None else len(self.curves)

    def curve(self, grid: Floats, what: str = "accuracy") -> Floats:
        """Return ``accuracy`` or ``loss`` at shares of the budget, shape (runs, grid); NaN if unknown."""
        if self.curves is None:
            return np.array([curve_of(record, what, grid) for record in self.records])
        shares = np.linspace(0.0, 1.0, self.curves.shape[1])
        return np.array([np.interp(grid, shares, c) if c.size else np.full(grid.shape, np.nan) for c in self.curves])


def curve_of(record: RunRecord, what: str, grid: Floats) -> Floats:
    """Return the last evaluation at each share of the budget; NaN before the first, and after an interruption."""
    values = np.array([getattr(row, what) for row in record.rounds], dtype=np.float64)  # None becomes NaN
    known = np.isfinite(values)
    if not known.any():
        return np.full(grid.shape, np.nan)
    times = np.array([row.time for row in record.rounds])[known]
    shares = np.minimum(times / record.info.budget, 1.0)  # a run on a real clock may exceed its budget
    last = np.searchsorted(shares, grid * (1 + 1e-9), side="right") - 1
    curve: Floats = np.where(last >= 0, values[known][np.maximum(last, 0)], np.nan)
    if record.result is None and record.failure is None:
        curve[np.searchsorted(grid, shares[-1]) + 1 :] = np.nan
    return curve


_NEAR = 0.1  # share of the way from chance to perfect accuracy


def untrained_note(contenders: list[Contender], chance: float) -> str | None:
    """Return a sentence if the oracle, or else every strategy, ends near chance; None if training worked.

    ``chance`` is the accuracy of a model that always predicts the most frequent label.
    """
    final = {c.name: float(np.nanmean(c.final)) for c in contenders if np.isfinite(c.final).any()}
    best = final.get("oracle", max(final.values(), default=math.nan))
    if not best <= chance + _NEAR * (1.0 - chance):
        return None
    if all(c.rounds == 0 for c in contenders if c.name in final):
        return "no round was finished within the budget; try a larger training.budget or training.depth"
    name = "the oracle" if "oracle" in final else "every strategy" if len(final) > 1 else next(iter(final))
    rates = {r.info.config.get("learning_rate", {}).get("initial") for c in contenders for r in c.records}
    rate = f" (now {rates.pop():g})" if len(rates) == 1 and rates != {None} else ""
    return (
        f"{name} ends near chance ({best:.1%}; always predicting the most frequent label has {chance:.1%}); "
        f"try another learning_rate.initial{rate}, or more training.rounds"
    )


def summary_json(contenders: list[Contender]) -> dict[str, Any]:
    """Return what ``adelfl compare --json`` prints."""
    return {
        c.name: {
            "final_accuracy": c.final.tolist(),
            "seeds": [r.info.seed for r in c.records if r.result is not None],
            "depth": c.depth,
            "rounds": c.rounds,
            "accuracy": {q: c.at(q) for q in QUARTERS},
            "label": c.label,
        }
        for c in contenders
    }
