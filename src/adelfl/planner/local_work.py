"""How much local work a round should hold: the number of rounds R and of local steps E.

A device with P_u (T − B_u) sample-layers in a round of T seconds does E_u = P_u (T − B_u)/(S L) steps of S samples. The
first steps of a round are worth a step of the whole fleet each. Later ones follow the device's own data, and are worth
less the further they go, so that a round of E steps is worth g(E) = E/(1 + E/E_h) of them. The rounds of a run are
worth W steps of the whole fleet, after which e^(−W/W_1) of the way is left. A device that does less than the others
also counts for less: its share of the work, G_u/ΣG, falls below its share 1/U of the devices, and the model neglects
its data. R minimises both:

    e^(−W/W_1) + c h Σ_u (G_u/ΣG − 1/U)²,     W = Σ_t mean_u g_u,   G_u ← e^(−mean g/W_1) G_u + g_u  round by round
    g_u = g(E_u),   E_u = P_u (T_max/R − B_u)/(S L)

G_u is what of a device's work the final model still shows. In the middle of a run both sums begin with the rounds so
far. Without the second term the best R is the one with the largest W. For equal devices it gives E = √(E_h B P/(S L)):
more lag asks for longer rounds, heterogeneous data for shorter ones. The second term makes rounds long enough for slow
devices whose data the others do not have.

Without lag, R is bounded by the batch that the rate bears: a step of all devices has at least 4 S samples, or half of
what one batch each comes to.

W_1 = a/η. h is how much of a device's work is its own, rather than common to all: h = b ζ²/σ² / (1 + b ζ²/σ²), from
gradients at the initial weights. Where updates of many local steps have been seen, they tell it better (:func:`drift`).
E_h = (1 − h) W_1 is the number of local steps at which half of a step's worth is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from adelfl.array_types import Floats, Ints
from adelfl.errors import InfeasibleBudgetError
from adelfl.planner.problem import MAX_LOCAL_ITERATIONS, MAX_ROUNDS, Problem
from adelfl.theory.gradient_stats import GradientStats

_HOMOGENEOUS, _HETEROGENEOUS = 18.0, 10.0  # a and b, fitted on digits (docs/beyond.md)
_NEGLECT = 3.0  # c, from simulations of deployments with one slow node that alone has two classes
_FASTEST, _FURTHEST = 4.0, 8.0  # times the median device's steps, and E_h: the most that any device does
SPARE = 1.13
"""Mean layers that a step is given, over L."""
LEAST_BATCHES = 4.0
"""Batches of S samples that a step of all devices together takes at least."""


def first_steps(rate: float) -> int:
    """Return the local steps of a round before anything is known of the devices: W_1, after which they gain little."""
    return min(math.ceil(_HOMOGENEOUS / rate), MAX_LOCAL_ITERATIONS)


def drift(updates: GradientStats) -> float:
    """Return h, the share of updates of many local steps that is each device's own: ζ²/(ζ² + ‖ḡ‖²)."""
    seen = updates.plausible()
    own, common = float(np.nansum(seen.zeta2)), float(np.nansum(seen.norm2))
    return own / (own + common) if own > 0 else 0.0


def scales(problem: Problem) -> tuple[float, float]:
    """Return W_1 and h, from gradients."""
    own = _HETEROGENEOUS * float(problem.spread.zeta2.sum() / problem.spread.sigma2.sum())
    return _HOMOGENEOUS / float(problem.eta[0]), own / (1.0 + own)


def _worth(steps: Floats, natural: float, own: float) -> Floats:
    """Return g(E) of several numbers of steps, for W_1 and h."""
    return steps / (1.0 + steps / ((1.0 - own) * natural))


@dataclass(frozen=True, eq=False)
class WorkDone:
    """Worth of the rounds so far."""

    total: float = 0.0
    """W, in steps of the whole fleet."""
    recent: Floats = field(default_factory=lambda: np.zeros(1))
    """G_u, shape (groups,) or (1,)."""

    def plus(self, steps: Floats, rate: float, own: float) -> WorkDone:
        """Add a round, from the local steps of each device."""
        natural = _HOMOGENEOUS / rate
        g = _worth(steps, natural, own)
        mean, recent = float(g.mean()), np.zeros(g.size)
        recent[: self.recent.size] = self.recent[: g.size]
        return WorkDone(self.total + mean, math.exp(-mean / natural) * recent + g)


