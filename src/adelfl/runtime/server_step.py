"""Server steps: add the merged change to the weights, as in the paper, or use it as a gradient.

Reddi et al., "Adaptive federated optimization", ICLR 2021: −Δ is a pseudo-gradient for the server's own optimizer.

    sgd        w ← w + lr Δ                                              lr = 1 in the paper
    momentum   v ← β₁ v + Δ,                   w ← w + lr v              FedAvgM
    adagrad    v ← v + Δ²,                     w ← w + lr Δ/(√v + τ)
    adam       m ← β₁ m + (1−β₁) Δ,  v ← β₂ v + (1−β₂) Δ²,               w ← w + lr m/(√v + τ)
    yogi       as adam, but v ← v − (1−β₂) Δ² sign(v − Δ²)
    average    as sgd; evaluated and returned is an average w̄_γ of the last iterates, or w itself

v of adagrad, adam and yogi starts at τ². The state is a dictionary of arrays, which is part of a checkpoint.

**The average.** A mean of the last iterates removes their noise, but it lags behind while the weights still move in one
direction. The changes show which effect is larger: −Δ is proportional to an estimate of the gradient at w, so Δᵀ(w − w̄)
is negative on average if the loss falls from w towards w̄, and positive if it rises. Pflug (1990, Monatshefte für
Mathematik 110) tests with such products whether SGD has become stationary. The step keeps means over about the last
1/65, 1/17, 1/5 and 1/2 of the n iterates so far, for γ = 64, 16, 4 and 1:

    w̄_γ ← w̄_γ + (γ + 1)/(n + γ) (w − w̄_γ),        s_γ ← s_γ + (Δᵀ(w − w̄_γ) − s_γ)/min(n − 1, 10)

It returns w itself if no s_γ is negative, and otherwise the shortest mean with s_γ ≤ ½ min s. Longer means gain little
more, and lag further behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from adelfl.array_types import Array as Array
from adelfl.errors import ConfigError

ServerStepName = Literal["sgd", "momentum", "adagrad", "adam", "yogi", "average"]

State = dict[str, Array]

_RATES: dict[str, float] = {"sgd": 1.0, "momentum": 1.0, "adagrad": 0.1, "adam": 0.01, "yogi": 0.01, "average": 1.0}
_DECAYS = (64, 16, 4, 1)
"""γ of each mean, the shortest one first."""
_MEMORY = 10
"""Merges in the running mean of s_γ."""
_LAG, _SLOPES, _COUNT = "lag.", "slopes", "merges"


@dataclass(frozen=True)
class ServerStep:
    """A rule that moves the weights by the merged change."""

    name: str = "sgd"
    lr: float | None = None
    """Server learning rate; None for the default of the rule."""
    beta1: float = 0.9
    """Momentum."""
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
        if self.name == "average":
            _follow(weights, change, rate, state)
        for name, delta in change.items():
            step, w = delta if plain else self._direction(name, delta, state), weights[name]
            w += step if rate == 1.0 else rate * step

    def shown(self, weights: Mapping[str, Array], state: State) -> Mapping[str, Array]:
        """Return the weights to evaluate and to return: the iterate, or an average of the iterates."""
        slopes = state.get(_SLOPES)
        if slopes is None or not slopes.min() < 0.0:
            return weights
        shortest = next(k for k, slope in enumerate(slopes) if slope <= 0.5 * slopes.min())
        return {name: w - state[_LAG + name][shortest].reshape(w.shape) for name, w in weights.items()}

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


def _follow(weights: Mapping[str, Array], change: Mapping[str, Array], rate: float, state: State) -> None:
    """Update w − w̄_γ and s_γ of each mean, for weights that are about to move by a multiple of a change."""
    n = state[_COUNT] = int(state.get(_COUNT, 0)) + 1
    keep, products = [(n - 1.0) / (n + decay) for decay in _DECAYS], 0.0
    for name, w in weights.items():
        if (lag := state.get(_LAG + name)) is None:
            lag = state[_LAG + name] = _like(w, np.zeros((len(_DECAYS), math.prod(w.shape))))
        if name in change:
            delta = change[name].reshape(-1)
            products = products + lag @ delta
            lag += delta if rate == 1.0 else rate * delta
        lag *= _like(w, np.array(keep)[:, None])
    if n > 1:
        slopes = state.get(_SLOPES, 0.0)
        state[_SLOPES] = slopes + (products - slopes) / min(n - 1, _MEMORY)


def _like(array: Array, values: NDArray[np.float64]) -> Array:
    """Return values as an array of the same kind and type as another."""
    return values.astype(array.dtype) if isinstance(array, np.ndarray) else array.new_tensor(values)
