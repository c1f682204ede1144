"""What the gradients of each layer are like, and how it is estimated from a few of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_TINY = float(np.finfo(np.float32).tiny)


def curvature_of(inner: ArrayLike) -> float:
    """tr(Σ²)/tr(Σ) from the inner products of the noise of two or more devices, one sample's each, shape (n, n).

    For independent noise of covariance Σ, E⟨ξ, ξ′⟩² = tr(Σ²) and E‖ξ‖² = tr(Σ). NaN if there are fewer than two.
    """
    inner = np.asarray(inner, dtype=np.float64)
    n, own = inner.shape[0], np.diagonal(inner)
    if n < 2:
        return float("nan")
    apart = (np.square(inner).sum() - np.square(own).sum()) / (n * (n - 1))
    return float(apart / max(float(own.mean()), _TINY))


@dataclass(frozen=True, eq=False)
class GradientStats:
    """What the gradients of each layer are like: all that the noise of a round depends on, but for the fleet.

    Attributes
    ----------
    sigma2 : ndarray, shape (L,)
        σ_l², variance of the gradient of one sample within a device.
    zeta2 : ndarray, shape (L,)
        ζ_l², spread of the devices' own gradients around their mean.
    norm2 : ndarray, shape (L,)
        ‖ḡ_l‖².
    curvature : ndarray, shape (L,)
        ρ_l = tr(Σ_l²)/tr(Σ_l) of the covariance Σ_l of one sample's gradient: for a log likelihood that is the
        curvature which noise meets, since Σ is close to the Hessian (both are the Fisher information where the model
        fits).
    """

    sigma2: Floats
    zeta2: Floats
    norm2: Floats
    curvature: Floats

    @classmethod
    def from_pairs(
        cls, devices: ArrayLike, one_sample: ArrayLike, noise: ArrayLike, squares: ArrayLike, square_of_sum: ArrayLike
    ) -> GradientStats:
        """From pairs of gradients of the same device that differ by the luck of the batch alone; shapes (L,).

        Two gradients of n samples each differ by E‖g − g′‖² = 2σ²/n; their mean h = (g + g′)/2 is off by σ²/(2n), and
        the means of several devices differ by that and by ζ². All are without bias, so those of several looks can be
        averaged, and ζ² and ‖ḡ‖² may come out negative (:meth:`plausible`). Layers that fewer than two devices sent are
        NaN.

        Parameters
        ----------
        devices : array_like
            How many devices sent the layer.
        one_sample : array_like
            Σ_u n/2 ‖g_u − g_u′‖².
        noise : array_like
            Σ_u 1/(2n).
        squares, square_of_sum : array_like
            Σ_u ‖h_u‖² and ‖Σ_u h_u‖².
        """
        n = np.asarray(devices, dtype=np.float64)
        sigma2 = np.maximum(np.asarray(one_sample) / np.where(n >= 2, n, np.nan), _TINY)
        return cls.from_devices(devices, sigma2, noise, squares, square_of_sum)

    @classmethod
    def from_devices(
        cls, devices: ArrayLike, sigma2: Floats, noise: ArrayLike, squares: ArrayLike, square_of_sum: ArrayLike
    ) -> GradientStats:
        """From one gradient of each of some devices, where the variance of one sample is known; as :meth:`from_pairs`.

        ``noise`` is Σ_u of one over the samples behind each gradient.
        """
        n = np.asarray(devices, dtype=np.float64)
        seen = np.where(n >= 2, n, np.nan)
        between = np.maximum((np.asarray(squares) - np.asarray(square_of_sum) / seen) / (seen - 1.0), 0.0)
        zeta2 = between - sigma2 * np.asarray(noise) / seen
        norm2 = np.asarray(square_of_sum) / seen**2 - between / seen
        return cls(np.where(n >= 2, sigma2, np.nan), zeta2, norm2, np.full(n.shape, np.nan))

    @classmethod
    def guess(cls, layers: int, sigma2: float, G2: ArrayLike, curvature: float) -> GradientStats:
        """What the constants of Theorem 1 leave open: σ² shared out like G², equal data."""
        norm2 = np.broadcast_to(np.asarray(G2, dtype=np.float64), (layers,)).copy()
        zero = np.zeros(layers)
        return cls(sigma2 * norm2 / norm2.sum(), zero, norm2, zero + curvature)

    def to_dict(self) -> dict[str, list[float | None]]:
        """Plain values, ready for JSON, None for what is not known; ``GradientStats.of(**values)`` takes them back."""
        keys = ("sigma2", "zeta2", "norm2", "curvature")
        return {key: [None if np.isnan(v) else float(v) for v in getattr(self, key)] for key in keys}

    @classmethod
    def of(cls, sigma2: ArrayLike, zeta2: ArrayLike, norm2: ArrayLike, curvature: ArrayLike) -> GradientStats:
        """From plain values, one per layer; None for what is not known."""
        return cls(*(np.asarray(v, dtype=np.float64) for v in (sigma2, zeta2, norm2, curvature)))

    @property
    def layers(self) -> int:
        """L."""
        return int(self.sigma2.size)

    @property
    def steepness(self) -> float:
        """ρ: all layers step at once, so their curvatures add up; NaN if none is known."""
        known = self.curvature[np.isfinite(self.curvature)]
        return float(known.sum()) if known.size else float("nan")

    def plausible(self) -> GradientStats:
        """The same, where luck made a square negative: no less than nothing."""
        return GradientStats(
            np.maximum(self.sigma2, _TINY), np.maximum(self.zeta2, 0.0), np.maximum(self.norm2, _TINY), self.curvature
        )

    def completed(self, guess: GradientStats) -> GradientStats:
        """The same, with a guess in place of what is not known; the curvature may stay unknown."""

        def filled(known: Floats, guessed: Floats) -> Floats:
            return np.where(np.isfinite(known), known, guessed)

        return GradientStats(
            filled(self.sigma2, guess.sigma2),
            filled(self.zeta2, guess.zeta2),
            filled(self.norm2, guess.norm2),
            self.curvature,
        )

    def rounded(self) -> GradientStats:
        """To three digits: no more is known, and what different engines compute is the same then."""

        def three(values: Floats) -> Floats:
            return np.array([float(f"{v:.2e}") for v in values])

        return GradientStats(three(self.sigma2), three(self.zeta2), three(self.norm2), three(self.curvature))

    def mixed(self, newer: GradientStats, share: float) -> GradientStats:
        """Give newer knowledge a share. Layers of which nothing was seen (NaN) change as the others did.

        The curvature of a network grows tenfold and more while it learns, so there the newer one counts alone.
        """
        seen = np.isfinite(newer.sigma2) & (newer.sigma2 > 0) & (self.sigma2 > 0)
        moved = float(np.exp(np.mean(np.log(newer.sigma2[seen] / self.sigma2[seen])))) if seen.any() else 1.0

        def blend(old: Floats, new: Floats, share: float) -> Floats:
            found: Floats = (1.0 - share) * old + share * np.where(np.isfinite(new), new, moved * old)
            return found

        return GradientStats(
            blend(self.sigma2, newer.sigma2, share),
            blend(self.zeta2, newer.zeta2, share),
            blend(self.norm2, newer.norm2, share),
            blend(self.curvature, newer.curvature, 1.0),
        )
