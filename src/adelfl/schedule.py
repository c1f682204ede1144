"""Schedules: a deadline for each round, and a batch size for each device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from adelfl.array_types import Bools, Floats, Ints
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, LatencyModel
from adelfl.theory import participation

MAX_COUNT = 2.0**53
"""Largest batch size, up to which floats represent all whole numbers."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Deadlines for R rounds and a batch rule: B3 with scale m, or one fixed size for all devices.

    Batch sizes do not exceed ``fleet.samples``.
    """

    fleet: Fleet
    """All devices, including those that sit out."""
    layers: int
    """L."""
    deadlines: Floats
    """T_t, seconds, shape (R,)."""
    m: float | Floats | None = None
    """Batch scale of rule B3, S = max(1, ⌊m P_u (T_t − B_u)/T_t⌋): one for all rounds, or one per round."""
    batch: int | None = None
    """Fixed batch size; with m, the limit of smaller batches in :func:`fitting_batch`."""
    sits_out: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Groups that the plan leaves out of every round, shape (groups,)."""
    cohort: int | None = None
    """Devices drawn in each round from the whole fleet; None for all."""
    local_iterations: int = 1
    """E: each device takes E steps a round, so P_u counts as P_u / E."""
    latency: LatencyModel = field(default_factory=Exponential)
    """Law of layer and upload times, for probabilities and depths."""

    def __post_init__(self) -> None:
        limits = self.local_iterations > 1 or bool(np.any(self.fleet.overhead_of()))
        if (self.m is None) == (self.batch is None) and not (limits and self.batch):
            raise ConfigError("a schedule needs either a batch scale m or one fixed batch size, not both")
        if self.cohort is not None and self.cohort >= self.fleet.size:
            object.__setattr__(self, "cohort", None)
        if isinstance(self.m, np.ndarray) and self.m.shape != self.deadlines.shape:
            raise ConfigError(f"a schedule of {self.rounds} rounds needs one m, or {self.rounds}, not {self.m.size}")
        if self.sits_out.size == 0:
            object.__setattr__(self, "sits_out", np.zeros(self.fleet.groups, dtype=bool))
        if self.m is not None:
            speed = self.fleet.compute / self.local_iterations
            largest = np.where(self.sits_out, 0.0, np.minimum(float(np.max(self.m)) * speed, self._most))
            if not largest.max() <= MAX_COUNT:
                i = int(np.argmax(largest))
                raise ConfigError(
                    f"{self.fleet.name(i)} would get batches of up to {largest[i]:.3g} samples, too many to count; "
                    "give less time, or state the number of samples of each device (samples)"
                )

    @classmethod
    def uniform(cls, fleet: Fleet, layers: int, rounds: int, budget: float, batch: int, **more: Any) -> Schedule:  # noqa: ANN401
        """Return the schedule of the baselines: T_max / R for every round, one batch size for all devices.

        Further fields are given by name.
        """
        return cls(fleet, layers, np.full(rounds, budget / rounds), batch=batch, **more)

    @property
    def rounds(self) -> int:
        """R."""
        return int(self.deadlines.size)

    @cached_property
    def _most(self) -> Floats:
        """Samples of each device; infinite without a bound."""
        return np.full(self.fleet.groups, np.inf) if self.fleet.samples is None else self.fleet.samples

    def batch_sizes(self, t: int | slice = slice(None), groups: Ints | None = None) -> Ints:
        """Return S_t^u of a round (from 0) or a slice of rounds, shape (groups,) or (rounds, groups).

        It is 0 where the device sits out. ``groups`` selects some groups, in their order; all by default.
        """
        chosen: Ints | slice = slice(None) if groups is None else groups
        P, B, out = self.fleet.compute[chosen], self.fleet.upload[chosen], self.sits_out[chosen]
        T = np.asarray(self.deadlines[t])[..., None]
        if self.m is None:
            sizes = np.full((*T.shape[:-1], P.size), float(self.batch or 0))
        else:
            m = np.broadcast_to(self.m, self.deadlines.shape)[t]
            samples = np.asarray(m)[..., None] * P * (T - B) / T
            sizes = fitting_batch(samples, self.fleet.overhead_of(chosen), self.local_iterations, self.batch or 0)
        return np.where((B < T) & ~out, np.minimum(sizes, self._most[chosen]), 0.0).astype(np.int64)

    def rates(self, t: int | slice = slice(None)) -> Floats:
        """Return λ_u = P_u (T_t − B_u) / S_t^u with the integer batch sizes; 0 where the device sits out.

        It is the rate in the first local iteration, from which on a layer counts as delivered.
        """
        S = self.batch_sizes(t)
        T = np.asarray(self.deadlines[t])[..., None]
        lam = self.fleet.compute * (T - self.fleet.upload) / np.maximum(S + self.fleet.overhead_of(), 1)
        return np.where(S > 0, lam, 0.0)

    def _delivered(self, t: int) -> Floats:
        """Return P(a device of group u delivers layer l in round t), shape (groups, L)."""
        S, T = self.batch_sizes(t), float(self.deadlines[t])
        mean = np.maximum(S + self.fleet.overhead_of(), 1) / self.fleet.compute
        chances = self.latency.delivery(mean, self.fleet.upload, np.full(S.shape, T), self.layers)
        return np.where((S > 0)[:, None], chances, 0.0)

    @property
    def p_empty_bound(self) -> Floats:
        """Lemma 1's bound Q(L+1−l, T_t/m)^U for rule B3 and exponential layer times, shape (R, L).

        U counts the devices with B_u < T_t. For a random cohort the bound is (1 − share (1 − Q))^cohort, with the share
        of the fleet that takes part.
        """
        if self.m is None:
            raise ConfigError("Lemma 1 bounds p_empty for batch rule B3; this schedule has one fixed batch size")
        takes_part = ~self.sits_out
        by_upload = np.argsort(self.fleet.upload[takes_part], kind="stable")
        devices = np.concatenate([[0], np.cumsum(self.fleet.count[takes_part][by_upload])])
        here = devices[np.searchsorted(self.fleet.upload[takes_part][by_upload], self.deadlines, side="left")]
        log_Q = participation.survival(self.layers, self.deadlines / self.m)[0][:, ::-1]
        if self.cohort is None:
            return np.exp(here[:, None] * log_Q)
        share = here[:, None] / self.fleet.size
        missed: Floats = (1.0 - share) + share * np.exp(log_Q)
        return missed**self.cohort

    def p_empty(self, t: int) -> Floats:
        """Return the probability that no device delivers layer l in round t (from 0), shape (L,).

        Exact if all devices take part. For a random cohort it is the value for draws with replacement, which is at
        least that without (Maclaurin's inequality) and the same for a fleet much larger than the cohort.
        """
        if isinstance(self.latency, Exponential) and self.cohort is None:
            return np.exp(participation.log_p_empty(self.layers, self.rates(t), self.fleet.count))
        missing = 1.0 - self._delivered(t)
        if self.cohort is None:
            with np.errstate(divide="ignore"):
                return np.exp(self.fleet.count @ np.log(missing))
        return ((self.fleet.count / self.fleet.size) @ missing) ** self.cohort

    def expected_depth(self, rounds: Iterable[int] | None = None) -> Floats:
        """Return the mean over the fleet of E[min(z, L)] in layers, in some rounds (from 0) or all."""
        return np.asarray(self.delivery(rounds).sum(axis=1), dtype=np.float64)

    def delivery(self, rounds: Iterable[int] | None = None) -> Floats:
        """Return the share of the fleet that delivers layer l in round t, shape (rounds, L)."""
        weight = self.fleet.count / self.fleet.size
        chosen = range(self.rounds) if rounds is None else rounds
        return np.array([weight @ self._delivered(t) for t in chosen])

    def thinned(self, groups: int) -> Schedule:
        """Return the schedule of a sample of the fleet, evenly spaced by speed, for figures and tables."""
        if self.fleet.groups <= groups:
            return self
        by_speed = np.argsort(self.fleet.compute, kind="stable")
        devices = np.cumsum(self.fleet.count[by_speed])
        places = (np.arange(groups) + 0.5) / groups * devices[-1]
        chosen, count = np.unique(by_speed[np.searchsorted(devices, places, side="right")], return_counts=True)
        kept = np.zeros(self.fleet.groups, dtype=bool)
        kept[chosen] = True
        fleet = replace(self.fleet.subset(kept), count=count.astype(np.int64))
        return replace(self, fleet=fleet, sits_out=self.sits_out[kept])

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON, without the latency model."""
        arrays = {f.name: getattr(self.fleet, f.name) for f in fields(self.fleet) if f.name != "names"}
        numbers = {key: values.tolist() for key, values in arrays.items() if values is not None}
        fleet = {key: [v if math.isfinite(v) else None for v in values] for key, values in numbers.items()}
        return {
            "layers": self.layers,
            "deadlines": self.deadlines.tolist(),
            "m": self.m.tolist() if isinstance(self.m, np.ndarray) else self.m,
            "batch": self.batch,
            "cohort": self.cohort,
            "local_iterations": self.local_iterations,
            "fleet": {"names": list(self.fleet.names)} | fleet,  # JSON has no infinity
            "sits_out": self.sits_out.tolist(),
        }


def fitting_batch(samples: Floats, overhead: Floats | float, steps: int, least: float) -> Floats:
    """Return the batch size with which ``steps`` local steps fit into the time of ``samples``.

    It is smaller by ``overhead``, the fixed cost of a step in samples. Where it would be less than ``least``, it is up
    to ``least``, and fewer steps fit. It is at least the smaller of half of ``overhead`` and ``least``: a smaller batch
    would save little time, and have much more noise.
    """
    fitting = np.maximum(samples / steps - overhead, np.minimum(samples - overhead, least))
    return np.floor(np.maximum(fitting, batch_floor(overhead, least)))


def batch_floor(overhead: Floats | float, least: float) -> Floats:
    """Return half of the fixed cost of a step in samples, but at least one sample, and at most ``least``."""
    return np.maximum(1.0, np.floor(np.minimum(0.5 * np.asarray(overhead), least)))


def round_up(value: float, digits: int = 4) -> float:
    """Round up to some significant digits, to at least a millionth above ``value``."""
    value *= 1.0 + 1e-6
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return float(f"{math.ceil(value / unit) * unit:.12g}")
