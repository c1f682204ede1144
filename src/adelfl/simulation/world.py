"""The devices of a simulation as they are, not as strategies believe them to be: speeds, uploads, drift, presence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from adelfl.array_types import Bools, Floats, Ints
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, LatencyModel, of_fleet
from adelfl.seeds import rng_for
from adelfl.traces.playback import Availability, Links

_STEPS = 64  # of a path, over the whole budget
_THROTTLED = 3.0  # times slower


@dataclass(frozen=True, eq=False)
class World:
    """The devices as they are. All that is drawn here is the same for every strategy."""

    fleet: Fleet
    """Real speeds and upload times; the problem of a strategy has estimates of them."""
    seed: int
    budget: float
    """Seconds; times of changes, such as throttling, are given as shares of it."""
    latency: LatencyModel = field(default_factory=Exponential)
    """How long layers and uploads really take."""
    dropout: float = 0.0
    """Probability that a device drops out of a round, unseen."""
    drift: float = 0.0
    """Standard deviation of a device's log speed at the end of the budget, where it walks at random."""
    throttled: float = 0.0
    """Share of the devices that become three times slower at some moment."""
    churn: float = 0.0
    """Share of the devices that leave for good at some moment; as many again come only at some moment."""
    unhurried: bool = False
    """Whether every device delivers everything by the deadline, however slow it is: the world of the oracle."""
    clairvoyant: bool = False
    """Whether layer times are known beforehand, and batches cut to what fits: the world of the clairvoyant."""
    links: Links | None = None
    """Measured bandwidths of the uplinks; the fleet's upload times are then their means."""
    availability: Availability | None = None
    """Measured availabilities. A device that is not available when a task begins or when it is done does not answer. It
    is no part of a cohort as long as enough others are available."""

    def __post_init__(self) -> None:
        spread = None if self.fleet.spread is None else self.fleet.spread[self._group]
        object.__setattr__(self, "latency", of_fleet(self.latency, spread))

    @cached_property
    def _group(self) -> Ints:
        return np.repeat(np.arange(self.fleet.groups), self.fleet.count)

    @cached_property
    def compute(self) -> Floats:
        """P_u of every device at first."""
        return self.fleet.compute[self._group]

    @cached_property
    def upload(self) -> Floats:
        """B_u of every device."""
        return self.fleet.upload[self._group]

    @cached_property
    def overhead(self) -> Floats:
        """s₀ of every device."""
        return self.fleet.overhead_of(self._group)

    @cached_property
    def _walk(self) -> Floats:
        """Log speeds over the budget, shape (steps + 1, N)."""
        steps = rng_for(self.seed, "drift").standard_normal((_STEPS, self.compute.size))
        path = np.cumsum(steps * self.drift / np.sqrt(_STEPS), axis=0)
        return np.concatenate([np.zeros((1, self.compute.size)), path])

    @cached_property
    def _slow_from(self) -> Floats:
        """The moment from which each device is throttled, as a share of the budget; infinite for most."""
        rng, N = rng_for(self.seed, "throttled"), self.compute.size
        moment = rng.uniform(0.2, 0.8, N)
        moment[rng.permutation(N)[round(self.throttled * N) :]] = np.inf
        return moment

    @cached_property
    def _stay(self) -> tuple[Floats, Floats]:
        """Each device is there between two moments."""
        rng, N = rng_for(self.seed, "churn"), self.compute.size
        moment, order = rng.uniform(0.2, 0.8, N), rng.permutation(N)
        some = round(self.churn * N)
        come, leave = np.full(N, -np.inf), np.full(N, np.inf)
        leave[order[:some]] = moment[order[:some]]
        come[order[some : 2 * some]] = moment[order[some : 2 * some]]
        return come, leave

    def speed(self, devices: Ints, now: float) -> Floats:
        """P_u at a moment of the run."""
        P, share = self.compute[devices], now / self.budget
        if self.drift:
            P = P * np.exp(self._walk[min(_STEPS, int(share * _STEPS)), devices])
        if self.throttled:
            P = np.where(share >= self._slow_from[devices], P / _THROTTLED, P)
        return P

    def sending(self, devices: Ints, moments: Floats, amounts: Floats) -> Floats:
        """Seconds of uploads that begin at some moments, shape (U, 1) or (U, K); ``amounts`` are their means."""
        return amounts if self.links is None else self.links.seconds(devices, moments, amounts)

    def lead(self, devices: Ints, moment: float, amounts: Floats) -> Floats:
        """Seconds before a moment at which uploads must begin to be in by then; ``amounts`` are their means."""
        return amounts if self.links is None else self.links.lead(devices, moment, amounts)

    def available(self, devices: Ints, now: float | Floats) -> Bools | None:
        """Return which devices are available at a time, common or one per device; None if that is not known."""
        return None if self.availability is None else self.availability.at(devices, now)

    def there(self, devices: Ints, t: int, now: float) -> Bools:
        """Return which devices of a cohort take part in the round; strategies do not know it beforehand."""
        present = np.ones(devices.size, dtype=np.bool_)
        if self.dropout:
            present &= rng_for(self.seed, "dropout", t).random(devices.size) >= self.dropout
        if self.churn:
            come, leave = self._stay
            present &= (come[devices] <= now / self.budget) & (now / self.budget < leave[devices])
        available = self.available(devices, now)
        return present if available is None else present & available


def misjudged(fleet: Fleet, factor: float, each: float, seed: int) -> Fleet:
    """Return wrong estimates: all devices ``factor`` times as fast, and each ``each`` times faster or slower."""
    if factor == 1.0 and each == 1.0:
        return fleet
    sign = rng_for(seed, "misjudged").choice([-1.0, 1.0], fleet.groups)
    return replace(fleet, compute=fleet.compute * factor * each**sign)
