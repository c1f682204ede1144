"""The noise of one round, exactly, instead of a bound on it (SPEC section 5).

A round replaces FedAvg's step ḡ_l, the mean of all device gradients, by Σ_u A[u,l] g_u^l, where A depends on who
delivered in time. With the factor c_l on the mean of what was delivered, A[u,l] = c_l v_u 1[u ∈ D] / Σ_{w ∈ D} v_w,

    E‖Σ_u A_u g_u − ḡ‖²  =  c² [ σ² Σ_u β_u/S_u  +  ζ² (Σ_u β_u − q/U) ]  +  ((cq − 1)² + c² pq) ‖ḡ‖²

    α_u = E[A_u], β_u = E[A_u²] at c = 1,   p = P(nobody delivers),   q = 1 − p

where σ² is the variance of one sample's gradient, ζ² = (U−1)⁻¹ Σ_u ‖∇F_u − ∇F‖² the spread of the devices' own
gradients, dealt to devices without regard to their speed. For equal weights and equal chances β = E[1/K; K>0]/U, which
is SPEC's formula. In general the number of contributors is Poisson-binomial, and 1/(x + X) = ∫ e^{−tx} e^{−tX} dt turns
every moment into one integral over a product:

    α_u = π_u v_u ∫ e^{−t v_u} Π_{w≠u} (1 − π_w + π_w e^{−t v_w}) dt
    β_u = π_u v_u² ∫ t e^{−t v_u} Π_{w≠u} (1 − π_w + π_w e^{−t v_w}) dt

Devices that deliver more often weigh more: of ζ² (Σ β − q/U), the part ζ² (Σ α² − q²/U) is the same in every round. It
does not average out; over M rounds that the model remembers it counts M times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adelfl.theory.gradient_stats import GradientStats

Floats = NDArray[np.float64]

_NODES = 64
_LEFT = -3.0  # e^(x − e^(−x)) is 1e-10 here
_LEAST_SHARE = 1e-4  # of a round's expected weight: a device that weighs less hardly matters alone


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the weights A_u at c = 1. The last axis counts layers, the one before it devices or groups of them.

    Attributes
    ----------
    alpha, beta : ndarray, shape (..., U, L)
        E[A_u] and E[A_u²].
    filled : ndarray, shape (..., L)
        q = P(somebody delivers).
    """

    alpha: Floats
    beta: Floats
    filled: Floats


def _nodes(scale: Floats, smallest: Floats, number: int = _NODES) -> tuple[Floats, Floats]:
    """Points t and weights dt of ∫_0^∞ … dt, on a first axis: double exponential, so nothing is lost at either end.

    Parameters
    ----------
    scale : ndarray, shape (..., 1, L)
        E[X]: the integrand falls off around 1/scale.
    smallest : ndarray, shape (..., 1, L)
        Smallest weight of a single device; what it alone contributes ends around 1/smallest.
    """
    reach = np.max(scale / np.maximum(smallest, _LEAST_SHARE * scale), initial=1.0)
    x, step = np.linspace(_LEFT, np.log(60.0 * max(1.0, reach)), number, retstep=True)
    t = np.exp(x - np.exp(-x))
    dt = step * t * (1.0 + np.exp(-x))
    shape = (-1, *([1] * scale.ndim))
    return t.reshape(shape) / scale, dt.reshape(shape) / scale


def moments(pi: ArrayLike, v: ArrayLike = 1.0, count: ArrayLike = 1, nodes: int = _NODES) -> Moments:
    """α, β and q of the weighted average over whoever delivers.

    Parameters
    ----------
    pi : array_like, shape (..., U, L)
        P(u delivers layer l).
    v : array_like, broadcast to pi
        How much u weighs among those who deliver.
    count : array_like, shape (U,)
        How many devices each entry stands for.
    nodes : int
        Points of the integrals; 64 give ten digits where weights differ by up to a thousand, 24 two to four.
    """
    pi = np.asarray(pi, dtype=np.float64)
    v = np.broadcast_to(np.asarray(v, dtype=np.float64), pi.shape)
    n = np.broadcast_to(np.asarray(count, dtype=np.float64), pi.shape[-2:-1])[:, None]
    log_empty = np.sum(n * np.log1p(-np.minimum(pi, 1.0 - 1e-16)), axis=-2)
    scale = np.maximum(np.sum(n * pi * v, axis=-2, keepdims=True), 1e-300)
    here = pi > 0
    smallest = np.min(np.where(here, v, np.inf), axis=-2, keepdims=True)
    # Alone, a device weighs v however rarely it delivers: the integral ends there, not at 1/E[X].
    scale = np.maximum(scale, np.where(np.isfinite(smallest), smallest, 1e-300))
    t, dt = _nodes(scale, np.where(np.isfinite(smallest), smallest, scale), nodes)
    # 1 − π + π e^(−tv) = 1 + π (e^(−tv) − 1), with nothing cancelled.
    drop = np.expm1(-t * v)
    log_factor = np.log1p(np.maximum(pi * drop, -1.0 + 1e-16))
    others = np.exp(np.sum(n * log_factor, axis=-2, keepdims=True) - log_factor)
    kernel = others * (1.0 + drop) * dt
    alpha = pi * v * kernel.sum(axis=0)
    beta = pi * v**2 * (kernel * t).sum(axis=0)
    return Moments(alpha, beta, -np.expm1(log_empty))


