"""True behaviour of the devices of a simulation, in contrast to beliefs: speeds, uploads, drift, presence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from adelfl.array_types import Bools, Floats, Ints
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, LatencyModel, of_fleet
from adelfl.seeds import rng_for
from adelfl.traces.playback import Availability, Links

_STEPS = 64  # steps of a drifting speed over the budget
_THROTTLED = 3.0  # factor by which a throttled device is slower


@dataclass(frozen=True, eq=False)
class World:
    """True behaviour of the devices. Its random draws are the same for every strategy."""

    fleet: Fleet
    """True speeds and upload times; the problem of a strategy has estimates of them."""
    seed: int
    budget: float
    """Seconds; times of changes, such as throttling, are shares of it."""
    latency: LatencyModel = field(default_factory=Exponential)
    """True latency model."""
    dropout: float = 0.0
    """Probability that a device drops out of a round without notice."""
    drift: float = 0.0
    """Standard deviation of a device's log speed, a random walk, at the end of the budget."""
    throttled: float = 0.0
    """Share of the devices that become three times slower during the run."""
    churn: float = 0.0
    """Share of the devices that leave during the run; an equal share joins during the run."""
    unhurried: bool = False
    """Whether every device delivers everything by the deadline, however slow it is; for the oracle."""
    clairvoyant: bool = False
    """Whether layer times are known beforehand and batches are cut to what fits; for the clairvoyant."""
    links: Links | None = None
    """Measured bandwidths of the uplinks; the fleet's upload times are their means."""
    availability: Availability | None = None
    """Measured availabilities. A device that is not available when a task begins or when it is done does not answer. It
    is not chosen for a cohort while enough others are available."""

    def __post_init__(self) -> None:
        spread = None if self.fleet.spread is None else self.fleet.spread[self._group]
        object.__setattr__(self, "latency", of_fleet(self.latency, spread))

    @cached_property
    def _group(self) -> Ints:
        return np.repeat(np.arange(self.fleet.groups), self.fleet.count)

    @cached_property
    def compute(self) -> Floats:
        """P_u of every device at the start."""
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
        """Changes of log speeds over the budget, shape (steps + 1, N)."""
        steps = rng_for(self.seed, "drift").standard_normal((_STEPS, self.compute.size))
        path = np.cumsum(steps * self.drift / np.sqrt(_STEPS), axis=0)
        return np.concatenate([np.zeros((1, self.compute.size)), path])

    @cached_property
    def _slow_from(self) -> Floats:
        """Time from which each device is throttled, as a share of the budget; infinite for never."""
        rng, N = rng_for(self.seed, "throttled"), self.compute.size
        moment = rng.uniform(0.2, 0.8, N)
        moment[rng.permutation(N)[round(self.throttled * N) :]] = np.inf
        return moment

    @cached_property
    def _stay(self) -> tuple[Floats, Floats]:
        """Times at which each device joins and leaves, as shares of the budget."""
        rng, N = rng_for(self.seed, "churn"), self.compute.size
        moment, order = rng.uniform(0.2, 0.8, N), rng.permutation(N)
        some = round(self.churn * N)
        leaving, joining, _ = np.split(order, [some, 2 * some])
        join, leave = np.full(N, -np.inf), np.full(N, np.inf)
        leave[leaving], join[joining] = moment[leaving], moment[joining]
        return join, leave

    def speed(self, devices: Ints, now: float) -> Floats:
        """P_u of some devices at a time."""
        P, share = self.compute[devices], now / self.budget
        if self.drift:
            P = P * np.exp(self._walk[min(_STEPS, int(share * _STEPS)), devices])
        if self.throttled:
            P = np.where(share >= self._slow_from[devices], P / _THROTTLED, P)
        return P

    def sending(self, devices: Ints, moments: Floats, amounts: Floats) -> Floats:
        """Seconds of uploads that begin at given times, shape (U, 1) or (U, K); ``amounts`` are their means."""
        return amounts if self.links is None else self.links.seconds(devices, moments, amounts)

    def lead(self, devices: Ints, moment: float, amounts: Floats) -> Floats:
        """Seconds before ``moment`` at which uploads must begin to arrive by then; ``amounts`` are their means."""
        return amounts if self.links is None else self.links.lead(devices, moment, amounts)

    def available(self, devices: Ints, now: float | Floats) -> Bools | None:
        """Return which devices are available at a time, or each at its own time; None without such data."""
        return None if self.availability is None else self.availability.at(devices, now)

    def there(self, devices: Ints, t: int, now: float) -> Bools:
        """Return which devices of a cohort take part in round t."""
        present = np.ones(devices.size, dtype=np.bool_)
        if self.dropout:
            present &= rng_for(self.seed, "dropout", t).random(devices.size) >= self.dropout
        if self.churn:
            join, leave = self._stay
            present &= (join[devices] <= now / self.budget) & (now / self.budget < leave[devices])
        available = self.available(devices, now)
        return present if available is None else present & available


def misjudged(fleet: Fleet, factor: float, each: float, seed: int) -> Fleet:
    """Return wrong speeds: all devices are ``factor`` times as fast, and each is ``each`` times faster or slower."""
    if factor == 1.0 and each == 1.0:
        return fleet
    sign = rng_for(seed, "misjudged").choice([-1.0, 1.0], fleet.groups)
    return replace(fleet, compute=fleet.compute * factor * each**sign)
