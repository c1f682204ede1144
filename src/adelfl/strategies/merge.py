"""Weights A[u,l] of delivered layers in a merge: eq. (5), averages of devices, and weights by precision."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from adelfl.planner import Problem
from adelfl.strategies.base import check_choice
from adelfl.strategies.rounds import Bools, Floats, Ints, Progress, RoundStrategy, Weigh
from adelfl.theory import round_noise
from adelfl.theory.gradient_stats import GradientStats

Correction = Literal["unbiased", "none"]
AverageOver = Literal["contributors", "all"]

_LOOKS, _NEW = 10, 0.3  # number of gradient estimates in a run, and the weight of a new one


def weighed(counts: Floats | Bools, progress: Progress) -> Floats:
    """Multiply the rows by the amount of data of each device, relative to the mean of the cohort."""
    if progress.amounts is None:
        return counts.astype(np.float64)
    relative = progress.amounts / progress.amounts.mean()
    return np.asarray(counts * relative.reshape(-1, *([1] * (counts.ndim - 1))), dtype=np.float64)


def normalised(weights: Floats | Ints) -> Floats:
    """Divide the weights of each layer by their sum; a layer without weights stays zero."""
    total = weights.sum(axis=0)
    return weights / np.where(total > 0, total, 1.0)


def average_of(chosen: Bools, progress: Progress) -> Floats:
    """A[u,l] = |D_u| 1[chosen] / Σ_w |D_w| 1[chosen] in all layers; zero if no device is chosen."""
    share = weighed(chosen, progress)
    return np.repeat((share / (share.sum() or 1.0))[:, None], progress.layers, axis=1)


def finished_only(progress: Progress) -> Floats:
    """Average the devices that finished everything."""
    return average_of(progress.finished, progress)


def layerwise(progress: Progress, correction: Correction, average_over: AverageOver) -> Floats:
    """Eq. (5): A[u,l] = 1[z_u ≥ L+1−l] / (|U_l| (1 − p_l)).

    ``correction="none"`` leaves out the factor 1/(1 − p_l). ``average_over="all"`` divides by all U devices rather than
    by |U_l|, without a correction, as in SALF's released code.
    """
    check_choice("correction", correction, Correction)
    check_choice("average_over", average_over, AverageOver)
    delivered = weighed(progress.delivered, progress)
    if average_over == "all":
        return delivered / progress.z.size
    A = normalised(delivered)
    if correction == "none":
        return A
    # 1 − p without cancellation. A layer that a device delivered has p < 1; others have A = 0 anyway.
    filled = -np.expm1(progress.log_p_empty)
    return np.where(delivered > 0, A / np.where(filled > 0, filled, 1.0), 0.0)


def by_precision(progress: Progress, spread: GradientStats, memory: float) -> Floats:
    """A[u,l] = v_u 1[u delivered l] / Σ_w v_w 1[w delivered l], v = :func:`adelfl.theory.round_noise.precision`."""
    assert progress.batch is not None
    return normalised(weighed(progress.delivered, progress) * round_noise.precision(progress.batch, spread, memory))


class ByPrecision(RoundStrategy):
    """Merges by precision, with gradient statistics that are estimated again up to nine times in a run."""

    def __init__(self, problem: Problem, *, weigh: Weigh = "data") -> None:
        super().__init__(problem, weigh=weigh)
        self.spread = problem.spread
        seen = problem.constants.spread
        self._seen = problem.spread if seen is None else seen.completed(problem.spread)  # with negative estimates

    def weights(self, t: int, progress: Progress) -> Floats:
        """Return the merge by precision, with the present gradient statistics."""
        return by_precision(progress, self.spread, self._memory(t))

    def looks_at(self, t: int) -> bool:
        """Return whether round t is one of ten, evenly spaced, that give gradient statistics."""
        return (t + 1) % max(1, math.ceil(self.rounds / _LOOKS)) == 0 and t + 1 < self.rounds

    def learn(self, spread: GradientStats) -> None:
        """Average new statistics into the present ones."""
        self._seen = self._seen.mixed(spread, _NEW)
        self.spread = self._seen.plausible()

    def _memory(self, t: int) -> float:
        return round_noise.memory(self.learning_rates[t:], self.problem.constants.rho_c)
