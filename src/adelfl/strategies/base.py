"""What a strategy is: it knows nothing of torch, Flower or clocks, and answers three questions.

What is device u asked to do in round t, when does round t close, and how much does each device's layer count?
Every synchronous method is a deadline rule, a batch rule and a U×L matrix A:

    w^l ← w^l − η_t Σ_u A[u,l] g_u^l
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.learning_rate import LearningRate
from adelfl.planner import Constants
from adelfl.schedule import Schedule
from adelfl.theory.participation import log_p_empty

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Correction = Literal["unbiased", "none"]
AverageOver = Literal["contributors", "all"]


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a strategy may know before the first round.

    Attributes
    ----------
    fleet : Fleet
        Groups of devices; device numbers count through the groups.
    layers, rounds, budget
        L, R, T_max.
    batch : int
        The baselines' batch size S.
    learning_rate : LearningRate
        η_t.
    constants : Constants
        What the bound needs to know of the losses.
    cohort : int or None
        Devices drawn in a round; None for all.
    local_iterations : int
        E.
    """

    fleet: Fleet
    layers: int
    rounds: int
    budget: float
    batch: int
    learning_rate: LearningRate
    constants: Constants = field(default_factory=Constants)
    cohort: int | None = None
    local_iterations: int = 1

    @cached_property
    def group(self) -> Ints:
        """The group of each device, shape (N,)."""
        return np.repeat(np.arange(self.fleet.groups), self.fleet.count)

    @cached_property
    def compute(self) -> Floats:
        """P_u of each device, shape (N,)."""
        return self.fleet.compute[self.group]

    @cached_property
    def upload(self) -> Floats:
        """B_u of each device, shape (N,)."""
        return self.fleet.upload[self.group]

    @property
    def devices(self) -> int:
        """N."""
        return self.fleet.size

    @property
    def uniform_deadline(self) -> float:
        """T_max / R."""
        return self.budget / self.rounds


@dataclass(frozen=True, eq=False)
class Orders:
    """What the devices of one round are asked to do.

    Attributes
    ----------
    deadline : float
        Seconds until the round closes; infinite to wait for everybody.
    batch : ndarray of int, shape (U,)
        S_u; 0 sits the round out.
    width : ndarray, shape (U,), or None
        Share of the hidden units that the device trains (HeteroFL); None for the whole model.
    guaranteed : bool
        Everybody delivers everything, whatever its speed (the oracle).
    """

    deadline: float
    batch: Ints
    width: Floats | None = None
    guaranteed: bool = False


@dataclass(frozen=True, eq=False)
class Progress:
    """How far the devices of one round came.

    Attributes
    ----------
    z : ndarray of int, shape (U,)
        Layers finished in time, over all local iterations, from the last layer of the first iteration on.
    layers, local_iterations : int
        L, E.
    rate : ndarray, shape (U,)
        λ_u = P_u (T − B_u)/S_u; 0 for a device that sits out.
    chances : callable or None
        Gives P(device u delivers layer l), shape (U, L), where layer times are not the paper's exponential ones.
    """

    z: Ints
    layers: int
    local_iterations: int
    rate: Floats
    chances: Callable[[], Floats] | None = None

    @cached_property
    def log_p_empty(self) -> Floats:
        """log p_l, the probability that nobody delivers layer l, shape (L,)."""
        if self.chances is None:
            return log_p_empty(self.layers, self.rate)
        with np.errstate(divide="ignore"):
            found: Floats = np.log1p(-self.chances()).sum(axis=0)
        return found

    @cached_property
    def delivered(self) -> Bools:
        """Whether device u delivers layer l, shape (U, L): z_u ≥ L+1−l, in its first iteration or a later one."""
        return self.z[:, None] >= np.arange(self.layers, 0, -1)

    @cached_property
    def finished(self) -> Bools:
        """Whether device u finished all layers of all its iterations, shape (U,)."""
        return self.z >= self.layers * self.local_iterations


class Strategy(ABC):
    """A straggler method for one setting. Options are keyword arguments of ``__init__``."""

    name: ClassVar[str]

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @property
    def schedule(self) -> Schedule | None:
        """The whole plan, if there is one before the first round."""
        return None

    @property
    def label(self) -> str:
        """What reports call it, with the options that matter."""
        return self.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before the first round, a sentence each."""
        return ()

    @abstractmethod
    def orders(self, t: int, devices: Ints) -> Orders:
        """What the devices (numbers from 0) of round t (from 0) are asked to do, and when the round closes."""

    @abstractmethod
    def weights(self, t: int, progress: Progress) -> Floats:
        """A, shape (U, L): how much each device's gradient of each layer counts in the merge of round t."""


def fixed_batch(setting: Setting, devices: Ints, deadline: float) -> Ints:
    """The baselines' batch rule: S for everybody whose upload fits into the deadline."""
    return np.where(setting.upload[devices] < deadline, setting.batch, 0)


def finished_only(progress: Progress) -> Floats:
    """A[u,l] = 1[finished everything]/K, where K devices did; nothing if nobody did."""
    finished = progress.finished.astype(np.float64)
    share = finished / max(1.0, finished.sum())
    return np.repeat(share[:, None], progress.layers, axis=1)


def layerwise(progress: Progress, correction: Correction, average_over: AverageOver) -> Floats:
    """Eq. (5): A[u,l] = 1[z_u ≥ L+1−l] / (|U_l| (1 − p_l)), shared by SALF and ADEL.

    Parameters
    ----------
    progress : Progress
        Who delivered what.
    correction : {"unbiased", "none"}
        With or without the factor 1/(1 − p).
    average_over : {"contributors", "all"}
        |U_l|, or all U devices as in SALF's released code (which has no correction).
    """
    delivered = progress.delivered.astype(np.float64)
    if average_over == "all":
        over_all: Floats = delivered / progress.z.size
        return over_all
    A: Floats = delivered / np.maximum(delivered.sum(axis=0), 1.0)
    if correction == "unbiased":
        # 1 − p without cancellation. A layer that somebody delivered has p < 1; others have A = 0 anyway.
        filled = -np.expm1(progress.log_p_empty)
        A = np.where(delivered > 0, A / np.where(filled > 0, filled, 1.0), 0.0)
    return A


def check_choice(key: str, value: str, allowed: object) -> None:
    """Refuse an option that is not one of a Literal's values."""
    if value not in get_args(allowed):
        raise ConfigError(f"strategy option {key} must be one of {', '.join(get_args(allowed))}, not {value!r}")
