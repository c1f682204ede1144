"""The exact noise of one round, in place of a bound on it (docs/adel.md, "The noise of one round").

D is the set of devices that deliver in time, and A[u,l] = c_l v_u 1[u ∈ D] / Σ_{w ∈ D} v_w. Then

    E‖Σ_u A_u g_u − ḡ‖²  =  c² [ σ² Σ_u β_u/S_u  +  ζ² (Σ_u β_u − q/U) ]  +  ((cq − 1)² + c² pq) ‖ḡ‖²

    α_u = E[A_u], β_u = E[A_u²] at c = 1,   p = P(D = ∅),   q = 1 − p

where σ² is the variance of one sample's gradient, and ζ² = (U−1)⁻¹ Σ_u ‖∇F_u − ∇F‖² the spread of the devices' own
gradients. 1/(x + X) = ∫ e^{−tx} e^{−tX} dt turns the moments into integrals of products:

    α_u = π_u v_u ∫ e^{−t v_u} Π_{w≠u} (1 − π_w + π_w e^{−t v_w}) dt
    β_u = π_u v_u² ∫ t e^{−t v_u} Π_{w≠u} (1 − π_w + π_w e^{−t v_w}) dt

The part ζ² (Σ α² − q²/U) of ζ² (Σ β − q/U) is the same in every round. It does not average out, and counts M times over
the M rounds of :func:`memory`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from adelfl.array_types import Floats
from adelfl.theory.gradient_stats import GradientStats

_NODES = 64
_LEFT = -3.0  # e^(x − e^(−x)) is 1e-10 here
_LEAST_SHARE = 1e-4  # share of a round's expected weight below which the integral neglects a device


def _nodes(scale: Floats, smallest: Floats, number: int = _NODES) -> tuple[Floats, Floats]:
    """Return points t and weights dt of ∫_0^∞ … dt by double exponential quadrature, on a new first axis.

    The integrand falls off around 1/scale, with scale = E[X]; the contribution of the device with the smallest weight
    ends around 1/smallest. Both have shape (..., 1, L).
    """
    reach = np.max(scale / np.maximum(smallest, _LEAST_SHARE * scale), initial=1.0)
    x, step = np.linspace(_LEFT, np.log(60.0 * max(1.0, reach)), number, retstep=True)
    t = np.exp(x - np.exp(-x))
    dt = step * t * (1.0 + np.exp(-x))
    shape = (-1, *([1] * scale.ndim))
    return t.reshape(shape) / scale, dt.reshape(shape) / scale


@np.errstate(invalid="ignore", over="ignore")  # the noise of a layer that almost never arrives is infinite
def moments(
    pi: ArrayLike, v: ArrayLike = 1.0, count: ArrayLike = 1, nodes: int = _NODES
) -> tuple[Floats, Floats, Floats]:
    """Return α = E[A_u] and β = E[A_u²] at c = 1, shape (..., U, L), and q = P(D ≠ ∅), shape (..., L).

    ``pi`` is P(u delivers layer l), shape (..., U, L), ``v`` the weight of u, broadcast to pi, and ``count`` the number
    of devices in each group. The integrals have ten digits with 64 nodes where weights differ by up to a thousand, and
    two to four digits with 24.
    """
    pi = np.asarray(pi, dtype=np.float64)
    v = np.broadcast_to(np.asarray(v, dtype=np.float64), pi.shape)
    n = np.broadcast_to(np.asarray(count, dtype=np.float64), pi.shape[-2:-1])[:, None]
    log_empty = np.sum(n * np.log1p(-np.minimum(pi, 1.0 - 1e-16)), axis=-2)
    scale = np.maximum(np.sum(n * pi * v, axis=-2, keepdims=True), 1e-300)
    here = pi > 0
    smallest = np.min(np.where(here, v, np.inf), axis=-2, keepdims=True)
    # A device that delivers alone has weight v, even if that is rare, so the integral ends there, not at 1/E[X].
    scale = np.maximum(scale, np.where(np.isfinite(smallest), smallest, 1e-300))
    t, dt = _nodes(scale, np.where(np.isfinite(smallest), smallest, scale), nodes)
    # 1 − π + π e^(−tv) = 1 + π (e^(−tv) − 1), without cancellation.
    drop = np.expm1(-t * v)
    log_factor = np.log1p(np.maximum(pi * drop, -1.0 + 1e-16))
    others = np.exp(np.sum(n * log_factor, axis=-2, keepdims=True) - log_factor)
    kernel = others * (1.0 + drop) * dt
    alpha = pi * v * kernel.sum(axis=0)
    beta = pi * v**2 * (kernel * t).sum(axis=0)
    return alpha, beta, -np.expm1(log_empty)


@dataclass(frozen=True, eq=False)
class Noise:
    """E‖merged step − FedAvg's step‖² / η² of one round, by cause; each of shape (..., L)."""

    batch: Floats
    """Variance of the batches, σ² Σ β/S."""
    data: Floats
    """Differences between the devices' data, ζ² (Σ β − q/U)."""
    empty: Floats
    """Rounds without any delivery, ((cq − 1)² + c² pq) ‖ḡ‖²."""
    bias: Floats
    """The part of ``data`` that is the same in every round, ζ² (Σ α² − q²/U)."""

    def total(self, memory: float = 1.0) -> Floats:
        """Sum over the layers; the bias counts ``memory`` times."""
        total: Floats = (self.batch + self.data + self.empty + (memory - 1.0) * self.bias).sum(axis=-1)
        return total


