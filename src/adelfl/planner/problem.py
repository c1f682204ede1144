"""Problem 2 as a value: a fleet, a budget, and what the bound needs to know."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adelfl.errors import ConfigError
from adelfl.fleet import MAX_DEVICES, Fleet
from adelfl.latency import Exponential, LatencyModel
from adelfl.learning_rate import InverseDecay, LearningRate, as_learning_rate
from adelfl.theory.spread import Spread

Floats = NDArray[np.float64]

MAX_ROUNDS, MAX_LAYERS = 1_000_000, 1000
MIN_BUDGET, MIN_RUN_BUDGET, MAX_BUDGET = 1e-30, 1e-9, 1e15
MAX_BATCH, MAX_LOCAL_ITERATIONS = 1_000_000_000, 100_000
"""Limits of problems, settings and files: what exceeds them is taken for a mistake."""


@dataclass(frozen=True)
class Constants:
    """What Theorem 1 assumes of the losses (A1–A3). Only σ²/G², ρ_c and the learning rate move the plan.

    Attributes
    ----------
    sigma2 : float or tuple of float
        σ_u², variance of the gradient of one sample: one number, or one per device group.
    G2 : float or tuple of float
        G², bound on the expected squared norm of a stochastic gradient: one number as in the paper, or one per layer.
    rho_c, rho_s : float
        Strong convexity and smoothness.
    Gamma : float
        Heterogeneity gap.
    Delta1 : float
        E‖w_1 − w_opt‖².
    spread : Spread or None
        Of the gradients of each layer, which the tight objective uses; by default guessed from the others.
    """

    sigma2: float | tuple[float, ...] = 20.0
    G2: float | tuple[float, ...] = 1.5
    rho_c: float = 0.1
    rho_s: float = 1.0
    Gamma: float = 0.0
    Delta1: float = 1.0
    spread: Spread | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for key in ("sigma2", "G2", "rho_s"):
            for value in np.atleast_1d(getattr(self, key)):
                _require(key, float(value), value > 0, "positive")
        for key in ("rho_c", "Gamma", "Delta1"):
            _require(key, getattr(self, key), getattr(self, key) >= 0, "zero or positive")

    def spread_of(self, layers: int) -> Spread:
        """Of the gradients of each layer; what is not known is guessed from σ² and G²."""
        guess = Spread.guess(layers, float(np.mean(self.sigma2)), self.G2, self.rho_s)
        return guess if self.spread is None else self.spread.completed(guess).plausible()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; :meth:`from_dict` takes them back."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "spread"}
        return values | {"spread": None if self.spread is None else self.spread.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Constants:
        """Rebuild what :meth:`to_dict` wrote, before it was JSON or after."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        spread = given.pop("spread", None)
        return cls(**given, spread=None if spread is None else Spread.of(**spread))

    @classmethod
    def from_pairs(cls, differences: ArrayLike, sizes: ArrayLike, samples: int) -> Constants:
        """σ² and G² of each layer, from pairs of gradients that differ by the luck of the batch alone.

        Two gradients of n samples each have E‖g − g′‖² = 2σ²/n, so σ² = n/2 ‖g − g′‖²; G²_l is ‖(g_l + g′_l)/2‖².

        Parameters
        ----------
        differences : array_like, shape (pairs,)
            ‖g − g′‖².
        sizes : array_like, shape (pairs, L)
            ‖(g_l + g′_l)/2‖² of each layer.
        samples : int
            n.
        """
        tiny = float(np.finfo(np.float32).tiny)
        sigma2 = samples / 2.0 * float(np.mean(np.asarray(differences, dtype=np.float64)))
        G2 = np.maximum(np.mean(np.atleast_2d(np.asarray(sizes, dtype=np.float64)), axis=0), tiny)
        return cls(sigma2=max(sigma2, tiny), G2=tuple(float(v) for v in G2))


def _require(key: str, value: float, holds: bool, allowed: str) -> None:
    if not (math.isfinite(value) and holds):
        raise ConfigError(f"{key} must be {allowed}, not {value!r}")


