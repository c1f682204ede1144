"""Gradient statistics per layer, and their estimates from a few gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from adelfl.array_types import Floats

_KEYS = ("sigma2", "zeta2", "norm2")
_TINY = float(np.finfo(np.float32).tiny)


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
    def from_pairs(
        cls, devices: ArrayLike, one_sample: ArrayLike, noise: ArrayLike, squares: ArrayLike, square_of_sum: ArrayLike
    ) -> GradientStats:
        """Estimate from pairs of gradients of the same device that differ in their batches only; shapes (L,).

        Two gradients of n samples each have E‖g − g′‖² = 2σ²/n; their mean h = (g + g′)/2 has variance σ²/(2n), and the
        means of several devices differ by that and by ζ². All estimates are unbiased, so ζ² and ‖ḡ‖² can be negative
        (:meth:`plausible`). Layers that fewer than two devices sent are NaN.

        ``devices`` is the number of devices that sent the layer, ``one_sample`` is Σ_u n/2 ‖g_u − g_u′‖², ``noise`` is
        Σ_u 1/(2n), ``squares`` is Σ_u ‖h_u‖², and ``square_of_sum`` is ‖Σ_u h_u‖².
        """
        n = np.asarray(devices, dtype=np.float64)
        sigma2 = np.maximum(np.asarray(one_sample) / np.where(n >= 2, n, np.nan), _TINY)
        return cls.from_devices(devices, sigma2, noise, squares, square_of_sum)

    @classmethod
    def from_devices(
        cls, devices: ArrayLike, sigma2: Floats, noise: ArrayLike, squares: ArrayLike, square_of_sum: ArrayLike
    ) -> GradientStats:
        """Estimate as :meth:`from_pairs` does, from one gradient per device and a known σ².

        ``noise`` is Σ_u 1/n, with n the samples behind each gradient.
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
        return GradientStats(np.maximum(self.sigma2, _TINY), np.maximum(self.zeta2, 0.0), np.maximum(self.norm2, _TINY))

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
