"""Who finishes which layer in time: Poisson counts, Lemma 1, expected depth.

A device with rate λ = P (T − B) / S finishes z ~ Poisson(λ) layers before the deadline, from the last layer
to the first; layer l is delivered iff z ≥ L+1−l. With s = L+1−l that has probability 1 − Q(s, λ), where
Q(s, x) = Σ_{k<s} e^{−x} x^k / k! is the regularised upper incomplete gamma function (appendix A).

Everything is computed from log Q, because p = Q^U needs more digits of Q than a float has near 1 and more
range than a float has near 0.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.optimize import brentq

from adelfl.errors import ConfigError

Floats = NDArray[np.float64]

P_EMPTY_LIMIT = 0.2
"""Lemma 3 holds for p_t^1 below this."""

_TINY, _HUGE = 1e-300, 1e300  # stand-ins for a rate of 0 and of infinity, where logarithms stay finite
_CHUNK = 1 << 21  # elements of λ × L that are worked on at once


def survival(L: int, x: ArrayLike) -> tuple[Floats, Floats]:
    """Log of Q(s, x) and the hazard q(s, x) / Q(s, x), for s = 1..L.

    Parameters
    ----------
    L : int
        Largest s.
    x : array_like
        Rates; negative ones count as 0.

    Returns
    -------
    log_Q, hazard : ndarray, shape x.shape + (L,)
        Index s − 1 on the last axis. hazard = −d log Q / dx.

    Notes
    -----
    Two recursions of positive terms, so nothing cancels and nothing overflows:
    ρ_{s+1} = 1 + ρ_s s / x for ρ = Q / q, upwards, and P(s) = P(s+1) + e^{−x} x^s / s! for P = 1 − Q, downwards.
    Near Q = 1 the logarithm is taken of 1 − P, elsewhere of q ρ.
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
    """k = 0..L−1 and log k!."""
    k = np.arange(L, dtype=np.float64)
    return k, special.gammaln(k + 1.0)


def delivery(L: int, rate: ArrayLike) -> Floats:
    """P(layer l is delivered) = 1 − Q(L+1−l, λ), for l = 1..L.

    Parameters
    ----------
    L : int
        Number of layers.
    rate : array_like
        λ of each device.

    Returns
    -------
    ndarray, shape rate.shape + (L,)
        Index l − 1 on the last axis: the first layer is the least likely one.
    """
    log_Q, _ = survival(L, rate)
    delivered: Floats = -np.expm1(log_Q[..., ::-1])
    return delivered


def log_p_empty(L: int, rate: ArrayLike, count: ArrayLike = 1) -> Floats:
    """Log of the exact p^l = Π_u Q(L+1−l, λ_u): the probability that nobody delivers layer l.

    Parameters
    ----------
    L : int
        Number of layers.
    rate : array_like, shape (..., U)
        λ_u of each device (or group of alike devices); 0 for one that sits the round out.
    count : array_like, shape (U,) or scalar
        How many devices each entry stands for.

    Returns
    -------
    ndarray, shape (..., L)
        Index l − 1 on the last axis.
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


def p_empty(L: int, rate: ArrayLike, count: ArrayLike = 1) -> Floats:
    """Exact p^l, the exponential of :func:`log_p_empty`."""
    p: Floats = np.exp(log_p_empty(L, rate, count))
    return p


def p_empty_bound(L: int, x: ArrayLike, U: int) -> Floats:
    """Lemma 1: p_t^l ≤ Q(L+1−l, T_t/m)^U.

    Parameters
    ----------
    L : int
        Number of layers.
    x : array_like
        T_t / m.
    U : int
        Number of devices.

    Returns
    -------
    ndarray, shape x.shape + (L,)
        Index l − 1 on the last axis.
    """
    log_Q, _ = survival(L, x)
    p: Floats = np.exp(U * log_Q[..., ::-1])
    return p


def smallest_rate(L: int, U: int, p_limit: float = P_EMPTY_LIMIT) -> float:
    """The x with Q(L, x)^U = p_limit: below it Lemma 3's p_t^1 < 0.2 fails."""
    log_Q = math.log(p_limit) / U
    if log_Q < -math.log(2.0):
        return float(special.gammainccinv(L, math.exp(log_Q)))
    return float(special.gammaincinv(L, -math.expm1(log_Q)))


def expected_depth(L: int, rate: ArrayLike) -> Floats:
    """E[min(z, L)]: how many layers a device of rate λ delivers on average.

    Σ_{k=1..L} (1 − Q(k, λ)) in closed form: λ Q(L−1, λ) + L (1 − Q(L, λ)).
    """
    lam = np.clip(np.asarray(rate, dtype=np.float64), 0.0, _HUGE)
    partial = lam * special.gammaincc(L - 1, lam) if L > 1 else 0.0
    depth: Floats = partial + L * special.gammainc(L, lam)
    return depth


def starving_depth(L: int, U: int, p_limit: float = P_EMPTY_LIMIT) -> float:
    """The mean depth, as a share of the layers, at which U devices of one rate leave layer 1 empty with p_limit.

    Below it the first layer starves, and the paper's gains begin.
    """
    return float(expected_depth(L, smallest_rate(L, U, p_limit)) / L)


def mean_depth(
    L: int, T: float, compute: ArrayLike, upload: ArrayLike, batch: ArrayLike, count: ArrayLike = 1
) -> float:
    """Mean over devices of E[min(z, L)] / L at deadline T, between 0 and 1."""
    compute, upload, batch, count = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (compute, upload, batch, count))
    )
    rate = np.where(batch > 0, compute * (T - upload) / np.maximum(batch, _TINY), 0.0)
    return float(np.average(expected_depth(L, rate), weights=count) / L)


def deadline_for_depth(
    fraction: float, L: int, compute: ArrayLike, upload: ArrayLike, batch: ArrayLike, count: ArrayLike = 1
) -> float:
    """The deadline at which the mean depth is a given fraction of the layers: the inverse of :func:`mean_depth`.

    The paper sets its budgets so: T_max / R is the deadline of 50 % (MNIST) or 85 % (CIFAR-10) at the
    baseline batch size.

    Parameters
    ----------
    fraction : float
        Wanted mean depth, strictly between 0 and 1.
    L : int
        Number of layers.
    compute, upload : array_like, shape (U,)
        P_u and B_u (seconds).
    batch : array_like
        Batch size, one for all or one per device.
    count : array_like
        How many devices each entry stands for.

    Returns
    -------
    float
        Seconds, to a relative 1e-12.
    """
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"depth fraction must lie strictly between 0 and 1, not {fraction!r}")

    if np.any(np.asarray(batch) <= 0):
        raise ConfigError("deadline_for_depth needs a positive batch size for every device")

    def shortfall(T: float) -> float:
        return mean_depth(L, T, compute, upload, batch, count) - fraction

    lo = float(np.min(np.asarray(upload, dtype=np.float64)))
    step = float(np.min(np.asarray(batch, dtype=np.float64) / np.asarray(compute, dtype=np.float64)))
    while shortfall(lo + step) < 0.0:
        step *= 2.0
    return float(brentq(shortfall, lo, lo + step, xtol=1e-300, rtol=1e-12))
