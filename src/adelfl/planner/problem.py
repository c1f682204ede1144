"""The planning problem: a fleet, a time budget, and the constants of the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adelfl.array_types import Bools, Floats, Ints
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, LatencyModel, for_plans, of_fleet
from adelfl.learning_rate import InverseDecay, LearningRate, as_learning_rate
from adelfl.schedule import MAX_COUNT, Schedule
from adelfl.theory.gradient_stats import GradientStats

MAX_ROUNDS, MAX_LAYERS = 1_000_000, 1000
MIN_BUDGET, MIN_RUN_BUDGET, MAX_BUDGET = 1e-30, 1e-9, 1e15
MAX_BATCH, MAX_LOCAL_ITERATIONS = 1_000_000_000, 100_000
"""Limits of problems and files; values beyond them raise ConfigError."""


@dataclass(frozen=True)
class Constants:
    """Constants of the losses in Theorem 1 (A1–A3); a plan depends on σ²/G², ρ_c and the learning rate only."""

    sigma2: float | tuple[float, ...] = 20.0
    """σ_u², variance of the gradient of one sample: one number, or one per device group."""
    G2: float | tuple[float, ...] = 1.5
    """G², bound on the expected squared norm of a stochastic gradient: one number as in the paper, or one per layer."""
    rho_c: float = 0.1
    """Strong convexity."""
    rho_s: float = 1.0
    """Smoothness."""
    Gamma: float = 0.0
    """Heterogeneity gap."""
    Delta1: float = 1.0
    """E‖w_1 − w_opt‖²."""
    spread: GradientStats | None = field(default=None, compare=False)
    """Gradient statistics per layer for the tight objective; by default derived from the other constants."""

    def __post_init__(self) -> None:
        for key in ("sigma2", "G2", "rho_s"):
            for value in np.atleast_1d(getattr(self, key)):
                _require(key, float(value), value > 0, "positive")
        for key in ("rho_c", "Gamma", "Delta1"):
            _require(key, getattr(self, key), getattr(self, key) >= 0, "zero or positive")

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spread"}
        return values | {"spread": None if self.spread is None else self.spread.to_dict()}

    @classmethod
    def from_stats(cls, stats: GradientStats) -> Constants | None:
        """Return the constants that follow from gradient statistics; None if too few devices sent an update."""
        if not np.isfinite(stats.sigma2).all():
            return None
        known = stats.plausible()
        G2 = tuple((known.norm2 + known.zeta2).tolist())
        return cls(sigma2=float(known.sigma2.sum()), G2=G2, spread=stats)


def _require(key: str, value: float, holds: bool, allowed: str) -> None:
    if not (math.isfinite(value) and holds):
        raise ConfigError(f"{key} must be {allowed}, not {value!r}")


def _require_count(key: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not lowest <= int(value) <= highest:
        raise ConfigError(f"{key} must be a whole number from {lowest:,} to {highest:,}, not {value!r}")


@dataclass(frozen=True, eq=False)
class Problem:
    """Training on a fleet of devices within a time budget, as planners and strategies know it."""

    fleet: Fleet
    """Groups of devices; device numbers count through the groups."""
    layers: int
    """L."""
    rounds: int
    """R."""
    budget: float
    """T_max, seconds."""
    learning_rate: LearningRate | float = field(default_factory=lambda: InverseDecay(0.1))
    """η_t; a plain number is a constant rate."""
    constants: Constants = field(default_factory=Constants)
    cohort: int | None = None
    """Devices drawn at random in each round; None for all of them."""
    local_iterations: int = 1
    """E; the planner uses P_u / E."""
    batch: int = 16
    """Fixed batch size S of the baselines; a plan does not depend on it."""
    latency: LatencyModel = field(default_factory=Exponential)
    """Law of layer and upload times; the paper's objective assumes exponential layer times."""
    samples: ArrayLike | None = None
    """Training samples of each device, shape (N,), which its batches do not exceed; infinite where unknown. By default
    ``fleet.samples``."""

    def __post_init__(self) -> None:
        if not isinstance(self.fleet, Fleet):
            raise ConfigError(f"fleet must be a Fleet, such as Fleet.of([30, 12], count=[20, 50]), not {self.fleet!r}")
        if not isinstance(self.constants, Constants):
            raise ConfigError(f"constants must be Constants, such as Constants(G2=1.5), not {self.constants!r}")
        if not hasattr(self.latency, "delivery"):
            raise ConfigError(f'latency must be a latency model, such as Latency(Law("gamma")), not {self.latency!r}')
        counts = {"rounds": MAX_ROUNDS, "layers": MAX_LAYERS, "local_iterations": MAX_LOCAL_ITERATIONS}
        for key, highest in (counts | {"batch": MAX_BATCH}).items():
            _require_count(key, getattr(self, key), 1, highest)
        seconds: object = self.budget
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not MIN_BUDGET <= float(seconds) <= MAX_BUDGET:
            allowed = f"a number of seconds from {MIN_BUDGET:g} to {MAX_BUDGET:g}"
            raise ConfigError(f"budget must be {allowed}, not {seconds!r}")
        if self.cohort is not None:
            _require_count("cohort", self.cohort, 2, self.fleet.size)
        object.__setattr__(self, "learning_rate", as_learning_rate(self.learning_rate))
        spread = None if self.fleet.spread is None else self.fleet.spread[self.group]
        object.__setattr__(self, "latency", of_fleet(self.latency, spread))
        eta = np.asarray(self.eta)
        if eta.shape != (self.rounds,) or not np.all(np.isfinite(eta) & (eta > 0)):
            raise ConfigError(f"learning_rate must give {self.rounds} positive numbers, one per round")
        if self.samples is not None:
            held, N = np.asarray(self.samples, dtype=np.float64), self.devices
            if held.shape not in ((), (N,)) or not np.all(held >= 1):
                raise ConfigError(f"samples must be one number of at least 1, or {N} of them, one per device")

    def planned(self) -> Problem:
        """Return the problem with data bounds by group, after checking what planners need."""
        if self.fleet.size < 2:
            raise ConfigError("the fleet has one device; the bound needs at least two (its factor U/(U−1))")
        c, pull = self.constants, float(np.max(self.eta)) * self.constants.rho_c
        for key, many, what in (("sigma2", self.fleet.groups, "device group"), ("G2", self.layers, "layer")):
            if (size := np.size(getattr(c, key))) not in (1, many):
                raise ConfigError(f"{key} must be one number or {many}, one per {what}, not {size}")
        if c.spread is not None and c.spread.layers != self.layers:
            raise ConfigError(f"spread must be of {self.layers} layers, not {c.spread.layers}")
        if pull >= 1:
            advice = "lower the initial learning rate or rho_c"
            raise ConfigError(f"learning rate times rho_c must stay below 1, not {pull:g}; {advice}")
        return self if self.samples is None else replace(self, fleet=self.bounded_fleet, samples=None)

    @cached_property
    def eta(self) -> Floats:
        """η_t, shape (R,)."""
        return self.eta_of(self.rounds)

    def eta_of(self, rounds: int) -> Floats:
        """Return η_t for another number of rounds, shape (rounds,)."""
        return as_learning_rate(self.learning_rate).values(rounds)

    @cached_property
    def spread(self) -> GradientStats:
        """Gradient statistics per layer before the first round, with guesses from σ² and G² for unknown values."""
        c = self.constants
        guess = GradientStats.guess(self.layers, float(np.mean(c.sigma2)), c.G2)
        return guess if c.spread is None else c.spread.completed(guess).plausible()

    @cached_property
    def group(self) -> Ints:
        """Group of each device, shape (N,)."""
        return np.repeat(np.arange(self.fleet.groups), self.fleet.count)

    @cached_property
    def compute(self) -> Floats:
        """P_u of each device, shape (N,)."""
        return self.fleet.compute[self.group]

    @cached_property
    def upload(self) -> Floats:
        """B_u of each device, shape (N,)."""
        return self.fleet.upload[self.group]

    @cached_property
    def overhead(self) -> Floats:
        """s₀ of each device, shape (N,)."""
        return self.fleet.overhead_of(self.group)

    @cached_property
    def held(self) -> Floats | None:
        """Samples of each device, shape (N,); None without a bound."""
        if self.samples is not None:
            return np.floor(np.broadcast_to(np.asarray(self.samples, dtype=np.float64), (self.devices,)))
        return None if self.fleet.samples is None else self.fleet.samples[self.group]

    @cached_property
    def amounts(self) -> Floats | None:
        """|D_u| of each device, shape (N,); None if amounts are not known or equal (up to one sample)."""
        held = self.held
        return None if held is None or not np.isfinite(held).all() or np.ptp(held) <= 1.0 else held

    def within_data(self, batch: Floats | Ints, devices: Ints) -> Ints:
        """Cut batch sizes of some devices to their samples."""
        most = MAX_COUNT if self.held is None else np.minimum(self.held[devices], MAX_COUNT)
        return np.minimum(batch, most).astype(np.int64)

    @cached_property
    def bounded_fleet(self) -> Fleet:
        """Fleet with the samples of the device in each group that holds the most."""
        if self.held is None:
            return self.fleet
        first = np.cumsum(self.fleet.count) - self.fleet.count
        return replace(self.fleet, samples=np.maximum.reduceat(self.held, first))

    @property
    def devices(self) -> int:
        """Number of devices N."""
        return self.fleet.size

    @property
    def uniform_deadline(self) -> float:
        """T_max / R."""
        return self.budget / self.rounds

    @property
    def sigma2(self) -> Floats:
        """σ_u², shape (groups,)."""
        return np.broadcast_to(np.asarray(self.constants.sigma2, dtype=np.float64), (self.fleet.groups,))

    @property
    def speed(self) -> Floats:
        """P_u / E, shape (groups,)."""
        return self.fleet.compute / self.local_iterations

    def cohort_of(self, devices: int) -> int:
        """Return U if this many devices take part in the plan: their expected number in a cohort."""
        if self.cohort is None:
            return devices
        return max(2, int(self.cohort * devices / self.fleet.size))

    def schedule(self, T: Floats, m: float | Floats | None, sits_out: Bools, batch: int | None = None) -> Schedule:
        """Return the schedule of a plan."""
        E, latency = self.local_iterations, for_plans(self.latency)
        return Schedule(self.bounded_fleet, self.layers, T, m, batch, sits_out, self.cohort, E, latency)
