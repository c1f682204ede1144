"""What the server does with the merged change: add it, as in the paper, or treat it as a gradient.

Reddi et al., "Adaptive federated optimization", ICLR 2021: −Δ is a pseudo-gradient for the server's own optimizer.

    sgd        w ← w + lr Δ                                              lr = 1 is the paper's
    momentum   v ← β₁ v + Δ,                   w ← w + lr v              FedAvgM
    adagrad    v ← v + Δ²,                     w ← w + lr Δ/(√v + τ)
    adam       m ← β₁ m + (1−β₁) Δ,  v ← β₂ v + (1−β₂) Δ²,               w ← w + lr m/(√v + τ)
    yogi       as adam, but v ← v − (1−β₂) Δ² sign(v − Δ²)
    average    as sgd; evaluated and returned is  w̄ ← β₁ w̄ + (1−β₁) w,  divided by 1 − β₁ⁿ after n merges

v of adagrad, adam and yogi starts at τ². Works on arrays of NumPy and on tensors of torch alike. The state is a
dictionary of them, which a checkpoint keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from adelfl.errors import ConfigError

ServerStepName = Literal["sgd", "momentum", "adagrad", "adam", "yogi", "average"]

Array = Any
"""An array of NumPy or a tensor of torch."""

State = dict[str, Array]

_RATES: dict[str, float] = {"sgd": 1.0, "momentum": 1.0, "adagrad": 0.1, "adam": 0.01, "yogi": 0.01, "average": 1.0}
_AVERAGE, _COUNT = "average.", "average"


@dataclass(frozen=True)
class ServerStep:
    """One way to move the weights.

    Attributes
    ----------
    name : str
        Which one.
    lr : float or None
        Server learning rate; None for the default of the method.
    beta1, beta2, tau : float
        Momentum (and memory of the average), decay of the second moment, and the adaptivity that keeps steps finite.
    """

    name: ServerStepName = "sgd"
    lr: float | None = None
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

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
        """The server's learning rate."""
        return _RATES[self.name] if self.lr is None else self.lr

    def apply(self, weights: Mapping[str, Array], change: Mapping[str, Array], state: State) -> None:
        """Move weights in place by a merged change.

        Parameters
        ----------
        weights : mapping of str to array
            Parameters of the model; those without a change stay.
        change : mapping of str to array
            Σ_u A[u,l] (w_u − w) of each parameter that was delivered.
        state : dict of str to array
            What the step remembers; changed in place.
        """
        move, rate = _MOVES.get(self.name), self.rate
        for name, delta in change.items():
            step = delta if move is None else move(self, name, delta, state)
            w = weights[name]
            w += step if rate == 1.0 else rate * step
        if self.name == "average":
            state[_COUNT] = state.get(_COUNT, 0) + 1
            for name, w in weights.items():
                old = state.get(_AVERAGE + name, 0.0)
                state[_AVERAGE + name] = self.beta1 * old + (1.0 - self.beta1) * w

    def shown(self, weights: Mapping[str, Array], state: State) -> Mapping[str, Array]:
        """Return the weights to evaluate and to hand out: the iterate, or the average of the iterates."""
        if _COUNT not in state:
            return weights
        corrected = 1.0 - self.beta1 ** int(state[_COUNT])
        return {name: state[_AVERAGE + name] / corrected for name in weights}


def _momentum(step: ServerStep, name: str, delta: Array, state: State) -> Array:
    state[f"v.{name}"] = v = step.beta1 * state.get(f"v.{name}", 0.0) + delta
    return v


def _adagrad(step: ServerStep, name: str, delta: Array, state: State) -> Array:
    state[f"v.{name}"] = v = state.get(f"v.{name}", step.tau**2) + delta * delta
    return delta / (v**0.5 + step.tau)


def _first_moment(step: ServerStep, name: str, delta: Array, state: State) -> Array:
    state[f"m.{name}"] = m = step.beta1 * state.get(f"m.{name}", 0.0) + (1.0 - step.beta1) * delta
    return m


def _adam(step: ServerStep, name: str, delta: Array, state: State) -> Array:
    old = state.get(f"v.{name}", step.tau**2)
    state[f"v.{name}"] = v = step.beta2 * old + (1.0 - step.beta2) * delta * delta
    return _first_moment(step, name, delta, state) / (v**0.5 + step.tau)


def _yogi(step: ServerStep, name: str, delta: Array, state: State) -> Array:
    square = delta * delta
    old = state.get(f"v.{name}", 0.0 * square + step.tau**2)
    sign = (old > square) * 1.0 - (old < square) * 1.0
    state[f"v.{name}"] = v = old - (1.0 - step.beta2) * square * sign
    return _first_moment(step, name, delta, state) / (v**0.5 + step.tau)


_MOVES: dict[str, Callable[[ServerStep, str, Array, State], Array]] = {
    "momentum": _momentum,
    "adagrad": _adagrad,
    "adam": _adam,
    "yogi": _yogi,
}
