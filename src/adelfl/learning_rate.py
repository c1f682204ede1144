"""Learning rates η_t in the rounds t = 1..R (section IV of the paper)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from adelfl.array_types import Floats
from adelfl.errors import ConfigError


@runtime_checkable
class LearningRate(Protocol):
    """A positive learning rate for every round."""

    def values(self, rounds: int) -> Floats:
        """Return η_t for t = 1..rounds."""
        ...


def _check_positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float | np.integer | np.floating) and math.isfinite(value) and value > 0):
        raise ConfigError(f"learning rate: {name} must be a positive number, not {value!r}")


def as_learning_rate(value: LearningRate | float) -> LearningRate:
    """Return a learning rate unchanged, and a number as a constant one."""
    if isinstance(value, LearningRate):
        return value
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        return ConstantRate(float(value))
    raise ConfigError(f"learning_rate must be a number or a schedule such as ConstantRate(0.1), not {value!r}")


@dataclass(frozen=True)
class InverseDecay:
    """η_t = initial / (1 + t / time_scale), with the time scale in rounds; 1 is the paper's η_0 / (1 + t)."""

    initial: float
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("initial", self.initial)
        _check_positive("time_scale", self.time_scale)

    def values(self, rounds: int) -> Floats:
        """Return η_t for t = 1..rounds."""
        t = np.arange(1, rounds + 1, dtype=np.float64)
        return self.initial / (1.0 + t / self.time_scale)


@dataclass(frozen=True)
class ConstantRate:
    """η_t = initial in every round (the paper, section IV-C)."""

    initial: float

    def __post_init__(self) -> None:
        _check_positive("initial", self.initial)

    def values(self, rounds: int) -> Floats:
        """Return η_t for t = 1..rounds."""
        return np.full(rounds, self.initial, dtype=np.float64)


def recorded_rate(value: object) -> LearningRate:
    """Return the learning rate of a record, which is a number or the text of an :class:`InverseDecay`."""
    if isinstance(value, str) and (match := re.fullmatch(r"InverseDecay\(initial=(\S+), time_scale=(\S+)\)", value)):
        return InverseDecay(*map(float, match.groups()))
    return as_learning_rate(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Rest:
    """A learning rate without its first rounds."""

    whole: LearningRate
    first: int

    def values(self, rounds: int) -> Floats:
        """Return η_t of the rounds that are left."""
        return self.whole.values(self.first + rounds)[self.first :]
