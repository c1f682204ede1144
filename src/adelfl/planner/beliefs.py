"""Estimates of every device: speed, upload time, presence, layer times, amount of data (docs/adel.md, "Replanning").

The number of layers that a device finishes in s seconds on S samples is Poisson with mean P_u s/S (exactly for
exponential layer times), so a Gamma prior stays a Gamma:

    P_u ~ Gamma(k, k/(r P_u⁰)),     P_u | rounds  ~  Gamma(k + Σ z, k/(r P_u⁰) + Σ s/S)

P_u⁰ is the first estimate. r (how much faster the whole fleet is than first estimated) and k (how far single devices
are off) are estimated from all devices together. A device that delivers nothing is slow or absent, and both cases are
weighted by their probability.

Real devices also report durations (:class:`Timing`). The longest recent ones, with a margin, replace the mean upload.
Those of local steps give the fixed cost of a batch and the spread of layer times (:mod:`adelfl.planner.step_costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from adelfl.array_types import Bools, Floats, Ints
from adelfl.planner.step_costs import step_costs

_KEPT = 0.95  # share of older observations that is kept, per round in which a device takes part
_FIRM, _LOOSE = 200.0, 1.0  # bounds of k
_AWAY, _AWAY_WEIGHT = 0.02, 3.0  # prior probability of absence, and its weight in rounds
_UPLOAD_WEIGHT = 1.0
_SUMS = ("_layers", "_exposure", "_seconds", "_upload", "_uploads", "_away", "_included")

_MOST_DUE = 30.0  # bound of the layers expected of one device in the fleet's speed, relative to those that arrived
_REMEMBERED, _STEPS_REMEMBERED = 8, 32  # round trips per device, and tasks for the estimate of step costs
_NEW_PACE = 0.3  # weight of the newest layer times
_ODD = 3.0  # a duration this many times the next longest is an outlier
_EASING = 0.8  # shrinks the last remembered duration in each round that a device sits out
_MOST_SPREAD = 3.0  # of layer times, as their standard deviation over their mean
_MARGIN, _LEAST_MARGIN = 0.1, 0.05  # relative and in seconds, added to the longest recent duration


@dataclass(frozen=True)
class Timing:
    """Durations that a real device reports of one task."""

    setup: float
    """Seconds from the arrival of the task to the first batch."""
    outside: float
    """Seconds of the round trip that were neither set-up nor computing: dispatch, process start, transfers."""
    pace: tuple[float, ...] = ()
    """Seconds per sample of the forward pass and of each finished layer, last layer first."""
    samples: int = 0
    """Training samples that the device holds; 0 if unknown."""
    steps: tuple[float, ...] = ()
    """Complete local steps: batch size, number, mean and variance of their durations; empty if there are none."""

    @classmethod
    def of(cls, values: Sequence[Any]) -> Timing:
        """Rebuild from the values of a log; older logs lack ``steps``."""
        setup, outside, pace, samples, *steps = values
        return cls(setup, outside, tuple(pace), samples, *map(tuple, steps))


class Beliefs:
    """Estimates of N devices. The cost of a round does not depend on N.

    ``compute`` and ``upload`` are the first estimates P_u⁰ and B_u⁰, shape (N,), and ``variation`` is the standard
    deviation of a layer's time over its mean: 1 for the paper's exponential times.
    """

    def __init__(self, compute: Floats, upload: Floats, variation: float = 1.0) -> None:
        self.first_compute, self.first_upload = compute.astype(np.float64), upload.astype(np.float64)
        self.variation2 = min(variation, _MOST_SPREAD) ** 2
        self._layers, self._exposure, self._seconds, self._upload = np.zeros((4, compute.size))
        self._uploads, self._away, self._included = np.zeros((3, compute.size))
        self.overhead = np.zeros(compute.size)  # s₀ of each device, as counted in its observations
        self._sums = np.zeros(7)
        self._links: dict[int, _Link] = {}

    @property
    def size(self) -> int:
        """N."""
        return int(self.first_compute.size)

    def grow(self, size: int) -> None:
        """Add devices that resemble the median of the present ones."""
        more, everyone = size - self.size, np.arange(self.size)
        if more <= 0:
            return
        typical = [float(np.median(values(everyone))) for values in (self.compute, self.upload)]
        self.first_compute = np.append(self.first_compute, np.full(more, typical[0] / self.faster))
        self.first_upload = np.append(self.first_upload, np.full(more, typical[1]))
        self.overhead = np.append(self.overhead, np.full(more, np.median(self.overhead)))
        for name in _SUMS:
            setattr(self, name, np.append(getattr(self, name), np.zeros(more)))

    def _share(self, u: Ints) -> Floats:
        """Return the part of some devices in the sums over all devices."""
        x = self._layers[u]
        due = np.minimum(self._exposure[u] * self.first_compute[u], _MOST_DUE * (1.0 + x))
        terms = (x, due, x * x, x * due, due * due, self._away[u], self._included[u])
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
        """Update the estimates with one round.

        ``batch`` is S_u, or S_u + s₀ where steps have an overhead, and 0 for a device that sat out. ``work`` counts the
        finished layers in mean layers, and ``through`` says whether a device finished everything. ``seconds`` is its
        computing time, until it finished or had to stop, and ``upload`` the duration of a whole upload, NaN if nothing
        arrived. ``silence`` is the probability that nothing arrives from a device that is present; by default that of
        exponential times.
        """
        here = (batch > 0) & (seconds > 0)
        u, S, z, s, B = devices[here], batch[here], work[here], seconds[here], upload[here]
        exposure = s / S
        silent = z == 0
        chance = np.exp(-np.minimum(self.compute(u) * exposure, 700.0)) if silence is None else silence[here]
        away = self.away(u)
        there = np.where(silent, (1 - away) * chance / np.maximum((1 - away) * chance + away, 1e-300), 1.0)
        before = self._share(u)
        for name in _SUMS:
            getattr(self, name)[u] *= _KEPT
        # For times that vary less than exponential ones, half a layer is unfinished at the end, on average.
        under_way = np.where(silent | through[here], 0.0, 0.5 * (1.0 - self.variation2))
        self._layers[u] += there * np.maximum(z + under_way, 0.0)
        self._exposure[u] += there * exposure
        self._seconds[u] += there * s
        self._away[u] += 1.0 - there
        self._included[u] += 1.0
        sent = np.isfinite(B)
        self._upload[u[sent]] += B[sent]
        self._uploads[u[sent]] += 1.0
        self._sums += self._share(u) - before

    @property
    def faster(self) -> float:
        """r: how many times faster the fleet is than first estimated."""
        return float((1.0 + self._sums[0]) / (1.0 + self._sums[1]))

    @property
    def firmness(self) -> float:
        """k: the weight of a device's first estimate, in layers, from the errors of these estimates."""
        _, due, xx, xd, dd, *_ = self._sums
        r = self.faster
        if dd <= 0:
            return _FIRM
        off = (xx - 2 * r * xd + r * r * dd - self.variation2 * r * due) / (r * r * dd)
        return float(1.0 / np.clip(off, 1.0 / _FIRM, 1.0 / _LOOSE))

    def compute(self, u: Ints) -> Floats:
        """Return the posterior mean of P_u of some devices."""
        k = self.firmness
        return (k + self._layers[u]) / (k / (self.faster * self.first_compute[u]) + self._exposure[u])

    def upload(self, u: Ints) -> Floats:
        """Return B_u of some devices: all time of a round in which they do not compute."""
        mean: Floats = (_UPLOAD_WEIGHT * self.first_upload[u] + self._upload[u]) / (_UPLOAD_WEIGHT + self._uploads[u])
        if not self._links:
            return mean
        links = [self._links.get(int(i)) for i in u]
        return np.array([m if link is None else link.total for m, link in zip(mean, links, strict=True)])

    def away(self, u: Ints) -> Floats:
        """Return the probability that a device does not take part in a round that includes it, for some devices."""
        usual = (_AWAY * 20.0 + self._sums[5]) / (20.0 + self._sums[6])
        rate: Floats = (_AWAY_WEIGHT * usual + self._away[u]) / (_AWAY_WEIGHT + self._included[u])
        return rate

    # -- durations that real devices report

    def note(self, u: int, timing: Timing) -> None:
        """Remember the durations of one round trip."""
        self._links.setdefault(u, _Link()).add(timing)

    def rest(self, u: int) -> None:
        """Forget old durations of a device that sits out, so that a slow link does not exclude it for ever."""
        if u in self._links:
            self._links[u].ease()

    def restart(self, u: int, compute: float) -> None:
        """Replace the first estimate of a device's speed."""
        one = np.array([u])
        before = self._share(one)
        self.first_compute[u] = compute
        self._sums += self._share(one) - before

    def known(self, u: int) -> bool:
        """Return whether a device has reported durations."""
        return u in self._links

    def learn_costs(self, layers: int) -> Floats:
        """Estimate the fixed cost of a batch for every device, apply it to past work, and return the spreads."""
        links = (self._links.get(u) for u in range(self.size))
        reports = [np.array([] if link is None else link.steps).reshape(-1, 4) for link in links]
        overhead, spread = step_costs(reports, layers)
        spread = np.minimum(spread, _MOST_SPREAD)  # a single step that is interrupted for long can exceed it
        seen = self._exposure > 0
        cost = np.where(seen, self._seconds / np.where(seen, self._exposure, 1.0), np.nan)
        cost = np.where(seen, cost, np.median(cost[seen]) if seen.any() else 1.0)
        dearer = np.maximum(1.0 + (overhead - self.overhead) / cost, 1e-3)
        self._exposure /= dearer
        self.first_compute *= dearer
        self.overhead, self.variation2 = overhead, float(np.mean(spread**2))
        self._sums = self._share(np.arange(self.size))
        return spread

    def outside(self, u: Ints) -> Floats:
        """Return the seconds of a round trip that are spent outside a device, with a margin."""
        return np.array([self._links[int(i)].allowance if int(i) in self._links else self.first_upload[i] for i in u])

    def setup(self, u: Ints) -> Floats:
        """Return the longest recent set-up time of some devices."""
        return np.array([max(self._links[int(i)].setup) if int(i) in self._links else 0.0 for i in u])

    def held(self, u: Ints) -> Floats:
        """Return the samples that some devices hold; infinite where unknown."""
        return np.array([(self._links[int(i)].samples if int(i) in self._links else 0) or np.inf for i in u])

    def pace(self, u: Ints, layers: int) -> Floats:
        """Return the seconds per sample of each layer, last layer first, shape (U, L); NaN without reports."""
        pace = np.full((u.size, layers), np.nan)
        for row, i in zip(pace, u.tolist(), strict=True):
            if i in self._links and (reported := self._links[i].pace[1 : layers + 1]):
                row[: len(reported)] = reported
                row[len(reported) :] = np.nanmean(row)
        return pace


