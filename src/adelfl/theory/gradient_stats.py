"""Gradient statistics per layer, and their estimates from a few gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from adelfl.array_types import Floats
from adelfl.errors import ConfigError

_KEYS = ("sigma2", "zeta2", "norm2")
TINY = float(np.finfo(np.float32).tiny)
"""Least estimate of a square that cannot be zero."""


@dataclass(frozen=True, eq=False)
class GradientStats:
    """Gradient statistics per layer, which together with the fleet determine the noise of a round."""

    sigma2: Floats
    """σ_l², variance of the gradient of one sample within a device."""
    zeta2: Floats
    """ζ_l², spread of the devices' own gradients around their mean."""
    norm2: Floats
    """‖ḡ_l‖²."""

    @classmethod
    def from_sums(
        cls, devices: ArrayLike, sigma2: Floats, noise: ArrayLike, squares: ArrayLike, square_of_sum: ArrayLike
    ) -> GradientStats:
        """Estimate from sums over the devices that sent each layer, all of shape (L,), and a known σ².

        The gradients h_u of several devices differ by ζ² and by σ²/n, with n the samples behind each. ``noise`` is
        Σ_u 1/n, ``squares`` is Σ_u ‖h_u‖², and ``square_of_sum`` is ‖Σ_u h_u‖². The estimates are unbiased, so ζ² and
        ‖ḡ‖² can be negative (:meth:`plausible`). Layers that fewer than two devices sent are NaN.
        """
        n = np.asarray(devices, dtype=np.float64)
        seen = np.where(n >= 2, n, np.nan)
        between = np.maximum((np.asarray(squares) - np.asarray(square_of_sum) / seen) / (seen - 1.0), 0.0)
        zeta2 = between - sigma2 * np.asarray(noise) / seen
        norm2 = np.asarray(square_of_sum) / seen**2 - between / seen
        return cls(np.where(n >= 2, sigma2, np.nan), zeta2, norm2)

    @classmethod
    def guess(cls, layers: int, sigma2: float, G2: ArrayLike) -> GradientStats:
        """Guess from the constants of Theorem 1: σ² shared out like G², equal data on all devices."""
        if np.size(G2) not in (1, layers):
            raise ConfigError(f"G2 must be one number or {layers}, one per layer, not {np.size(G2)}")
        norm2 = np.broadcast_to(np.asarray(G2, dtype=np.float64), (layers,)).copy()
        return cls(sigma2 * norm2 / norm2.sum(), np.zeros(layers), norm2)

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return values for JSON, None where unknown; ``GradientStats.of(**values)`` is the inverse."""
        return {key: [None if np.isnan(v) else float(v) for v in getattr(self, key)] for key in _KEYS}

    @classmethod
    def of(cls, sigma2: ArrayLike, zeta2: ArrayLike, norm2: ArrayLike, **older: object) -> GradientStats:
        """Build from one value per layer; None where unknown. Older records have further values, which are not used."""
        return cls(*(np.asarray(v, dtype=np.float64) for v in (sigma2, zeta2, norm2)))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.sigma2.size)

    def plausible(self) -> GradientStats:
        """Return a copy in which negative estimates of squares are raised to zero (or a tiny number)."""
        return GradientStats(np.maximum(self.sigma2, TINY), np.maximum(self.zeta2, 0.0), np.maximum(self.norm2, TINY))

    def _map(self, change: Callable[..., Floats], *others: GradientStats) -> GradientStats:
        """Apply a function to each field of this and other statistics."""
        return GradientStats(*(change(*(getattr(stats, key) for stats in (self, *others))) for key in _KEYS))

    def completed(self, guess: GradientStats) -> GradientStats:
        """Return a copy with a guess in place of unknown values."""
        return self._map(lambda known, guessed: np.asarray(np.where(np.isfinite(known), known, guessed)), guess)

    def rounded(self) -> GradientStats:
        """Return a copy rounded to three digits, which is the same for all engines."""
        return self._map(lambda values: np.array([float(f"{v:.2e}") for v in values]))

    def mixed(self, newer: GradientStats, share: float) -> GradientStats:
        """Return the average with newer statistics, which get weight ``share``.

        Unseen layers (NaN) change in proportion to the others.
        """
        seen = np.isfinite(newer.sigma2) & (newer.sigma2 > 0) & (self.sigma2 > 0)
        moved = float(np.exp(np.mean(np.log(newer.sigma2[seen] / self.sigma2[seen])))) if seen.any() else 1.0

        def blend(old: Floats, new: Floats) -> Floats:
            return (1.0 - share) * old + share * np.where(np.isfinite(new), new, moved * old)

        return self._map(blend, newer)
