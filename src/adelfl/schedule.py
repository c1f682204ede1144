"""A schedule: when each round closes, and how many samples each device takes in it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, LatencyModel
from adelfl.theory import participation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_COUNT = 2.0**53
"""A batch of more samples cannot be told from its neighbours, and is taken for a mistake."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Deadlines for R rounds and a batch rule: B3 with one scale m, or one fixed size for everybody.

    Attributes
    ----------
    fleet : Fleet
        All devices, also those that sit out.
    layers : int
        L.
    deadlines : ndarray, shape (R,)
        T_t, seconds per round.
    m : float, ndarray of shape (R,), or None
        Batch scale of rule B3, S = max(1, ⌊m P_u (T_t − B_u)/T_t⌋): one for all rounds, or one per round.
    batch : int or None
        Fixed batch size; with m and several local iterations, the batch that no step falls below as long as a device
        has the time for one such step.
    sits_out : ndarray of bool, shape (groups,)
        Groups that the plan leaves out of every round.
    cohort : int or None
        Devices drawn in a round from the whole fleet, those who sit out among them; None for all.
    local_iterations : int
        E: each device takes E steps a round, so P_u counts as P_u / E.
    latency : LatencyModel
        How long layers and uploads take; probabilities and depths are computed for it.

    Batches are no larger than the data of a device, where ``fleet.samples`` tells it.
    """

    fleet: Fleet
    layers: int
    deadlines: Floats
    m: float | Floats | None = None
    batch: int | None = None
    sits_out: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    cohort: int | None = None
    local_iterations: int = 1
    latency: LatencyModel = field(default_factory=Exponential)

    def __post_init__(self) -> None:
        if (self.m is None) == (self.batch is None) and (self.batch is None or self.local_iterations == 1):
            raise ConfigError("a schedule needs either a batch scale m or one fixed batch size, not both")
        if self.cohort is not None and self.cohort >= self.fleet.size:
            object.__setattr__(self, "cohort", None)
        if isinstance(self.m, np.ndarray) and self.m.shape != self.deadlines.shape:
            raise ConfigError(f"a schedule of {self.rounds} rounds needs one m, or {self.rounds}, not {self.m.size}")
        if self.sits_out.size == 0:
            object.__setattr__(self, "sits_out", np.zeros(self.fleet.groups, dtype=bool))
        if self.m is not None:
            largest = np.where(self.sits_out, 0.0, self._at_most(float(np.max(self.m)) * self._speed))
            if not largest.max() <= MAX_COUNT:
                i = int(np.argmax(largest))
                raise ConfigError(
                    f"{self.fleet.name(i)} would get batches of up to {largest[i]:.3g} samples, too many to count; "
                    "give less time, or say how many samples devices hold (samples)"
                )

    @classmethod
    def uniform(
        cls,
        fleet: Fleet,
        layers: int,
        rounds: int,
        budget: float,
        batch: int,
        local_iterations: int = 1,
        cohort: int | None = None,
        latency: LatencyModel | None = None,
    ) -> Schedule:
        """The baselines' schedule: T_max / R for every round, one batch size for every device."""
        deadlines, more = np.full(rounds, budget / rounds), {} if latency is None else {"latency": latency}
        return cls(fleet, layers, deadlines, batch=batch, local_iterations=local_iterations, cohort=cohort, **more)  # type: ignore[arg-type]

    @property
    def rounds(self) -> int:
        """R."""
        return int(self.deadlines.size)

    @cached_property
    def _speed(self) -> Floats:
        return self.fleet.compute / self.local_iterations

    def _at_most(self, sizes: Floats, groups: Ints | slice = slice(None)) -> Floats:
        """Cut batch sizes to the data of each device."""
        held = self.fleet.samples
        return sizes if held is None else np.minimum(sizes, held[groups])

    def batch_sizes(self, t: int | slice = slice(None), groups: Ints | None = None) -> Ints:
        """S_t^u by rule B3 (or the fixed size); 0 where the device sits out.

        Parameters
        ----------
        t : int or slice
            Round index from 0, or a slice of rounds; all rounds by default.
        groups : ndarray of int, optional
            Which groups, in which order; all by default.

        Returns
        -------
        ndarray of int, shape (groups,) or (rounds, groups)
        """
        chosen: Ints | slice = slice(None) if groups is None else groups
        P, B, out = self._speed[chosen], self.fleet.upload[chosen], self.sits_out[chosen]
        T = np.asarray(self.deadlines[t])[..., None]
        if self.m is None:
            sizes = np.full((*T.shape[:-1], P.size), float(self.batch or 0))
        else:
            m = np.broadcast_to(self.m, self.deadlines.shape)[t]
            time, s0 = np.asarray(m)[..., None] * P * (T - B) / T, self.fleet.overhead_of(chosen)
            sizes = time - s0
            if self.batch is not None:
                sizes = np.maximum(sizes, np.minimum(time * self.local_iterations - s0, self.batch))
            sizes = np.maximum(1.0, np.floor(sizes))
        return np.where((B < T) & ~out, self._at_most(sizes, chosen), 0.0).astype(np.int64)

    def rates(self, t: int | slice = slice(None)) -> Floats:
        """λ_u = P_u (T_t − B_u) / S_t^u with the integer batch sizes in force; 0 where the device sits out.

        Of the layers of its first local iteration, that is: a layer counts as delivered from then on.
        """
        S = self.batch_sizes(t)
        T = np.asarray(self.deadlines[t])[..., None]
        lam = self.fleet.compute * (T - self.fleet.upload) / np.maximum(S + self.fleet.overhead_of(), 1)
        return np.where(S > 0, lam, 0.0)

    def _delivered(self, t: int) -> Floats:
        """P(a device of group u delivers layer l in round t), shape (groups, L)."""
        if isinstance(self.latency, Exponential):
            return participation.delivery(self.layers, self.rates(t))
        S, T = self.batch_sizes(t), float(self.deadlines[t])
        mean = np.maximum(S + self.fleet.overhead_of(), 1) / self.fleet.compute
        chances = self.latency.delivery(mean, self.fleet.upload, np.full(S.shape, T), self.layers)
        return np.where((S > 0)[:, None], chances, 0.0)

    @property
    def p_empty_bound(self) -> Floats:
        """Lemma 1's bound Q(L+1−l, T_t/m)^U, shape (R, L); needs rule B3, and is for exponential layer times.

        U counts the devices that take part in the round: not those that sit out because T_t ≤ B_u. For a random cohort
        it is (1 − share (1 − Q))^cohort, with the share of the fleet that takes part.
        """
        if self.m is None:
            raise ConfigError("Lemma 1 bounds p_empty for batch rule B3; this schedule has one fixed batch size")
        takes_part = ~self.sits_out
        by_upload = np.argsort(self.fleet.upload[takes_part], kind="stable")
        devices = np.concatenate([[0], np.cumsum(self.fleet.count[takes_part][by_upload])])
        here = devices[np.searchsorted(self.fleet.upload[takes_part][by_upload], self.deadlines, side="left")]
        log_Q = participation.survival(self.layers, self.deadlines / self.m)[0][:, ::-1]
        if self.cohort is None:
            p: Floats = np.exp(here[:, None] * log_Q)
            return p
        share = here[:, None] / self.fleet.size
        missed: Floats = (1.0 - share) + share * np.exp(log_Q)
        return missed**self.cohort

    def p_empty(self, t: int) -> Floats:
        """Probability that nobody delivers layer l in round t (from 0) with these batch sizes, shape (L,).

        Exact if everybody takes part. For a cohort drawn at random it is the value for draws with replacement, which
        is at least that without (Maclaurin's inequality) and the same for a fleet much larger than the cohort.
        """
        if not isinstance(self.latency, Exponential):
            missing = 1.0 - self._delivered(t)
            if self.cohort is None:
                with np.errstate(divide="ignore"):
                    return np.asarray(np.exp(self.fleet.count @ np.log(missing)), dtype=np.float64)
            return np.asarray(((self.fleet.count / self.fleet.size) @ missing) ** self.cohort, dtype=np.float64)
        if self.cohort is None:
            return participation.p_empty(self.layers, self.rates(t), self.fleet.count)
        log_Q, _ = participation.survival(self.layers, self.rates(t))
        missed: Floats = (self.fleet.count / self.fleet.size) @ np.exp(log_Q[:, ::-1])
        return missed**self.cohort

    def expected_depth(self, rounds: Iterable[int] | None = None) -> Floats:
        """Mean over the fleet of E[min(z, L)], in layers; devices that sit out count as 0.

        Parameters
        ----------
        rounds : iterable of int, optional
            Round indices from 0; all rounds by default.
        """
        weight = self.fleet.count / self.fleet.size
        chosen = range(self.rounds) if rounds is None else rounds
        if not isinstance(self.latency, Exponential):
            return np.array([weight @ self._delivered(t).sum(axis=1) for t in chosen])
        return np.array([participation.expected_depth(self.layers, self.rates(t)) @ weight for t in chosen])

    def delivery(self, rounds: Iterable[int] | None = None) -> Floats:
        """Share of the fleet that delivers layer l in round t, shape (rounds, L)."""
        weight = self.fleet.count / self.fleet.size
        chosen = range(self.rounds) if rounds is None else rounds
        return np.array([weight @ self._delivered(t) for t in chosen])

    def thinned(self, groups: int) -> Schedule:
        """The same schedule for a sample of the fleet, evenly spaced by speed: for pictures and tables."""
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
        """Plain values, ready for JSON; :meth:`from_dict` takes them back, but for the latency model."""
        return {
            "layers": self.layers,
            "deadlines": self.deadlines.tolist(),
            "m": self.m.tolist() if isinstance(self.m, np.ndarray) else self.m,
            "batch": self.batch,
            "cohort": self.cohort,
            "local_iterations": self.local_iterations,
            "fleet": {
                "compute": self.fleet.compute.tolist(),
                "upload": self.fleet.upload.tolist(),
                "count": self.fleet.count.tolist(),
                "names": list(self.fleet.names),
                **({} if self.fleet.samples is None else {"samples": _finite_or_none(self.fleet.samples)}),
                **({} if self.fleet.overhead is None else {"overhead": self.fleet.overhead.tolist()}),
                **({} if self.fleet.spread is None else {"spread": self.fleet.spread.tolist()}),
            },
            "sits_out": self.sits_out.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Schedule:
        """Rebuild what :meth:`to_dict` wrote."""
        fleet = dict(values["fleet"])
        if fleet.get("samples") is not None:
            fleet["samples"] = [math.inf if held is None else held for held in fleet["samples"]]
        return cls(
            fleet=Fleet.of(**fleet),
            layers=values["layers"],
            deadlines=np.asarray(values["deadlines"], dtype=np.float64),
            m=np.asarray(values["m"], dtype=np.float64) if isinstance(values["m"], list) else values["m"],
            batch=values["batch"],
            sits_out=np.asarray(values["sits_out"], dtype=bool),
            cohort=values["cohort"],
            local_iterations=values["local_iterations"],
        )


def _finite_or_none(values: Floats) -> list[float | None]:
    """Numbers ready for JSON, which knows no infinity."""
    return [float(v) if math.isfinite(v) else None for v in values]


def round_up(value: float, digits: int = 4) -> float:
    """The next number of so many significant digits, at least a millionth above ``value``."""
    value *= 1.0 + 1e-6
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return float(f"{math.ceil(value / unit) * unit:.12g}")