NOTHING_DONE = WorkDone()
"""Before the first round."""


def with_local_work(
    problem: Problem,
    *,
    rounds: int | None = None,
    steps: int | None = None,
    own: float = 0.0,
    done: WorkDone = NOTHING_DONE,
) -> Problem:
    """Return the problem with the best number of rounds and of local steps.

    Parameters
    ----------
    problem : Problem
        Its own ``rounds`` and ``local_iterations`` are not used.
    rounds : int, optional
        R, if it is given; by default it is chosen.
    steps : int, optional
        E, the most steps of a device in a round, if it is given; by default as many as fit.
    own : float
        Lower bound of h, from updates.
    done : WorkDone
        What earlier rounds were worth.
    """
    natural, from_gradients = scales(problem)
    own = max(own, from_gradients)
    if rounds is None:
        rounds = _best_rounds(problem, steps, natural, own, done)
    if steps is None:
        fits = _steps(problem, problem.budget / rounds)
        most = min(float(fits.max()), _FASTEST * float(np.median(fits)), _FURTHEST * (1.0 - own) * natural)
        steps = max(1, min(math.ceil(most), MAX_LOCAL_ITERATIONS))
    return replace(problem, rounds=rounds, local_iterations=steps)


def _steps(problem: Problem, seconds: Floats | float) -> Floats:
    """E_u of each group in rounds of some length, shape (..., groups)."""
    fleet, S = problem.fleet, problem.batch
    held = S if fleet.samples is None else np.minimum(S, fleet.samples)
    cost = (held + fleet.overhead_of()) * problem.layers * SPARE
    left = np.maximum(np.asarray(seconds, dtype=np.float64)[..., None] - fleet.upload, 0.0)
    return fleet.compute * left / cost


def _best_rounds(problem: Problem, steps: int | None, natural: float, own: float, done: WorkDone) -> int:
    R = np.unique(np.geomspace(1, MAX_ROUNDS, 400).astype(np.int64))
    E = _steps(problem, problem.budget / R)
    n = problem.fleet.count * (1.0 if problem.cohort is None else problem.cohort / problem.devices)
    least = min(LEAST_BATCHES, 0.5 * float(n.sum()))
    enough = np.minimum(E, 1.0) @ n >= least
    if not enough.any():
        raise InfeasibleBudgetError(
            f"no number of rounds fits into {problem.budget:.4g} s: even in a single round, all "
            f"devices together finish fewer than {least:.2g} batches of {problem.batch} samples; "
            "give more time, or a smaller batch",
            binding="the time of all devices together",
        )
    errors = _log_error(problem, R, steps, natural, own, done)
    return int(R[int(np.argmin(np.where(enough, errors, np.inf)))])


def gains(problem: Problem, own: float, done: WorkDone) -> bool:
    """Return whether one more round is better than none."""
    natural, from_gradients = scales(problem)
    one, none = _log_error(problem, np.array([1, 0]), None, natural, max(own, from_gradients), done)
    return bool(one < none)


def _log_error(problem: Problem, R: Ints, steps: int | None, natural: float, own: float, done: WorkDone) -> Floats:
    """Return the logarithm of what the number of rounds minimises, for several numbers."""
    E = _steps(problem, problem.budget / np.maximum(R, 1))
    E = np.where(E > 0, np.maximum(E, 1.0), 0.0)
    if steps is not None:
        E = np.minimum(E, steps)
    g = _worth(E, natural, own)
    count, U = problem.fleet.count, problem.devices
    mean = np.maximum(g @ count / U, 1e-300)
    kept = np.exp(-R * mean / natural)  # of the rounds so far; the others add up to a geometric series
    G = kept[:, None] * done.recent + ((1.0 - kept) / -np.expm1(-mean / natural))[:, None] * g
    neglect = np.square(G / np.maximum(G @ count / U, 1e-300)[:, None] - 1.0) @ count / U**2
    with np.errstate(divide="ignore"):
        log_error: Floats = np.logaddexp(-(done.total + R * mean) / natural, np.log(_NEGLECT * own * neglect))
    return log_error
