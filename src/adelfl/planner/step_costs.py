"""Fixed cost of a batch and spread of layer times, from the durations of local steps that devices report.

A step of S samples takes d = L (S + s₀)/P seconds on average. With batches of mean size S̄ and mean duration d̄,

    d/d̄ = 1 + (1 − f) (S/S̄ − 1),        f = s₀/(S̄ + s₀)

so the fixed share f follows from a line through durations at several batch sizes. Weak evidence is shrunk towards the
fleet's share, and that towards 0. The spread v of a layer's time follows from the variation of durations around that
line, since those of L independent layers vary by v/√L; it is shrunk towards the fleet's, and that towards
``PRIOR_SPREAD``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adelfl.array_types import Floats

PRIOR_SPREAD = 0.3
"""Standard deviation of a layer's time over its mean, without evidence."""

_DRIFT = 0.05  # standard deviation of a task's mean duration over its expectation, besides that of single steps
_FLEET_SHARE, _OWN_SHARE = 0.3, 0.2  # standard deviation of f: of a fleet around 0, of a device around its fleet
_MOST_SHARE = 0.95
_WEIGHT = 10.0  # weight of the prior spread, and of the fleet's, in steps


def step_costs(reports: Sequence[Floats], layers: int) -> tuple[Floats, Floats]:
    """Estimate s₀ (in samples) and v of every device.

    Reports of a device have shape (tasks, 4): batch size, number of complete steps, mean and variance of durations.
    """
    lines = [_Line(rows, layers) for rows in reports]
    seen = [line for line in lines if line.steps]
    if not seen:
        return np.zeros(len(lines)), np.full(len(lines), PRIOR_SPREAD)
    evidence = [(line.share, line.weight) for line in seen]
    f = _shrunk(0.0, _FLEET_SHARE, evidence)
    fleet = f / (1.0 - f) * float(np.mean([line.batch for line in seen]))
    overhead = np.full(len(lines), fleet)
    squares, freedom = np.zeros((2, len(lines)))
    for u, line in enumerate(lines):
        if line.steps:
            f = _shrunk(fleet / (line.batch + fleet), _OWN_SHARE, [(line.share, line.weight)])
            overhead[u] = f / (1.0 - f) * line.batch
            squares[u], freedom[u] = line.squares(f), line.steps - 1.0
    usual = (_WEIGHT * PRIOR_SPREAD**2 + squares.sum()) / (_WEIGHT + freedom.sum())
    return overhead, np.sqrt((_WEIGHT * usual + squares) / (_WEIGHT + freedom))


def _shrunk(prior: float, deviation: float, evidence: Sequence[tuple[float, float]]) -> float:
    """Return the posterior mean of f, from estimates and their precisions."""
    own = deviation**-2.0
    mean = (prior * own + sum(f * w for f, w in evidence)) / (own + sum(w for _, w in evidence))
    return float(np.clip(mean, 0.0, _MOST_SHARE))


class _Line:
    """Durations of one device as a function of the batch size, both relative to their means."""

    def __init__(self, rows: Floats, layers: int) -> None:
        S, self.n, d, self.variance = rows.T
        self.layers, self.steps = layers, float(self.n.sum())
        if not self.steps:
            return
        precision = 1.0 / (PRIOR_SPREAD**2 / (layers * self.n) + _DRIFT**2)
        self.batch, mean = np.average(S, weights=precision), np.average(d, weights=precision)
        self.x, self.y = S / self.batch - 1.0, d / mean
        weights = precision / self.y**2
        self.weight = float(weights @ self.x**2)
        self.share = 1.0 - float(weights @ (self.x * (self.y - 1.0))) / self.weight if self.weight > 0 else 0.0
        self.relative = self.variance / d**2

    def squares(self, share: float) -> float:
        """Return the sum of squared deviations of all steps, in units of a layer's mean time."""
        expected = 1.0 + (1.0 - share) * self.x
        level = float(np.average(self.y / expected, weights=self.n))
        off = self.y / (level * expected) - 1.0
        return float(self.layers * ((self.n - 1.0) @ self.relative + self.n @ off**2))
