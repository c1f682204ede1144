"""Server steps: add the merged change to the weights, as in the paper, or use it as a gradient.

Reddi et al., "Adaptive federated optimization", ICLR 2021: −Δ is a pseudo-gradient for the server's own optimizer.

    sgd        w ← w + lr Δ                                              lr = 1 in the paper
    momentum   v ← β₁ v + Δ,                   w ← w + lr v              FedAvgM
    adagrad    v ← v + Δ²,                     w ← w + lr Δ/(√v + τ)
    adam       m ← β₁ m + (1−β₁) Δ,  v ← β₂ v + (1−β₂) Δ²,               w ← w + lr m/(√v + τ)
    yogi       as adam, but v ← v − (1−β₂) Δ² sign(v − Δ²)
    average    as sgd; the weights that are evaluated and returned are w̄/(1 − β₁ⁿ) after n merges,
               with  w̄ ← β₁ w̄ + (1−β₁) w

v of adagrad, adam and yogi starts at τ². The state is a dictionary of arrays, which is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from adelfl.array_types import Array as Array
from adelfl.errors import ConfigError

ServerStepName = Literal["sgd", "momentum", "adagrad", "adam", "yogi", "average"]

State = dict[str, Array]

_RATES: dict[str, float] = {"sgd": 1.0, "momentum": 1.0, "adagrad": 0.1, "adam": 0.01, "yogi": 0.01, "average": 1.0}
_AVERAGE, _COUNT = "average.", "average"


@dataclass(frozen=True)
class ServerStep:
    """A rule that moves the weights by the merged change."""

    name: ServerStepName = "sgd"
    lr: float | None = None
    """Server learning rate; None for the default of the rule."""
    beta1: float = 0.9
    """Momentum, or decay of the average."""
    beta2: float = 0.99
    """Decay of the second moment."""
    tau: float = 1e-3
    """Term that keeps the denominator above zero."""

    def __post_init__(self) -> None:
        if self.name not in get_args(ServerStepName):
            raise ConfigError(f"server_step must be one of {', '.join(get_args(ServerStepName))}, not {self.name!r}")
        for key, holds, allowed in (
            ("lr", self.lr is None or self.lr > 0, "positive"),
            ("beta1", 0 <= self.beta1 < 1, "at least 0 and below 1"),
            ("beta2", 0 <= self.beta2 < 1, "at least 0 and below 1"),
            ("tau", self.tau > 0, "positive"),
        ):
            if not holds:
                raise ConfigError(f"server step: {key} must be {allowed}, not {getattr(self, key)!r}")

    @property
    def rate(self) -> float:
        """Server learning rate."""
        return _RATES[self.name] if self.lr is None else self.lr

    def apply(self, weights: Mapping[str, Array], change: Mapping[str, Array], state: State) -> None:
        """Move weights and state in place by a merged change, Σ_u A[u,l] (w_u − w) of each delivered parameter."""
        rate, plain = self.rate, self.name in ("sgd", "average")
        for name, delta in change.items():
            step, w = delta if plain else self._direction(name, delta, state), weights[name]
            w += step if rate == 1.0 else rate * step
        if self.name == "average":
            state[_COUNT] = state.get(_COUNT, 0) + 1
            for name, w in weights.items():
                old = state.get(_AVERAGE + name, 0.0)
                state[_AVERAGE + name] = self.beta1 * old + (1.0 - self.beta1) * w

    def shown(self, weights: Mapping[str, Array], state: State) -> Mapping[str, Array]:
        """Return the weights to evaluate and to return: the iterate, or the average of the iterates."""
        if _COUNT not in state:
            return weights
        corrected = 1.0 - self.beta1 ** int(state[_COUNT])
        return {name: state[_AVERAGE + name] / corrected for name in weights}

    def _direction(self, name: str, delta: Array, state: State) -> Array:
        """Update the moments of a parameter, and return its step before multiplication by the learning rate."""
        m, v, new = f"m.{name}", f"v.{name}", 1.0 - self.beta2
        if self.name == "momentum":
            state[v] = self.beta1 * state.get(v, 0.0) + delta
            return state[v]
        square, old = delta * delta, state.get(v, self.tau**2)
        if self.name == "adagrad":
            state[v] = old + square
        elif self.name == "adam":
            state[v] = self.beta2 * old + new * delta * delta
        else:
            old = old + 0.0 * square  # an array from the first step on
            state[v] = old - new * square * ((old > square) * 1.0 - (old < square) * 1.0)
        if self.name != "adagrad":
            state[m] = delta = self.beta1 * state.get(m, 0.0) + (1.0 - self.beta1) * delta
        return delta / (state[v] ** 0.5 + self.tau)
