"""Maximum-likelihood fits of latency laws to measured layer times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from adelfl.errors import ConfigError


@dataclass(frozen=True)
class FittedLaw:
    """A law with its maximum-likelihood parameters."""

    name: str
    parameters: dict[str, float]
    """``mean``; ``shift`` and ``mean``; ``shape`` and ``mean``; ``median`` and ``sigma``."""
    log_likelihood: float
    distance: float
    """Kolmogorov–Smirnov distance between measured and fitted distribution."""

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2k − 2 log likelihood; smaller is better."""
        return 2.0 * len(self.parameters) - 2.0 * self.log_likelihood


def fit_laws(times: ArrayLike) -> list[FittedLaw]:
    """Fit all laws to positive times, sorted by Akaike's criterion."""
    t = np.asarray(times, dtype=np.float64).ravel()
    if t.size < 8 or not np.all(np.isfinite(t) & (t > 0)) or np.ptp(t) == 0:
        raise ConfigError("laws are fitted to at least 8 positive times that are not all equal")
    mean, shift = float(t.mean()), float(t.min())
    shape, _, scale = (float(v) for v in stats.gamma.fit(t / mean, floc=0))
    sigma, _, median = (float(v) for v in stats.lognorm.fit(t, floc=0))
    laws = []
    for name, parameters, frozen in (
        ("exponential", {"mean": mean}, stats.expon(scale=mean)),
        ("shifted exponential", {"shift": shift, "mean": mean}, stats.expon(shift, mean - shift)),
        ("gamma", {"shape": shape, "mean": mean}, stats.gamma(shape, scale=scale * mean)),
        ("lognormal", {"median": median, "sigma": sigma}, stats.lognorm(sigma, scale=median)),
    ):
        distance = float(stats.ks_1samp(t, frozen.cdf).statistic)
        laws.append(FittedLaw(name, parameters, float(frozen.logpdf(t).sum()), distance))
    return sorted(laws, key=lambda law: law.aic)
