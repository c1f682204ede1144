"""Those who take part in a round, as its noise depends on them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.latency import Exponential, LatencyModel, delivery_of, for_plans
from adelfl.planner.grouping import slowest_front
from adelfl.planner.problem import Problem
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.round_noise import memory, precision, round_noise

Floats = NDArray[np.float64]
Weighting = Literal["precision", "equal"]


@dataclass(frozen=True, eq=False)
class Population:
    """Those who take part, as the noise of a round depends on them.

    Attributes
    ----------
    P, B, count : ndarray, shape (groups,)
        Speed (P_u / E: with several local iterations a device counts once it is through them all, which is exact for
        one iteration only), upload, and how many devices are alike.
    chance : ndarray, shape (groups,)
        That a device takes part in a round at all: drawn into the cohort, and there.
    layers : int
    spread : GradientStats
    memory : float
        Rounds over which a lasting bias adds up.
    latency : LatencyModel
    weighting : {"precision", "equal"}
        How those who deliver are averaged.
    samples : ndarray, shape (groups,), or None
        How many samples a device holds, which its batches do not exceed; None for no bound.
    overhead : ndarray, shape (groups,), or float
        s₀: what a step costs besides its samples.
    """

    P: Floats
    B: Floats
    count: Floats
    chance: Floats
    layers: int
    spread: GradientStats
    memory: float = 1.0
    latency: LatencyModel = field(default_factory=Exponential)
    weighting: Weighting = "precision"
    samples: Floats | None = None
    overhead: Floats | float = 0.0

    @classmethod
    def of(cls, problem: Problem, weighting: Weighting = "precision") -> Population:
        """The fleet of a problem."""
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
            weighting=weighting,
            samples=problem.fleet.samples,
            overhead=problem.fleet.overhead_of(),
        )

    def exceeds(self, T: Floats, m: float | Floats) -> bool:
        """Whether rule B3 with these deadlines and scales asks some device for more samples than it holds."""
        if self.samples is None:
            return False
        m = np.broadcast_to(m, T.shape)
        if float(m.max()) * float(np.max(self.P / self.samples)) < 1.0:
            return False
        # Batches grow with T and m: only rounds that no other one matches in both need to be looked at.
        for t in slowest_front(-m, T):
            if np.any(np.floor(m[t] * self.P * np.maximum(T[t] - self.B, 0.0) / T[t] - self.overhead) > self.samples):
                return True
        return False

    def sending_within(self, seconds: float) -> Population:
        """Those whose uploads fit; the others are in nobody's way."""
        fits = self.B < seconds
        if fits.all():
            return self
        samples = None if self.samples is None else self.samples[fits]
        P, B, count, chance = (v[fits] for v in (self.P, self.B, self.count, self.chance))
        overhead = np.broadcast_to(self.overhead, self.P.shape)[fits]
        return replace(self, P=P, B=B, count=count, chance=chance, samples=samples, overhead=overhead)

    def condensed(self, groups: int) -> Population:
        """Nearly the same population in fewer groups: near in speed, then in upload; with the mean of 1/P and of B."""
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
            found: Floats = np.bincount(label, self.count * values)[some] / n[some]
            return found

        samples = None if self.samples is None else mean(self.samples)
        P, B, chance = 1.0 / mean(1.0 / self.P), mean(self.B), mean(self.chance)
        overhead = mean(np.broadcast_to(self.overhead, self.P.shape))
        return replace(self, P=P, B=B, count=n[some], chance=chance, samples=samples, overhead=overhead)

    def noise(self, T: Floats, m: Floats, nodes: int) -> Floats:
        """N(T, m), broadcast over both; infinite where nobody's upload fits."""
        T, m = np.broadcast_arrays(T, m)
        T_, m_ = T[..., None], m[..., None]
        fits = self.B < T_
        # Half a sample less, on average, than what rule B3 rounds down.
        S = np.maximum(1.0, m_ * self.P * np.maximum(1.0 - self.B / T_, 0.0) - 0.5 - self.overhead)
        if self.samples is not None:
            S = np.minimum(S, self.samples)
        pi = (
            delivery_of(self.latency, (S + self.overhead) / self.P, self.B, T_, self.layers)
            * (self.chance * fits)[..., None]
        )
        v = precision(S, self.spread, self.memory) if self.weighting == "precision" else 1.0
        found = round_noise(pi, S, self.spread, v, self.count, nodes=nodes).total(self.memory)
        return np.where(np.isfinite(found) & fits.any(axis=-1), found, np.inf)