def _require_count(key: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or not lowest <= int(value) <= highest:
        raise ConfigError(f"{key} must be a whole number from {lowest:,} to {highest:,}, not {value!r}")


def check_quantities(given: Any, batch: str, shortest: float) -> None:  # noqa: ANN401 - Problem or Setting
    """Refuse sizes, times and learning rates out of range, as the files do; a plain number becomes a constant rate.

    Parameters
    ----------
    given : Problem or Setting
        What was just made.
    batch : str
        The name of its field for the fixed batch size.
    shortest : float
        The smallest budget.
    """
    if not isinstance(given.fleet, Fleet):
        raise ConfigError(f"fleet must be a Fleet, such as Fleet.of([30, 12], count=[20, 50]), not {given.fleet!r}")
    for key, highest in (
        ("rounds", MAX_ROUNDS),
        ("layers", MAX_LAYERS),
        ("local_iterations", MAX_LOCAL_ITERATIONS),
        (batch, MAX_BATCH),
    ):
        _require_count(key, getattr(given, key), 1, highest)
    budget = given.budget
    if isinstance(budget, bool) or not isinstance(budget, Real) or not shortest <= float(budget) <= MAX_BUDGET:
        raise ConfigError(f"budget must be a number of seconds from {shortest:g} to {MAX_BUDGET:g}, not {budget!r}")
    if given.cohort is not None:
        _require_count("cohort", given.cohort, 2, MAX_DEVICES)
        if given.cohort > given.fleet.size:
            raise ConfigError(f"cohort must be at most the fleet's {given.fleet.size} devices, not {given.cohort}")
    object.__setattr__(given, "learning_rate", as_learning_rate(given.learning_rate))
    eta = np.asarray(given.eta)
    if eta.shape != (given.rounds,) or not np.all(np.isfinite(eta) & (eta > 0)):
        raise ConfigError(f"learning_rate must give {given.rounds} positive numbers, one per round")


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose deadlines T_1..T_R and a batch scale m that minimise Theorem 1's bound within a time budget.

    Attributes
    ----------
    fleet : Fleet
        The devices.
    layers : int
        L.
    rounds : int
        R.
    budget : float
        T_max, seconds.
    learning_rate : LearningRate or float
        η_t; a plain number is a constant rate.
    constants : Constants
        What the bound needs to know of the losses.
    cohort : int or None
        Devices drawn at random in each round; None for all.
    local_iterations : int
        E; the planner uses P_u / E.
    baseline_batch : int
        The fixed batch size that a plan is told apart from, in words and plots. It does not move the plan.
    latency : LatencyModel
        How long layers and uploads take; Theorem 1's plan is for the paper's exponential ones.
    """

    fleet: Fleet
    layers: int
    rounds: int
    budget: float
    learning_rate: LearningRate | float = field(default_factory=lambda: InverseDecay(0.1))
    constants: Constants = field(default_factory=Constants)
    cohort: int | None = None
    local_iterations: int = 1
    baseline_batch: int = 16
    latency: LatencyModel = field(default_factory=Exponential)

    def __post_init__(self) -> None:
        check_quantities(self, "baseline_batch", MIN_BUDGET)
        if self.fleet.size < 2:
            raise ConfigError("the fleet has one device; the bound needs at least two (its factor U/(U−1))")
        given = np.size(self.constants.sigma2)
        if given not in (1, self.fleet.groups):
            raise ConfigError(f"sigma2 must be one number or {self.fleet.groups}, one per device group, not {given}")
        given = np.size(self.constants.G2)
        if given not in (1, self.layers):
            raise ConfigError(f"G2 must be one number or {self.layers}, one per layer, not {given}")
        if self.constants.spread is not None and self.constants.spread.layers != self.layers:
            given = self.constants.spread.layers
            raise ConfigError(f"spread must be of {self.layers} layers, not {given}")
        if np.any(self.eta * self.constants.rho_c >= 1):
            raise ConfigError(
                f"learning rate times rho_c must stay below 1, not {np.max(self.eta) * self.constants.rho_c:g}; "
                "lower the initial learning rate or rho_c"
            )

    @property
    def eta(self) -> Floats:
        """η_t, shape (R,)."""
        return self.eta_of(self.rounds)

    def eta_of(self, rounds: int) -> Floats:
        """η_t of another number of rounds, shape (rounds,)."""
        return as_learning_rate(self.learning_rate).values(rounds)

    @property
    def sigma2(self) -> Floats:
        """σ_u², shape (groups,)."""
        return np.broadcast_to(np.asarray(self.constants.sigma2, dtype=np.float64), (self.fleet.groups,))

    @property
    def spread(self) -> Spread:
        """Of the gradients of each layer; what is not known is guessed."""
        return self.constants.spread_of(self.layers)

    @property
    def speed(self) -> Floats:
        """P_u / E, shape (groups,)."""
        return self.fleet.compute / self.local_iterations

    @property
    def mean_deadline(self) -> float:
        """T_max / R."""
        return self.budget / self.rounds

    def cohort_of(self, devices: int) -> int:
        """U when so many devices take part in the plan: of a cohort drawn from all, those who are expected to."""
        if self.cohort is None:
            return devices
        return max(2, int(self.cohort * devices / self.fleet.size))

    def with_budget(self, budget: float) -> Problem:
        """The same problem with another budget."""
        return replace(self, budget=budget)
