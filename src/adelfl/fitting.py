"""Which law do measured layer times follow? The paper's exponential one, or shifted exponential, gamma, lognormal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from adelfl.errors import ConfigError

Floats = NDArray[np.float64]

LAWS = ("exponential", "shifted exponential", "gamma", "lognormal")


@dataclass(frozen=True)
class Law:
    """A law with its maximum-likelihood parameters.

    Attributes
    ----------
    name : str
        One of :data:`LAWS`.
    parameters : dict of str to float
        ``mean``; ``shift`` and ``mean``; ``shape`` and ``mean``; ``median`` and ``sigma``.
    log_likelihood : float
        Of the times it was fitted to.
    distance : float
        Kolmogorov and Smirnov's: the largest difference between measured and modelled shares, between 0 and 1.
    """

    name: str
    parameters: dict[str, float]
    log_likelihood: float
    distance: float

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2k − 2 log likelihood: the smallest is the best description."""
        return 2.0 * len(self.parameters) - 2.0 * self.log_likelihood

    def quantile(self, share: ArrayLike) -> Floats:
        """The time by which a share of layers is done."""
        found: Floats = np.asarray(_frozen(self.name, self.parameters).ppf(share), dtype=np.float64)
        return found


def fit_laws(times: ArrayLike) -> list[Law]:
    """Fit all laws to positive times; the best one by Akaike's criterion first."""
    t = np.asarray(times, dtype=np.float64).ravel()
    if t.size < 8 or not np.all(np.isfinite(t) & (t > 0)) or np.ptp(t) == 0:
        raise ConfigError("laws are fitted to at least 8 positive times that are not all equal")
    mean, low, log_t = float(t.mean()), float(t.min()), np.log(t)
    found = []
    for name, parameters in (
        ("exponential", {"mean": mean}),
        ("shifted exponential", {"shift": low, "mean": mean}),
        ("gamma", {"shape": _gamma_shape(float(np.log(mean) - log_t.mean())), "mean": mean}),
        ("lognormal", {"median": float(np.exp(log_t.mean())), "sigma": float(log_t.std())}),
    ):
        law = _frozen(name, parameters)
        distance = float(stats.ks_1samp(t, law.cdf).statistic)
        found.append(Law(name, parameters, float(law.logpdf(t).sum()), distance))
    return sorted(found, key=lambda law: law.aic)


def _gamma_shape(gap: float) -> float:
    """Solve log k − ψ(k) = gap, the likelihood equation, by Newton's method from a good first guess."""
    k = (3.0 - gap + np.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap)
    for _ in range(20):
        k -= (np.log(k) - special.digamma(k) - gap) / (1.0 / k - special.polygamma(1, k))
    return float(k)


def _frozen(name: str, p: dict[str, float]) -> stats.rv_continuous:
    if name == "exponential":
        return stats.expon(scale=p["mean"])
    if name == "shifted exponential":
        return stats.expon(loc=p["shift"], scale=p["mean"] - p["shift"])
    if name == "gamma":
        return stats.gamma(p["shape"], scale=p["mean"] / p["shape"])
    return stats.lognorm(p["sigma"], scale=p["median"])