class _Link:
    """Recent durations of one real device."""

    def __init__(self) -> None:
        self.setup: list[float] = []
        self.outside: list[float] = []
        self.pace: list[float] = []
        self.samples = 0
        self.steps: list[tuple[float, ...]] = []

    def add(self, timing: Timing) -> None:
        self.setup = [*self.setup, timing.setup][-_REMEMBERED:]
        self.outside = [*self.outside, timing.outside][-_REMEMBERED:]
        self.samples = timing.samples or self.samples
        self.steps = [*self.steps, *([timing.steps] if timing.steps else [])][-_STEPS_REMEMBERED:]
        self.pace = [
            new if old is None else old if new is None else (1 - _NEW_PACE) * old + _NEW_PACE * new
            for old, new in zip_longest(self.pace, timing.pace)
        ]

    @property
    def allowance(self) -> float:
        """The longest recent time outside the device, except for one outlier, and a margin."""
        recent = sorted(self.outside, reverse=True)
        outlier = len(recent) > 2 and recent[0] > _ODD * recent[1]
        longest = recent[1] if outlier else recent[0]
        return longest + max(_LEAST_MARGIN, _MARGIN * longest)

    @property
    def total(self) -> float:
        return self.allowance + max(self.setup)

    def ease(self) -> None:
        for durations in (self.setup, self.outside):
            if len(durations) > 1:
                durations.pop(0)
            else:
                durations[0] *= _EASING
