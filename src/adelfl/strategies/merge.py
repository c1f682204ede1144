"""How delivered layers become one step: A[u,l] of eq. (5), and what else they can be averaged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adelfl.planner import Problem
from adelfl.strategies.rounds import Floats, Progress
from adelfl.theory import round_noise
from adelfl.theory.gradient_stats import GradientStats

Correction = Literal["unbiased", "none", "adaptive"]

AverageOver = Literal["contributors", "all", "precision"]


def finished_only(progress: Progress) -> Floats:
    """A[u,l] = |D_u| 1[finished everything] / Σ_w |D_w| 1[finished everything]; zero if no device finished."""
    finished = weighed(progress.finished.astype(np.float64), progress)
    share = finished / (finished.sum() or 1.0)
    return np.repeat(share[:, None], progress.layers, axis=1)


def weighed(share: Floats, progress: Progress) -> Floats:
    """Multiply rows by each device's amount of data, relative to the mean of the cohort."""
    if progress.amounts is None:
        return share
    relative = progress.amounts / progress.amounts.mean()
    found: Floats = share * relative.reshape(-1, *([1] * (share.ndim - 1)))
    return found


class Knowledge:
    """What is known of the gradients, and is looked at again some times in a run."""

    LOOKS, NEW = 10, 0.3  # times in a run, and the weight of what is seen then

    def __init__(self, problem: Problem) -> None:
        seen = problem.constants.spread
        self._seen = problem.spread if seen is None else seen.completed(problem.spread)  # negative squares and all
        self.spread = problem.spread

    def is_due(self, t: int, rounds: int) -> bool:
        """Whether round t is one to look at."""
        return (t + 1) % max(1, math.ceil(rounds / self.LOOKS)) == 0 and t + 1 < rounds

    def learn(self, spread: GradientStats) -> None:
        """Mix what was seen into what was known."""
        self._seen = self._seen.mixed(spread, self.NEW)
        self.spread = self._seen.plausible()


@dataclass(frozen=True)
class Gradients:
    """What the merge may know of the gradients: their spread, the learning rate, and how long a bias is remembered."""

    spread: GradientStats
    eta: float
    memory: float = 1.0


def layerwise(
    progress: Progress, correction: Correction, average_over: AverageOver, gradients: Gradients | None = None
) -> Floats:
    """Eq. (5): A[u,l] = 1[z_u ≥ L+1−l] / (|U_l| (1 − p_l)), and what else the delivered layers can be averaged by.

    Parameters
    ----------
    progress : Progress
        Who delivered what.
    correction : {"unbiased", "none", "adaptive"}
        With or without the factor 1/(1 − p), with what of it pays (:func:`adelfl.theory.round_noise.correction`), or
        with at most 2: a lone update of a layer that hardly ever arrives is too noisy to make up for all the others.
    average_over : {"contributors", "all", "precision"}
        |U_l|; all U devices as in SALF's released code (which has no correction); or contributors by how precise their
        gradients are (:func:`adelfl.theory.round_noise.precision`).
    gradients : Gradients, optional
        Needed by "adaptive" and "precision".
    """
    delivered = weighed(progress.delivered.astype(np.float64), progress)
    if average_over == "all":
        over_all: Floats = delivered / progress.z.size
        return over_all
    if average_over == "precision":
        assert gradients is not None
        assert progress.batch is not None
        delivered = delivered * round_noise.precision(progress.batch, gradients.spread, gradients.memory)
    total = delivered.sum(axis=0)
    A: Floats = delivered / np.where(total > 0, total, 1.0)
    if correction == "none":
        return A
    # 1 − p without cancellation. A layer that somebody delivered has p < 1; others have A = 0 anyway.
    filled = -np.expm1(progress.log_p_empty)
    if correction != "adaptive":
        return np.where(delivered > 0, A / np.where(filled > 0, filled, 1.0), 0.0)
    assert gradients is not None
    assert progress.batch is not None
    spread, S = gradients.spread, np.maximum(progress.batch, 1)[:, None]
    noise = (A**2 * (spread.sigma2 / S + spread.zeta2)).sum(axis=0)
    return A * round_noise.correction(1.0 - filled, noise, spread, gradients.eta)
