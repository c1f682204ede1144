"""Formulas of docs/beyond.md that the library does not need: inverse-probability weights, the unrolled recursion."""

import numpy as np

from adelfl.theory import bound
from adelfl.theory.round_noise import Noise


def inverse_probability_noise(pi, batch, spread):
    """Return the noise of A[u,l] = 1[delivered]/(U π_u,l), which is unbiased for any fleet and any data."""
    S, U = np.asarray(batch, dtype=np.float64)[..., None], pi.shape[-2]
    square = 1.0 / (U**2 * pi)  # E[A²]
    total = 1.0 + np.sum(square - 1.0 / U**2, axis=-2)  # E[(Σ A)²]
    return Noise(
        spread.sigma2 * np.sum(square / S, axis=-2),
        spread.zeta2 * (np.sum(square, axis=-2) - total / U),
        (total - 1.0) * spread.norm2,
        np.zeros_like(total),
    )


def tight_bound(eta, noise, *, rho_c, rho_s, Gamma, Delta1):
    """Bound E‖w_{R+1} − w*‖² from the noise N_t of every round, for devices of equal delivery probabilities.

    E‖w_{t+1} − w*‖² ≤ (1 − η_t ρ_c) E‖w_t − w*‖² + η_t² (N_t + 6 ρ_s Γ), unrolled. With unequal probabilities the merge
    is biased, and the bound holds for inverse-probability weights only.
    """
    every = np.asarray(noise) + 6.0 * rho_s * Gamma
    return float(bound.weights(eta, rho_c) @ every + Delta1 * bound.initial_error_left(eta, rho_c))
