"""What is known of each device while training goes on.

A device that computes for s seconds on S samples finishes layers at the rate P_u/S, so the layers that came are Poisson
of mean P_u s/S (exactly for exponential layer times), and a Gamma prior stays a Gamma:

    P_u ~ Gamma(k, k/(r P_u⁰)),     P_u | rounds  ~  Gamma(k + Σ z, k/(r P_u⁰) + Σ s/S)

P_u⁰ is what was believed at first. r, how much faster the whole fleet turns out than believed, and k, how far single
devices may be off, are estimated from all devices together, so that a device that was never heard is judged by its
fleet, and a single odd round moves little. Old rounds are forgotten slowly. A device from which nothing comes where
something was due may be slow, or away: both are weighed by their probability.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_KEPT = 0.95  # of what was known, for every round that a device is asked in
_FIRM, _LOOSE = 200.0, 1.0  # k is between
_AWAY, _AWAY_WEIGHT = (
    0.02,
    3.0,
)  # how often devices are away, before anything is known, and how many rounds that is worth
_UPLOAD_WEIGHT = 1.0
_KEPT_SUMS = ("_layers", "_exposure", "_upload", "_uploads", "_away", "_asked")


class Beliefs:
    """Speeds, uploads and presence of N devices; a round costs as much as it has devices, however many there are.

    Parameters
    ----------
    compute, upload : ndarray, shape (N,)
        P_u⁰ and B_u⁰.
    variation : float
        Standard deviation of a layer's time over its mean; 1 for the paper's exponential times.
    """

    def __init__(self, compute: Floats, upload: Floats, variation: float = 1.0) -> None:
        self.first_compute, self.first_upload = compute.astype(np.float64), upload.astype(np.float64)
        self.variation2 = min(variation, 3.0) ** 2
        self._layers, self._exposure, self._upload, self._uploads, self._away, self._asked = np.zeros((6, compute.size))
        self._sums = np.zeros(7)

    def _share(self, u: Ints) -> Floats:
        """What some devices add to the sums over all: of z, of what was due, of their products, and of absences."""
        x, due = self._layers[u], self._exposure[u] * self.first_compute[u]
        terms = (x, due, x * x, x * due, due * due, self._away[u], self._asked[u])
        return np.array([term.sum() for term in terms])

    def observe(
        self,
        devices: Ints,
        batch: Ints | Floats,
        work: Floats,
        seconds: Floats,
        upload: Floats,
        through: Bools,
        silence: Floats | None = None,
    ) -> None:
        """Take one round in.

        Parameters
        ----------
        devices : ndarray of int
            Who was asked.
        batch : ndarray
            S_u, or S_u + s₀ where steps have an overhead; 0 for a device that was not asked after all.
        work : ndarray
            What came, in mean layers.
        seconds : ndarray
            How long each computed: until it was through, or until it had to send.
        upload : ndarray
            How long a whole upload took; NaN where nothing came.
        through : ndarray of bool
            Who finished everything.
        silence : ndarray, optional
            Probability that nothing comes from a device that is there; by default that of exponential times.
        """
        here = (batch > 0) & (seconds > 0)
        u, S, z, s, B = devices[here], batch[here], work[here], seconds[here], upload[here]
        exposure = s / S
        silent = z == 0
        chance = np.exp(-np.minimum(self.compute(u) * exposure, 700.0)) if silence is None else silence[here]
        away = self.away(u)
        there = np.where(silent, (1 - away) * chance / np.maximum((1 - away) * chance + away, 1e-300), 1.0)
        before = self._share(u)
        for name in _KEPT_SUMS:
            getattr(self, name)[u] *= _KEPT
        # Times that vary less than exponential ones end between two layers: half a layer is under way, on average.
        under_way = np.where(silent | through[here], 0.0, 0.5 * (1.0 - self.variation2))
        self._layers[u] += there * np.maximum(z + under_way, 0.0)
        self._exposure[u] += there * exposure
        self._away[u] += 1.0 - there
        self._asked[u] += 1.0
        sent = np.isfinite(B)
        self._upload[u[sent]] += B[sent]
        self._uploads[u[sent]] += 1.0
        self._sums += self._share(u) - before

    def take_over(self, older: Beliefs, mine: Ints, theirs: Ints) -> None:
        """Believe of some devices what was believed of them elsewhere, and why."""
        before = self._share(mine)
        for name in ("first_compute", "first_upload", *_KEPT_SUMS):
            getattr(self, name)[mine] = getattr(older, name)[theirs]
        self._sums += self._share(mine) - before

    @property
    def faster(self) -> float:
        """r: how many times faster the fleet is than was believed at first."""
        return float((1.0 + self._sums[0]) / (1.0 + self._sums[1]))

    @property
    def firmness(self) -> float:
        """k: how many layers the first belief in a device is worth, by how far devices turn out to be off."""
        _, due, xx, xd, dd, *_ = self._sums
        r = self.faster
        if dd <= 0:
            return _FIRM
        off = (xx - 2 * r * xd + r * r * dd - self.variation2 * r * due) / (r * r * dd)
        return float(1.0 / np.clip(off, 1.0 / _FIRM, 1.0 / _LOOSE))

    def compute(self, u: Ints) -> Floats:
        """P_u of some devices: the mean of what is believed."""
        k = self.firmness
        found: Floats = (k + self._layers[u]) / (k / (self.faster * self.first_compute[u]) + self._exposure[u])
        return found

    def upload(self, u: Ints) -> Floats:
        """B_u of some devices."""
        found: Floats = (_UPLOAD_WEIGHT * self.first_upload[u] + self._upload[u]) / (_UPLOAD_WEIGHT + self._uploads[u])
        return found

    def away(self, u: Ints) -> Floats:
        """Probability that each of some devices does not take part, though it was asked."""
        usual = (_AWAY * 20.0 + self._sums[5]) / (20.0 + self._sums[6])
        found: Floats = (_AWAY_WEIGHT * usual + self._away[u]) / (_AWAY_WEIGHT + self._asked[u])
        return found
