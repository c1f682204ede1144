"""Delivery probabilities, expected depth and Lemma 1, from Poisson counts of finished layers.

A device with rate λ = P (T − B) / S finishes z ~ Poisson(λ) layers before the deadline, from the last layer
to the first; layer l is delivered iff z ≥ L+1−l. With s = L+1−l that has probability 1 − Q(s, λ), where
Q(s, x) = Σ_{k<s} e^{−x} x^k / k! is the regularised upper incomplete gamma function (appendix A).

Everything is computed from log Q: p = Q^U needs more digits than a float has near Q = 1, and more range near Q = 0.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from scipy.optimize import brentq

from adelfl.array_types import Floats
from adelfl.errors import ConfigError

P_EMPTY_LIMIT = 0.2
"""Lemma 3 holds for p_t^1 below this."""

_TINY, _HUGE = 1e-300, 1e300  # stand-ins for a rate of 0 and of infinity, where logarithms stay finite
_CHUNK = 1 << 21  # elements of λ × L that are worked on at once


def survival(L: int, x: ArrayLike) -> tuple[Floats, Floats]:
    """Return log Q(s, x) and the hazard −d log Q / dx = q(s, x) / Q(s, x) for s = 1..L, shape x.shape + (L,).

    Negative rates x count as 0. Two recursions with positive terms, which neither cancel nor overflow, give
    ρ_{s+1} = 1 + ρ_s s / x for ρ = Q / q, and P(s) = P(s+1) + e^{−x} x^s / s! for P = 1 − Q. Near Q = 1 the logarithm
    is taken of 1 − P, elsewhere of q ρ.
    """
    x = np.clip(np.asarray(x, dtype=np.float64), _TINY, _HUGE)
    order, log_factorial = _orders(L)
    hazard = np.empty((*x.shape, L))
    with np.errstate(over="ignore", under="ignore"):
        rho = np.ones_like(x)
        for s in range(1, L + 1):
            hazard[..., s - 1] = rho
            rho = 1.0 + rho * (s / x)
        log_pmf = order * np.log(x)[..., None] - x[..., None] - log_factorial  # of k = s − 1 layers
        terms = np.exp(log_pmf)
        terms[..., :-1] = terms[..., 1:]
        terms[..., -1] = special.gammainc(L, x)
        P = np.cumsum(terms[..., ::-1], axis=-1)[..., ::-1]
        log_Q = np.where(P < 0.5, np.log1p(-np.minimum(P, 0.5)), log_pmf + np.log(hazard))
    return log_Q, 1.0 / hazard


@lru_cache(maxsize=64)
def _orders(L: int) -> tuple[Floats, Floats]:
    """Return k = 0..L−1 and log k!."""
    k = np.arange(L, dtype=np.float64)
    return k, special.gammaln(k + 1.0)


def delivery(L: int, rate: ArrayLike) -> Floats:
    """Return P(layer l is delivered) = 1 − Q(L+1−l, λ) for l = 1..L, shape rate.shape + (L,)."""
    log_Q, _ = survival(L, rate)
    return -np.expm1(log_Q[..., ::-1])


def log_p_empty(L: int, rate: ArrayLike, count: ArrayLike = 1) -> Floats:
    """Return log p^l = Σ_u log Q(L+1−l, λ_u), the exact log-probability that no device delivers layer l.

    ``rate`` has the λ_u of each group of ``count`` equal devices, shape (..., U), 0 for one that sits the round out.
    The result has shape (..., L).
    """
    rate = np.atleast_1d(np.asarray(rate, dtype=np.float64))
    count = np.broadcast_to(np.asarray(count, dtype=np.float64), rate.shape[-1:])
    total = np.zeros((*rate.shape[:-1], L))
    rows = math.prod(rate.shape[:-1])
    step = max(1, _CHUNK // max(1, L * rows))
    for start in range(0, rate.shape[-1], step):
        log_Q, _ = survival(L, rate[..., start : start + step])
        total += np.einsum("...ul,u->...l", log_Q, count[start : start + step])
    return total[..., ::-1]


def p_empty_bound(L: int, x: ArrayLike, U: int) -> Floats:
    """Return Lemma 1's bound on p_t^l, Q(L+1−l, x)^U with x = T_t/m, shape x.shape + (L,)."""
    log_Q, _ = survival(L, x)
    return np.exp(U * log_Q[..., ::-1])


def smallest_rate(L: int, U: int, p_limit: float = P_EMPTY_LIMIT) -> float:
    """Return x with Q(L, x)^U = p_limit, the smallest rate for which Lemma 3 holds."""
    log_Q = math.log(p_limit) / U
    if log_Q < -math.log(2.0):
        return float(special.gammainccinv(L, math.exp(log_Q)))
    return float(special.gammaincinv(L, -math.expm1(log_Q)))


def expected_depth(L: int, rate: ArrayLike) -> Floats:
    """Return E[min(z, L)] = Σ_{k=1..L} (1 − Q(k, λ)) in closed form, λ Q(L−1, λ) + L (1 − Q(L, λ))."""
    lam = np.clip(np.asarray(rate, dtype=np.float64), 0.0, _HUGE)
    partial = lam * special.gammaincc(L - 1, lam) if L > 1 else 0.0
    depth: Floats = partial + L * special.gammainc(L, lam)
    return depth


def mean_depth(
    L: int, T: float, compute: ArrayLike, upload: ArrayLike, batch: ArrayLike, count: ArrayLike = 1
) -> float:
    """Return the mean over devices of E[min(z, L)] / L at deadline T, between 0 and 1."""
    rate = np.atleast_1d(np.asarray(compute) * (T - np.asarray(upload)) / np.asarray(batch))
    return float(np.average(expected_depth(L, rate), weights=np.broadcast_to(count, rate.shape)) / L)


def deadline_for_depth(
    fraction: float, L: int, compute: ArrayLike, upload: ArrayLike, batch: ArrayLike, count: ArrayLike = 1
) -> float:
    """Return the deadline at which :func:`mean_depth` is ``fraction``, to a relative 1e-12.

    The paper sets its budgets this way: T_max / R is the deadline of 50 % (MNIST) or 85 % (CIFAR-10) at the baseline
    batch size.
    """
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"depth fraction must lie strictly between 0 and 1, not {fraction!r}")

    def shortfall(T: float) -> float:
        return mean_depth(L, T, compute, upload, batch, count) - fraction

    lo = float(np.min(np.asarray(upload, dtype=np.float64)))
    step = float(np.min(np.asarray(batch, dtype=np.float64) / np.asarray(compute, dtype=np.float64)))
    while shortfall(lo + step) < 0.0:
        step *= 2.0
    return float(brentq(shortfall, lo, lo + step, xtol=1e-300, rtol=1e-12))