@np.errstate(invalid="ignore", over="ignore")
def round_noise(
    pi: ArrayLike,
    batch: ArrayLike,
    spread: GradientStats,
    v: ArrayLike = 1.0,
    count: ArrayLike = 1,
    *,
    unbiased: bool = True,
    nodes: int = _NODES,
) -> Noise:
    """Return the noise of a round in which u delivers layer l with probability π and takes S_u samples.

    ``batch`` is S_u, shape (..., U); ``unbiased`` selects c = 1/(1 − p) rather than 1; the other arguments are as for
    :func:`moments`.
    """
    n = np.broadcast_to(np.asarray(count, dtype=np.float64), np.shape(pi)[-2:-1])
    U = float(n.sum())
    alpha, beta, q = moments(pi, v, n, nodes)
    S = np.maximum(np.asarray(batch, dtype=np.float64), 1e-300)[..., None]
    each = n[:, None]
    c = 1.0 / np.where(q > 0, q, 1.0) if unbiased else np.ones_like(q)
    per_sample = np.sum(each * beta / S, axis=-2)
    overlap = np.maximum(np.sum(each * beta, axis=-2) - q / U, 0.0)
    lasting = np.maximum(np.sum(each * alpha**2, axis=-2) - q**2 / U, 0.0)
    empty = np.where(q > 0, (c * q - 1.0) ** 2 + c**2 * (1.0 - q) * q, np.inf if unbiased else 1.0)
    return Noise(
        c**2 * spread.sigma2 * per_sample,
        c**2 * spread.zeta2 * overlap,
        np.where(spread.norm2 > 0, empty * spread.norm2, 0.0),
        c**2 * spread.zeta2 * lasting,
    )


def precision(batch: ArrayLike, spread: GradientStats, memory: float = 1.0) -> Floats:
    """Return the weights v_u = 1/(σ_l²/S_u + M ζ_l²) with the least lasting noise, shape (..., U, L).

    With equal data (ζ = 0) every sample has the same weight, with very unequal data every device. This is the estimator
    of random-effects models, with the spread of the data counted M times because it does not average out over rounds.
    """
    S = np.maximum(np.asarray(batch, dtype=np.float64), 1.0)[..., None]
    tiny = 1e-12 * np.maximum(spread.sigma2, 1e-300)
    return 1.0 / np.maximum(spread.sigma2 / S + memory * spread.zeta2, tiny)


def memory(eta: ArrayLike, rho_c: float) -> float:
    """Return M = 1/(η ρ_c), at most R: the rounds over which a lasting error adds up."""
    eta = np.atleast_1d(np.asarray(eta, dtype=np.float64))
    pull = float(np.mean(eta)) * rho_c
    return float(eta.size if pull * eta.size <= 1.0 else max(1.0, 1.0 / pull))
