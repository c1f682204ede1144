"""Distributions of durations: laws with mean 1, and measured bandwidths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from scipy import special

from adelfl.array_types import Floats
from adelfl.errors import ConfigError

LawName = Literal["exponential", "constant", "shifted", "gamma", "lognormal", "samples"]


@dataclass(frozen=True)
class Law:
    """A distribution of durations with mean 1."""

    name: LawName = "exponential"
    """"shifted" is a shifted exponential law; "samples" are measured durations."""
    spread: float = 0.5
    """The shift of "shifted", between 0 and 1; the standard deviation of "gamma" and "lognormal"."""
    values: tuple[float, ...] = ()
    """Durations of "samples" in any unit; they are drawn with replacement."""

    def __post_init__(self) -> None:
        if self.name not in get_args(LawName):
            raise ConfigError(f"law must be one of {', '.join(get_args(LawName))}, not {self.name!r}")
        if self.name == "samples" and (len(self.values) < 2 or not all(v > 0 for v in self.values)):
            raise ConfigError("law 'samples' needs at least two positive durations")
        if self.name == "shifted" and not 0 <= self.spread < 1:
            raise ConfigError(f"the spread of law 'shifted' is a share between 0 and 1, not {self.spread!r}")
        if self.name in ("gamma", "lognormal") and not 0 < self.spread < 100:
            raise ConfigError(f"the spread of law {self.name!r} must be a positive number, not {self.spread!r}")

    @property
    def variation(self) -> float:
        """Standard deviation over mean."""
        if self.name == "samples":
            return float(np.std(self.values) / np.mean(self.values))
        return {"exponential": 1.0, "constant": 0.0, "shifted": 1.0 - self.spread}.get(self.name, self.spread)

    def quantile(self, level: Floats) -> Floats:
        """Return durations from uniform numbers between 0 and 1."""
        times: Floats
        if self.name == "constant":
            times = np.ones_like(level)
        elif self.name == "samples":
            ordered = np.sort(np.asarray(self.values, dtype=np.float64))
            times = ordered[np.minimum((level * ordered.size).astype(np.int64), ordered.size - 1)] / ordered.mean()
        elif self.name == "gamma":
            shape = self.spread**-2
            times = special.gammaincinv(shape, level) / shape
        elif self.name == "lognormal":
            sigma = np.sqrt(np.log1p(self.spread**2))
            times = np.exp(sigma * special.ndtri(np.maximum(level, 1e-300)) - sigma**2 / 2)
        else:
            shift = self.spread if self.name == "shifted" else 0.0
            times = shift - (1.0 - shift) * np.log1p(-level)
        return times


@dataclass(frozen=True, eq=False)
class Trace:
    """A measured bandwidth, repeated without end."""

    seconds: Floats
    rate: Floats
    """Bandwidth in any unit from each moment to the next; the last one lasts as long as the mean of the others."""

    def __post_init__(self) -> None:
        rising = self.seconds.ndim == 1 and self.seconds.size >= 2 and bool(np.all(np.diff(self.seconds) > 0))
        finite = bool(np.isfinite(self.seconds).all() and np.isfinite(self.rate).all())
        if not (rising and finite and self.rate.shape == self.seconds.shape and np.all(self.rate >= 0)):
            raise ConfigError("a bandwidth trace needs at least two increasing times, each with a rate of zero or more")
        if not np.any(self.rate > 0):
            raise ConfigError("a bandwidth trace needs a rate above zero at some time")

    @cached_property
    def _sent(self) -> tuple[Floats, Floats]:
        """Moments from 0 and the amount sent until then at a mean rate of 1, for one repetition including its end."""
        steps = np.append(np.diff(self.seconds), np.diff(self.seconds).mean())
        moments = np.concatenate([[0.0], np.cumsum(steps)])
        sent = np.concatenate([[0.0], np.cumsum(steps * self.rate)])
        return moments, sent * (moments[-1] / sent[-1])

    @property
    def length(self) -> float:
        """Seconds after which the trace repeats."""
        return float(self._sent[0][-1])

    @cached_property
    def mean_rate(self) -> float:
        """Mean bandwidth over the trace."""
        steps = np.diff(self._sent[0])
        return float(steps @ self.rate / steps.sum())

    def lead(self, amount: float, phase: float) -> float:
        """Return how long before the share ``phase`` of the trace an upload must begin to be complete by then."""
        moments, sent = self._sent
        end = phase * self.length
        laps, rest = divmod(float(np.interp(end, moments, sent)) - amount, self.length)
        return end - laps * self.length - float(np.interp(rest, sent, moments)) if amount > 0 else 0.0

    def times(self, amount: Floats, phase: Floats) -> Floats:
        """Return the durations of uploads, in seconds at the mean rate, that begin at share ``phase`` of the trace."""
        moments, sent = self._sent
        lap = moments[-1]
        begin = phase * lap
        goal = np.interp(begin, moments, sent) + amount
        laps, rest = np.divmod(goal, lap)
        seconds: Floats = laps * lap + np.interp(rest, sent, moments) - begin
        return np.where(amount > 0, np.maximum(seconds, 0.0), 0.0)
