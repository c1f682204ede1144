"""Groups of devices that take part in a round, and the noise of the round as a function of deadline and batch scale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from adelfl.array_types import Floats
from adelfl.latency import Exponential, LatencyModel, delivery_of, for_plans
from adelfl.planner.problem import Problem
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.round_noise import memory, precision, round_noise


@dataclass(frozen=True, eq=False)
class Population:
    """Groups of devices that take part in a round."""

    P: Floats
    """P_u / E, shape (groups,): a device counts once it has finished all local iterations, which is exact for E = 1
    only."""
    B: Floats
    """B_u, shape (groups,)."""
    count: Floats
    """Devices in each group."""
    chance: Floats
    """Probability that a device takes part in a round: it is drawn into the cohort, and available."""
    layers: int
    spread: GradientStats
    memory: float = 1.0
    """Rounds over which a lasting bias adds up."""
    latency: LatencyModel = field(default_factory=Exponential)
    samples: Floats | None = None
    """Samples that a device holds, which its batches do not exceed; None for no bound."""
    overhead: Floats | float = 0.0
    """s₀: cost of a step besides its samples."""

    @classmethod
    def of(cls, problem: Problem) -> Population:
        """Return the fleet of a problem."""
        share = 1.0 if problem.cohort is None else problem.cohort / problem.fleet.size
        return cls(
            P=problem.speed,
            B=problem.fleet.upload,
            count=problem.fleet.count.astype(np.float64),
            chance=np.full(problem.fleet.groups, share),
            layers=problem.layers,
            spread=problem.spread,
            memory=memory(problem.eta, problem.constants.rho_c),
            latency=for_plans(problem.latency),
            samples=problem.fleet.samples,
            overhead=problem.fleet.overhead_of(),
        )

    @property
    def median_upload(self) -> float:
        """Median of B_u over all devices."""
        order = np.argsort(self.B, kind="stable")
        devices = np.cumsum(self.count[order])
        return float(self.B[order][np.searchsorted(devices, 0.5 * devices[-1])])

    def sending_within(self, seconds: float) -> Population:
        """Return the devices whose upload fits into the deadline."""
        fits = self.B < seconds
        kept = {key: getattr(self, key)[fits] for key in ("P", "B", "count", "chance")}
        overhead = np.broadcast_to(self.overhead, self.P.shape)[fits]
        return replace(self, **kept, samples=None if self.samples is None else self.samples[fits], overhead=overhead)

    def condensed(self, groups: int) -> Population:
        """Return an approximation with fewer groups, similar in speed and upload, with the mean of 1/P and of B."""
        if self.P.size <= groups:
            return self
        uploads = 1 if np.ptp(self.B) == 0 else 4
        speeds = max(1, groups // uploads)
        order = np.argsort(self.P, kind="stable")
        place = np.empty_like(self.count)
        place[order] = (np.cumsum(self.count[order]) - 0.5 * self.count[order]) / self.count.sum()
        label = np.minimum((place * speeds).astype(np.int64), speeds - 1) * uploads
        if uploads > 1:
            by_upload = np.lexsort((self.B, label))
            first = np.searchsorted(label[by_upload], label[by_upload], side="left")
            size = np.searchsorted(label[by_upload], label[by_upload], side="right") - first
            label[by_upload] += (np.arange(label.size) - first) * uploads // size
        n = np.bincount(label, self.count).astype(np.float64)
        some = n > 0

        def mean(values: Floats) -> Floats:
            means: Floats = np.bincount(label, self.count * values)[some] / n[some]
            return means

        samples = None if self.samples is None else mean(self.samples)
        P, B, chance = 1.0 / mean(1.0 / self.P), mean(self.B), mean(self.chance)
        overhead = mean(np.broadcast_to(self.overhead, self.P.shape))
        return replace(self, P=P, B=B, count=n[some], chance=chance, samples=samples, overhead=overhead)

    def noise(self, T: Floats, m: Floats, nodes: int) -> Floats:
        """Return N(T, m), broadcast over both; infinite where no upload fits."""
        T, m = np.broadcast_arrays(T, m)
        T_, m_ = T[..., None], m[..., None]
        fits = self.B < T_
        # Rule B3 rounds down by half a sample on average.
        S = np.maximum(1.0, m_ * self.P * np.maximum(1.0 - self.B / T_, 0.0) - 0.5 - self.overhead)
        if self.samples is not None:
            S = np.minimum(S, self.samples)
        delivered = delivery_of(self.latency, (S + self.overhead) / self.P, self.B, T_, self.layers)
        pi = delivered * (self.chance * fits)[..., None]
        v = precision(S, self.spread, self.memory)
        total = round_noise(pi, S, self.spread, v, self.count, nodes=nodes).total(self.memory)
        return np.where(np.isfinite(total) & fits.any(axis=-1), total, np.inf)
