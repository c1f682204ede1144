"""What a run on Flower is about: what was asked for, what was planned, and a round that is going on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message

from adelfl.errors import ConfigError
from adelfl.flower.protocol import Task
from adelfl.learning_rate import LearningRate
from adelfl.planner import Constants
from adelfl.strategies.rounds import Floats, Ints, Orders, RoundStrategy
from adelfl.updates import Gate, Update

METHODS = ("adel", "adel-paper", "salf", "drop", "wait")


@dataclass(frozen=True)
class Terms:
    """What the user asked for; see :class:`~adelfl.flower.server.DeadlineStrategy`."""

    budget: float
    rounds: int
    method: str
    options: Mapping[str, Any]
    batch: int
    learning_rate: LearningRate
    local_iterations: int
    constants: Constants | None
    fraction_train: float
    min_train_nodes: int
    min_available_nodes: int
    min_reports: int
    norm_limit: float
    measure_share: float
    weighted_by_key: str
    arrayrecord_key: str
    seed: int
    oversample: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS and ":" not in self.method:
            known = ", ".join(METHODS)
            raise ConfigError(f"method must be one of {known}, or package.module:Class, not {self.method!r}")
        for key, right, allowed in (
            ("rounds", self.rounds >= 1, "at least 1"),
            ("budget", math.isfinite(self.budget) and self.budget > 0, "a positive number of seconds"),
            ("batch", self.batch >= 1, "at least 1"),
            ("local_iterations", self.local_iterations >= 1, "at least 1"),
            ("min_reports", self.min_reports >= 1, "at least 1"),
            ("norm_limit", self.norm_limit > 1, "above 1"),
            ("measure_share", 0 < self.measure_share < 1, "between 0 and 1"),
            ("fraction_train", 0 < self.fraction_train <= 1, "above 0 and at most 1"),
        ):
            if not right:
                raise ConfigError(f"{key} must be {allowed}, not {getattr(self, key)!r}")

    def rate_in(self, number: int) -> float:
        """η of a round, counted from 1; of round 0 that of the first."""
        return float(self.learning_rate.values(max(1, number))[-1])


@dataclass(frozen=True)
class Rest:
    """A learning rate from a round on."""

    whole: LearningRate
    first: int

    def values(self, rounds: int) -> Floats:
        """η_t of the rounds that are left."""
        return self.whole.values(self.first + rounds)[self.first :]


@dataclass(frozen=True, eq=False)
class Plan:
    """What the method decided, from a round on."""

    strategy: RoundStrategy
    nodes: tuple[int, ...]
    first: int

    def inherit(self, older: Plan) -> None:
        """Let the method know what it had learned of the nodes that both plans know."""
        both = [(i, older.nodes.index(n)) for i, n in enumerate(self.nodes) if n in older.nodes]
        if both:
            mine, theirs = np.array(both, dtype=np.int64).T
            self.strategy.inherit(older.strategy, mine, theirs)

    def planned(self, t: int) -> float:
        """Seconds that the method meant rounds t, t+1, … to take; infinite if it does not say."""
        return self.strategy.planned(t - self.first)


@dataclass(eq=False)
class Round:
    """A round that is going on.

    Attributes
    ----------
    number : int
        From 1.
    begin, end : float
        Moments on the run's clock.
    devices : ndarray of int
        Positions in the plan of those who were asked, in ascending order.
    orders : Orders
        What for.
    tasks, guests : dict of int to Task
        By node: what counts in this round, and what is only to measure a node that nothing is known of.
    took : dict of int to tuple of float
        By node: seconds of computing, and all the rest of the round trip.
    rates : ndarray
        λ_u as it was expected when the round began; what its replies say of times comes too late for it.
    """

    number: int
    begin: float
    end: float
    devices: Ints
    orders: Orders
    gate: Gate
    tasks: dict[int, Task]
    rates: Floats
    guests: dict[int, Task]
    asked: set[int] = field(default_factory=set)
    replied: set[int] = field(default_factory=set)
    updates: list[Update] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)
    took: dict[int, tuple[float, float]] = field(default_factory=dict)
    contents: dict[int, Message] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)

    def batches(self, nodes: Iterable[int]) -> Ints:
        """What each of some nodes was asked for; 0 for one that was not."""
        return np.array([self.tasks[n].batch if n in self.tasks else 0 for n in nodes], dtype=np.int64)
