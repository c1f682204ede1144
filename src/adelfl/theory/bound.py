"""Theorem 1, the convergence bound that a plan minimises, term by term and with exact derivatives.

    J = Δ_1 Π_t (1 − η_t ρ_c) + Σ_t a_t (B_t + C_t),     a_t = η_t² Π_{τ>t} (1 − η_τ ρ_c)
    B_t = U⁻² Σ_u σ_u² / (m P_u (T_t − B_u)/T_t − 1) + 6 ρ_s Γ
    C_t = G² 4U/(U−1) Σ_l (1+p)/(1−5p),                  p = Q(L+1−l, T_t/m)^U

Plans differ in the *excess* Σ_t a_t (b_t + c_t), where b_t = B_t − 6 ρ_s Γ and c_t = G² 4U/(U−1) Σ_l 6p/(1−5p), which
is C_t without its value at p = 0, computed without cancellation. The rest of J is 10³ to 10⁵ times as large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from adelfl.array_types import Floats
from adelfl.theory.participation import smallest_rate, survival


def weights(eta: ArrayLike, rho_c: float) -> Floats:
    """Return a_t = η_t² Π_{τ>t} (1 − η_τ ρ_c), shape (R,)."""
    eta = np.asarray(eta, dtype=np.float64)
    log_keep = np.log1p(-eta * rho_c)
    after = np.concatenate([np.cumsum(log_keep[:0:-1])[::-1], [0.0]])
    a: Floats = eta**2 * np.exp(after)
    return a


def initial_error_left(eta: ArrayLike, rho_c: float) -> float:
    """Return Π_t (1 − η_t ρ_c), the share of Δ_1 that is left after R rounds."""
    return float(np.exp(np.sum(np.log1p(-np.asarray(eta, dtype=np.float64) * rho_c))))


def violated_conditions(eta: ArrayLike, rho_s: float) -> tuple[str, ...]:
    """Describe the conditions of Theorem 1 on the learning rate that do not hold, one sentence each."""
    eta = np.asarray(eta, dtype=np.float64)
    sentences = []
    if np.any(np.diff(eta) > 0):
        sentences.append("the learning rate increases in some round; Theorem 1 assumes that it does not")
    if np.any(eta[:-1] > 2 * eta[1:] * (1 + 1e-12)):
        sentences.append("the learning rate falls by more than half in one round; Theorem 1 assumes η_t ≤ 2 η_(t+1)")
    if eta[0] > 1 / (4 * rho_s) * (1 + 1e-12):
        sentences.append(
            f"the first learning rate, {eta[0]:.3g}, exceeds 1/(4 rho_s) = {1 / (4 * rho_s):.3g}; "
            "Theorem 1 does not cover it, though the plan may still work well"
        )
    return tuple(sentences)


@dataclass(frozen=True, eq=False)
class RoundCost:
    """Cost f_m(T) = b + c of a round: the part of B_t + C_t that a plan can change."""

    L: int
    U: int
    """Devices in a round (the cohort)."""
    P: Floats
    """Compute speed of each group of equal devices, shape (groups,)."""
    B: Floats
    """Upload time of each group."""
    share: Floats
    """σ_u² times the group's share of the fleet."""
    G2: float | Floats
    """G²: one number as in the paper, or one per layer (l = 1..L); Lemma 3 holds for both."""

    @cached_property
    def truncation_scale(self) -> Floats:
        """G² 4U/(U−1), the factor of each layer's part of C_t, for s = L+1−l = 1..L."""
        per_layer: Floats = np.broadcast_to(np.asarray(self.G2, dtype=np.float64), (self.L,))[::-1]
        return per_layer * (4.0 * self.U / (self.U - 1.0))

    @cached_property
    def x_min(self) -> float:
        """Smallest T_t/m with p_t^1 < 0.2."""
        return smallest_rate(self.L, self.U)

    def _spare_samples(self, T: Floats, m: float) -> Floats:
        """m P_u (T − B_u)/T − 1, B3 before the floor less the one sample that the floor may take."""
        return (m * self.P - 1.0) - (m * self.P * self.B) / T[..., None]

    def in_domain(self, T: ArrayLike, m: float) -> bool:
        """Return whether p_t^1 < 0.2 and every real batch size exceeds 1, so that b and c are defined."""
        T = np.asarray(T, dtype=np.float64)
        if not (m > 0 and np.all(T > m * self.x_min)):
            return False
        return bool(np.all(self._spare_samples(T, m) > 0.0))

    def batch_variance(self, T: ArrayLike, m: float) -> tuple[Floats, Floats, Floats]:
        """Return b = B_t − 6 ρ_s Γ, the variance of mini-batch gradients, with ∂b/∂T and ∂b/∂m."""
        T = np.asarray(T, dtype=np.float64)
        w = self.share / self.U
        inverse = 1.0 / self._spare_samples(T, m)
        b = inverse @ w
        squared = inverse * inverse
        b_T = -(squared @ (w * m * self.P * self.B)) / T**2
        b_m = -(b + squared @ w) / m
        return b, b_T, b_m

    def truncation(self, T: ArrayLike, m: float) -> tuple[Floats, Floats, Floats]:
        """Return c, the variance of missing layers (C_t less its value at p = 0), with ∂c/∂T and ∂c/∂m."""
        T = np.asarray(T, dtype=np.float64)
        x = T / m
        log_Q, hazard = survival(self.L, x)
        p = np.exp(self.U * log_Q)
        room = 1.0 - 5.0 * p
        c = 6.0 * (p / room) @ self.truncation_scale
        c_x = -6.0 * self.U * (p * hazard / room**2) @ self.truncation_scale
        return c, c_x / m, -c_x * x / m

    def _log_truncation_slope(self, x: Floats) -> tuple[Floats, Floats]:
        """Return log(−dc/dx) and −d log(−dc/dx)/dx, also where p is far below the smallest float."""
        log_Q, h = survival(self.L, x)
        log_p = self.U * log_Q
        p5 = np.minimum(5.0 * np.exp(log_p), 1.0)
        # Where p rounds to 0.2 the slope is infinite.
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = log_p + np.log(h) - 2.0 * np.log1p(-p5) + np.log(self.truncation_scale)
            top = terms.max(-1, keepdims=True)
            share = np.exp(terms - top)
        total = share.sum(-1)
        log_slope = math.log(6.0 * self.U) + top[..., 0] + np.log(total)
        s = np.arange(1, self.L + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            bend = h * (self.U * (1.0 + p5) / (1.0 - p5) - 1.0) + 1.0 - (s - 1) / x[..., None]
        return log_slope, (share * bend).sum(-1) / total

    def log_slope(self, T: ArrayLike, m: float) -> tuple[Floats, Floats]:
        """Return log(−∂f/∂T), which spans hundreds of decades, and −∂ log(−∂f/∂T)/∂T, positive where f is convex."""
        T = np.asarray(T, dtype=np.float64)
        log_c, bend_c = self._log_truncation_slope(T / m)
        log_c, bend_c = log_c - math.log(m), bend_c / m
        reach = m * self.P * self.B
        # Where a real batch size rounds to 1 the slope is infinite.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inverse = 1.0 / self._spare_samples(T, m)
            squared = inverse * inverse
            g_b = squared @ (self.share * reach) / (self.U * T**2)
            g_b_fall = 2.0 * g_b / T + 2.0 * ((squared * inverse) @ (self.share * reach**2)) / (self.U * T**4)
            log_g = np.logaddexp(np.log(g_b), log_c)
            curvature = np.exp(log_c - log_g) * bend_c + np.exp(np.log(g_b_fall) - log_g)
        return log_g, curvature

    def log_scale_slopes(self, T: ArrayLike, m: float) -> tuple[Floats, Floats]:
        """Return log(−∂b/∂log m) and log(∂c/∂log m): the saving and the cost of a larger batch scale."""
        T = np.asarray(T, dtype=np.float64)
        _, _, b_m = self.batch_variance(T, m)
        x = T / m
        log_c, _ = self._log_truncation_slope(x)
        return np.log(-b_m * m), log_c + np.log(x)

    def smallest_deadline(self, m: float) -> float:
        """Return max(m x_min, max_u m P_u B_u / (m P_u − 1)), which T must exceed; infinite if some m P_u ≤ 1."""
        scaled = m * self.P
        if np.any(scaled <= 1.0):
            return math.inf
        return max(m * self.x_min, float(np.max(scaled * self.B / (scaled - 1.0))))


def excess(cost: RoundCost, a: Floats, T: ArrayLike, m: float) -> float:
    """Return Σ_t a_t (b_t + c_t), the part of J that a plan can change; infinite outside the domain."""
    if not cost.in_domain(T, m):
        return math.inf
    b, _, _ = cost.batch_variance(T, m)
    c, _, _ = cost.truncation(T, m)
    return float(np.sum(a * (b + c)))


def excess_gradient(cost: RoundCost, a: Floats, T: ArrayLike, m: float) -> tuple[Floats, float]:
    """Return the derivatives of :func:`excess` (and of J) in every T_t, and in m."""
    _, b_T, b_m = cost.batch_variance(T, m)
    _, c_T, c_m = cost.truncation(T, m)
    return a * (b_T + c_T), float(np.sum(a * (b_m + c_m)))


def J(
    cost: RoundCost, eta: ArrayLike, T: ArrayLike, m: float, *, rho_c: float, rho_s: float, Gamma: float, Delta1: float
) -> float:
    """Theorem 1's bound on E‖w_{R+1} − w_opt‖²; infinite where it is not defined."""
    if not cost.in_domain(T, m):
        return math.inf
    B = cost.batch_variance(T, m)[0] + 6.0 * rho_s * Gamma
    C = cost.truncation(T, m)[0] + float(cost.truncation_scale.sum())
    return initial_error_left(eta, rho_c) * Delta1 + float(np.sum(weights(eta, rho_c) * (B + C)))
