"""The number of rounds R and of local steps E that give the most progress (docs/adel.md, "How much local work").

R minimises

    e^(−W/W_1) + c h Σ_u (G_u/ΣG − 1/U)²,     W = Σ_t mean_u g_u,   G_u ← e^(−mean g/W_1) G_u + g_u  round by round
    g_u = g(E_u),   E_u = P_u (T_max/R − B_u)/(S L),   g(E) = E/(1 + E/E_h),   E_h = (1 − h) W_1,   W_1 = a/η

W is the worth of all rounds, in steps of the whole fleet. G_u is the part of device u's work that the final model still
shows. h is the share of a device's work that is its own, rather than common to all: h = b ζ²/σ² / (1 + b ζ²/σ²) from
gradients at the initial weights, and at least the share that updates show (:func:`drift`). In the middle of a run, both
sums begin with the rounds so far. A step of all devices has at least 4 S samples (S η_1/0.075 at larger
rates than 0.3), or half of one batch each. In the time of less than one step, a device takes a smaller batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from adelfl.array_types import Floats, Ints
from adelfl.errors import InfeasibleBudgetError
from adelfl.planner.problem import MAX_LOCAL_ITERATIONS, MAX_ROUNDS, Problem
from adelfl.theory.gradient_stats import GradientStats

_HOMOGENEOUS, _HETEROGENEOUS = 18.0, 10.0  # a and b, fitted on digits (docs/adel.md)
_NEGLECT = 3.0  # c, from simulations of deployments with one slow node that alone has two classes
_FASTEST, _FURTHEST = 4.0, 8.0  # largest number of steps, relative to the median device's and to E_h
SPARE = 1.13
"""Layers that fit on average into the time of a step, over L."""
_LEAST, _CALM = 4.0, 0.3  # batches of S samples in a step of all devices, up to this learning rate


def least_batches(rate: float) -> float:
    """Return how many batches of S samples a step of all devices together takes at least, for a learning rate η_1."""
    return _LEAST * max(1.0, rate / _CALM)


def least_batch(problem: Problem) -> int:
    """Return the batch size below which a device takes fewer local steps, so that a step of all devices has enough."""
    devices = problem.cohort or problem.devices
    return min(problem.batch, math.ceil(least_batches(float(problem.eta[0])) * problem.batch / devices))


def first_steps(rate: float) -> int:
    """Return the local steps of the opening round: W_1, after which further steps gain little."""
    return min(math.ceil(_HOMOGENEOUS / rate), MAX_LOCAL_ITERATIONS)


def drift(updates: GradientStats) -> float:
    """Return h, the share of updates of many local steps that differs between devices: ζ²/(ζ² + ‖ḡ‖²)."""
    seen = updates.plausible()
    different, common = float(np.nansum(seen.zeta2)), float(np.nansum(seen.norm2))
    return different / (different + common) if different > 0 else 0.0


def scales(problem: Problem) -> tuple[float, float]:
    """Return W_1 and h, from gradients."""
    ratio = _HETEROGENEOUS * float(problem.spread.zeta2.sum() / problem.spread.sigma2.sum())
    return _HOMOGENEOUS / float(problem.eta[0]), ratio / (1.0 + ratio)


def _worth(steps: Floats, W_1: float, h: float) -> Floats:
    """Return g(E) of several numbers of steps, for W_1 and h."""
    return steps / (1.0 + steps / ((1.0 - h) * W_1))


@dataclass(frozen=True, eq=False)
class WorkDone:
    """Worth of the rounds so far."""

    total: float = 0.0
    """W, in steps of the whole fleet."""
    recent: Floats = field(default_factory=lambda: np.zeros(1))
    """G_u, shape (groups,) or (1,)."""

    def plus(self, steps: Floats, rate: float, h: float) -> WorkDone:
        """Add a round, from the local steps of each device."""
        W_1 = _HOMOGENEOUS / rate
        g = _worth(steps, W_1, h)
        mean, recent = float(g.mean()), np.zeros(g.size)
        recent[: self.recent.size] = self.recent[: g.size]
        return WorkDone(self.total + mean, math.exp(-mean / W_1) * recent + g)


NOTHING_DONE = WorkDone()
"""Before the first round."""


def with_local_work(
    problem: Problem,
    *,
    rounds: int | None = None,
    steps: int | None = None,
    h: float = 0.0,
    done: WorkDone = NOTHING_DONE,
) -> Problem:
    """Return the problem with the best number of rounds and local steps, in place of those that it has.

    ``rounds`` is R and ``steps`` is E, the largest number of steps of a device in a round, where these are given.
    ``h`` is what updates have shown, a lower bound of the value that is used; ``done`` is the worth of earlier rounds.
    """
    W_1, from_gradients = scales(problem)
    h = max(h, from_gradients)
    if rounds is None:
        rounds = _best_rounds(problem, steps, W_1, h, done)
    if steps is None:
        fits = _steps(problem, problem.budget / rounds)
        most = min(float(fits.max()), _FASTEST * float(np.median(fits)), _FURTHEST * (1.0 - h) * W_1)
        steps = max(1, min(math.ceil(most), MAX_LOCAL_ITERATIONS))
    return replace(problem, rounds=rounds, local_iterations=steps)


def _steps(problem: Problem, seconds: Floats | float) -> Floats:
    """E_u of each group in rounds of some length, shape (..., groups)."""
    fleet = problem.fleet
    cost = (_largest_batch(problem) + fleet.overhead_of()) * problem.layers * SPARE
    left = np.maximum(np.asarray(seconds, dtype=np.float64)[..., None] - fleet.upload, 0.0)
    return fleet.compute * left / cost


def _largest_batch(problem: Problem) -> Floats | int:
    """Return S, or what a device holds if that is less."""
    held = problem.fleet.samples
    return problem.batch if held is None else np.minimum(problem.batch, held)


def _batch_share(problem: Problem, E: Floats) -> Floats:
    """Return the batch of a single step relative to the largest one, in the time of ``E`` steps with that."""
    fixed = problem.fleet.overhead_of() / _largest_batch(problem)
    return np.clip(E * (1.0 + fixed) - fixed, 0.0, 1.0)


def _best_rounds(problem: Problem, steps: int | None, W_1: float, h: float, done: WorkDone) -> int:
    R = np.unique(np.geomspace(1, MAX_ROUNDS, 400).astype(np.int64))
    E = _steps(problem, problem.budget / R)
    n = problem.fleet.count * (1.0 if problem.cohort is None else problem.cohort / problem.devices)
    least = min(least_batches(float(problem.eta[0])), 0.5 * float(n.sum()))
    enough = _batch_share(problem, E) @ n >= least
    if not enough.any():
        raise InfeasibleBudgetError(
            f"no number of rounds fits into {problem.budget:.4g} s: even in one round, all devices together finish "
            f"fewer than {least:.2g} batches of {problem.batch} samples; give more time, or a smaller batch",
            binding="the time of all devices together",
        )
    errors = _log_error(problem, R, steps, W_1, h, done)
    return int(R[int(np.argmin(np.where(enough, errors, np.inf)))])


def gains(problem: Problem, h: float, done: WorkDone) -> bool:
    """Return whether one more round is better than none."""
    W_1, from_gradients = scales(problem)
    one, none = _log_error(problem, np.array([1, 0]), None, W_1, max(h, from_gradients), done)
    return bool(one < none)


def _log_error(problem: Problem, R: Ints, steps: int | None, W_1: float, h: float, done: WorkDone) -> Floats:
    """Return the logarithm of the objective for several numbers of rounds."""
    E = _steps(problem, problem.budget / np.maximum(R, 1))
    E = np.where(_batch_share(problem, E) > 0, np.maximum(E, 1.0), 0.0)
    if steps is not None:
        E = np.minimum(E, steps)
    g = _worth(E, W_1, h)
    count, U = problem.fleet.count, problem.devices
    mean = np.maximum(g @ count / U, 1e-300)
    kept = np.exp(-R * mean / W_1)  # factor on the rounds so far; the others form a geometric series
    G = kept[:, None] * done.recent + ((1.0 - kept) / -np.expm1(-mean / W_1))[:, None] * g
    neglect = np.square(G / np.maximum(G @ count / U, 1e-300)[:, None] - 1.0) @ count / U**2
    with np.errstate(divide="ignore"):
        log_error: Floats = np.logaddexp(-(done.total + R * mean) / W_1, np.log(_NEGLECT * h * neglect))
    return log_error