@dataclass(frozen=True, eq=False)
class Noise:
    """E‖merged step − FedAvg's step‖² / η² of one round, by cause; each of shape (..., L).

    Attributes
    ----------
    batch : ndarray
        The luck of the batches, σ² Σ β/S.
    data : ndarray
        Whose data was in, ζ² (Σ β − q/U).
    empty : ndarray
        Whether anybody was: ((cq − 1)² + c² pq) ‖ḡ‖².
    bias : ndarray
        The part of ``data`` that is the same in every round, ζ² (Σ α² − q²/U).
    """

    batch: Floats
    data: Floats
    empty: Floats
    bias: Floats

    def total(self, memory: float = 1.0) -> Floats:
        """Over all layers; the bias counts as often as the model remembers rounds. ``memory`` 1 is one round alone."""
        every = self.batch + self.data + self.empty + (memory - 1.0) * self.bias
        found: Floats = every.sum(axis=-1)
        return found


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
    """The noise of a round in which u delivers layer l with probability π and takes S_u samples.

    Parameters
    ----------
    pi : array_like, shape (..., U, L)
    batch : array_like, shape (..., U)
        S_u.
    spread : GradientStats
    v : array_like, broadcast to pi
        How much u weighs among those who deliver.
    count : array_like, shape (U,)
        How many devices each entry stands for.
    unbiased : bool
        c = 1/(1 − p), or c = 1.
    nodes : int
        Points of the integrals.
    """
    n = np.broadcast_to(np.asarray(count, dtype=np.float64), np.shape(pi)[-2:-1])
    U = float(n.sum())
    found = moments(pi, v, n, nodes)
    S = np.maximum(np.asarray(batch, dtype=np.float64), 1e-300)[..., None]
    q, each = found.filled, n[:, None]
    safe = np.where(q > 0, q, 1.0)
    c = 1.0 / safe if unbiased else np.ones_like(q)
    per_sample = np.sum(each * found.beta / S, axis=-2)
    overlap = np.maximum(np.sum(each * found.beta, axis=-2) - q / U, 0.0)
    lasting = np.maximum(np.sum(each * found.alpha**2, axis=-2) - q**2 / U, 0.0)
    empty = np.where(q > 0, (c * q - 1.0) ** 2 + c**2 * (1.0 - q) * q, np.inf if unbiased else 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        return Noise(
            c**2 * spread.sigma2 * per_sample,
            c**2 * spread.zeta2 * overlap,
            np.where(spread.norm2 > 0, empty * spread.norm2, 0.0),
            c**2 * spread.zeta2 * lasting,
        )


def precision(batch: ArrayLike, spread: GradientStats, memory: float = 1.0) -> Floats:
    """v_u = 1/(σ_l²/S_u + M ζ_l²), shape (..., U, L): of all weights the ones with the least lasting noise.

    With equal data (ζ = 0) samples count alike, and a device that took twice as many counts twice; with unequal data
    devices do. Between them this is the estimator of random-effects models, with the spread of the data counted M times
    because it stays while the luck of the batches averages out.
    """
    S = np.maximum(np.asarray(batch, dtype=np.float64), 1.0)[..., None]
    tiny = 1e-12 * np.maximum(spread.sigma2, 1e-300)
    found: Floats = 1.0 / np.maximum(spread.sigma2 / S + memory * spread.zeta2, tiny)
    return found


def memory(eta: ArrayLike, rho_c: float) -> float:
    """M: over how many rounds a lasting error adds up before the loss pulls back, 1/(η ρ_c), at most all of them."""
    eta = np.atleast_1d(np.asarray(eta, dtype=np.float64))
    pull = float(np.mean(eta)) * rho_c
    return float(eta.size if pull * eta.size <= 1.0 else max(1.0, 1.0 / pull))


def correction(
    p_empty: ArrayLike, noise: ArrayLike, spread: GradientStats, eta: float, *, most: float | None = None
) -> Floats:
    """The factor on the mean of what was delivered: between 1 and 1/(1 − p), shape (L,).

    Along a layer's gradient the loss is a parabola of curvature ρ. A step η c brings it down by
    η c ‖ḡ‖² − η² c² ρ (‖ḡ‖² + N)/2, N being the noise of what came; the best c is ‖ḡ‖² / (η ρ (‖ḡ‖² + N)). Where
    steps are short (η ρ small) that exceeds 1/(1 − p), and starved layers are made up for in full; where the noise
    of a lone update is large it is less than 1, and they are not made up for at all.

    Parameters
    ----------
    p_empty : array_like, shape (L,)
        Probability that nobody delivers the layer.
    noise : array_like, shape (L,)
        N_l, of those who did deliver.
    spread : GradientStats
    eta : float
        Learning rate.
    most : float, optional
        Largest factor; by default 1/(1 − p) alone limits it.
    """
    q = 1.0 - np.asarray(p_empty, dtype=np.float64)
    full = 1.0 / np.where(q > 0, q, 1.0)
    if most is not None:
        full = np.minimum(full, most)
    with np.errstate(divide="ignore", invalid="ignore"):
        best = spread.norm2 / (eta * spread.steepness * (spread.norm2 + np.asarray(noise)))
    best = np.where(np.isfinite(best) & (spread.steepness > 0), best, np.inf)
    found: Floats = np.clip(best, 1.0, np.maximum(full, 1.0))
    return found
