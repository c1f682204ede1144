"""What a strategy is: it knows nothing of torch, Flower or clocks, and answers three questions.

What is device u asked to do in round t, when does round t close, and how much does each device's layer count?
Every synchronous method is a deadline rule, a batch rule and a U×L matrix A:

    w^l ← w^l − η_t Σ_u A[u,l] g_u^l
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.latency import Exponential, LatencyModel
from adelfl.learning_rate import LearningRate, as_learning_rate
from adelfl.planner import Constants, Problem
from adelfl.planner.problem import MIN_RUN_BUDGET, check_quantities
from adelfl.schedule import MAX_COUNT, Schedule
from adelfl.theory import tight
from adelfl.theory.participation import delivery, log_p_empty
from adelfl.theory.spread import Spread

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a strategy may know before the first round. It need not be true.

    Attributes
    ----------
    fleet : Fleet
        Groups of devices; device numbers count through the groups.
    layers, rounds, budget
        L, R, T_max.
    batch : int
        The baselines' batch size S.
    learning_rate : LearningRate or float
        η_t; a plain number is a constant rate.
    constants : Constants
        What the bound needs to know of the losses.
    cohort : int or None
        Devices drawn in a round; None for all.
    local_iterations : int
        E.
    latency : LatencyModel
        How long layers and uploads are thought to take.
    samples : array_like or None, shape (N,)
        How many training samples each device holds, infinite where that is not known: batches are no larger. By
        default what the fleet says; if that says nothing, there is no bound.
    """

    fleet: Fleet
    layers: int
    rounds: int
    budget: float
    batch: int
    learning_rate: LearningRate | float
    constants: Constants = field(default_factory=Constants)
    cohort: int | None = None
    local_iterations: int = 1
    latency: LatencyModel = field(default_factory=Exponential)
    samples: ArrayLike | None = None

    def __post_init__(self) -> None:
        check_quantities(self, "batch", MIN_RUN_BUDGET)
        if self.samples is not None:
            held = np.asarray(self.samples, dtype=np.float64)
            if held.shape not in ((), (self.devices,)) or not np.all(held >= 1):
                raise ConfigError(
                    f"samples must be one number of at least 1, or {self.devices} of them, one per device"
                )

    @cached_property
    def eta(self) -> Floats:
        """η_t, shape (R,)."""
        return self.eta_of(self.rounds)

    def eta_of(self, rounds: int) -> Floats:
        """η_t of another number of rounds, shape (rounds,)."""
        return as_learning_rate(self.learning_rate).values(rounds)

    @cached_property
    def memory(self) -> float:
        """How many rounds a lasting bias adds up over."""
        return tight.memory(self.eta, self.constants.rho_c)

    @cached_property
    def spread(self) -> Spread:
        """Of the gradients of each layer, as far as it is known before the first round."""
        return self.constants.spread_of(self.layers)

    @cached_property
    def everybody(self) -> Ints:
        """0, 1, …, N − 1; not to be changed."""
        found = np.arange(self.devices)
        found.flags.writeable = False
        return found

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

    @cached_property
    def held(self) -> Floats | None:
        """Samples that each device holds, shape (N,); None if that bounds nothing."""
        if self.samples is not None:
            return np.floor(np.broadcast_to(np.asarray(self.samples, dtype=np.float64), (self.devices,)))
        return None if self.fleet.samples is None else self.fleet.samples[self.group]

    def within_data(self, batch: Floats | Ints, devices: Ints) -> Ints:
        """Cut batch sizes of some devices to the samples that each holds."""
        held = self.held
        if held is None:
            return np.minimum(batch, MAX_COUNT).astype(np.int64)
        return np.minimum(batch, np.minimum(held[devices], MAX_COUNT)).astype(np.int64)

    @cached_property
    def bounded_fleet(self) -> Fleet:
        """The fleet with the most samples that a device of each group holds."""
        if self.held is None:
            return self.fleet
        first = np.cumsum(self.fleet.count) - self.fleet.count
        return replace(self.fleet, samples=np.maximum.reduceat(self.held, first))

    def problem(self) -> Problem:
        """What the planner is asked."""
        return Problem(
            fleet=self.bounded_fleet,
            layers=self.layers,
            rounds=self.rounds,
            budget=self.budget,
            learning_rate=self.learning_rate,
            constants=self.constants,
            cohort=self.cohort,
            local_iterations=self.local_iterations,
            baseline_batch=self.batch,
            latency=self.latency,
        )

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
        Share of the hidden units that the device trains (HeteroFL), which makes layers and uploads take width² as
        long; None for the whole model.
    guaranteed : bool
        Everybody delivers everything, whatever its speed (the oracle).
    early : bool
        Whether the round closes before its deadline when everybody has delivered everything.
    """

    deadline: float
    batch: Ints
    width: Floats | None = None
    guaranteed: bool = False
    early: bool = False


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
    batch : ndarray of int, shape (U,), or None
        S_u, as it was asked for; None if nobody cares.
    """

    z: Ints
    layers: int
    local_iterations: int
    rate: Floats
    chances: Callable[[], Floats] | None = None
    batch: Ints | None = None

    @cached_property
    def pi(self) -> Floats:
        """P(device u delivers layer l), shape (U, L)."""
        return delivery(self.layers, self.rate) if self.chances is None else self.chances()

    @cached_property
    def log_p_empty(self) -> Floats:
        """log p_l, the probability that nobody delivers layer l, shape (L,)."""
        if self.chances is None:
            return log_p_empty(self.layers, self.rate)
        with np.errstate(divide="ignore"):
            found: Floats = np.log1p(-self.pi).sum(axis=0)
        return found

    @cached_property
    def delivered(self) -> Bools:
        """Whether device u delivers layer l, shape (U, L): z_u ≥ L+1−l, in its first iteration or a later one."""
        return self.z[:, None] >= np.arange(self.layers, 0, -1)

    @cached_property
    def finished(self) -> Bools:
        """Whether device u finished all layers of all its iterations, shape (U,)."""
        return self.z >= self.layers * self.local_iterations


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a server saw of a round.

    Attributes
    ----------
    t : int
        Which round, from 0.
    devices : ndarray of int, shape (U,)
    batch, z : ndarray of int, shape (U,)
        S_u, and the layers that came.
    seconds : ndarray, shape (U,)
        How long each device computed; for one from which nothing came, how long it could have.
    upload : ndarray, shape (U,)
        How long each upload took; NaN where nothing came.
    left : float
        Seconds of the budget that are left.
    """

    t: int
    devices: Ints
    batch: Ints
    z: Ints
    seconds: Floats
    upload: Floats
    left: float


class Strategy(ABC):
    """A straggler method for one setting. Options are keyword arguments of ``__init__``."""

    name: ClassVar[str]

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __init_subclass__(cls, **more: Any) -> None:  # noqa: ANN401 - whatever the class statement says
        super().__init_subclass__(**more)
        if "__init__" in cls.__dict__:
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]

    @property
    def options(self) -> dict[str, Any]:
        """The options that the strategy was made with, by name, without those that have their default values."""
        found: dict[str, Any] = self.__dict__.get("_options", {})
        return dict(found)

    @property
    def rounds(self) -> int:
        """How many rounds there are; a strategy may choose fewer or more than it was asked for."""
        return self.setting.rounds

    @cached_property
    def learning_rates(self) -> Floats:
        """η_t of its rounds, shape (rounds,)."""
        return self.setting.eta_of(self.rounds)

    def planned(self, t: int) -> float:
        """Seconds that rounds t, t+1, … (from 0) are meant to take; infinite if nobody can say."""
        if self.schedule is not None:
            return float(self.schedule.deadlines[t:].sum())
        return self.orders(t, np.arange(1)).deadline * (self.rounds - t)

    def believed(self, devices: Ints) -> tuple[Floats, Floats]:
        """P_u and B_u of some devices, as far as the strategy knows by now."""
        return self.setting.compute[devices], self.setting.upload[devices]

    def absent(self, devices: Ints) -> Floats:
        """Probability that each of some devices does not take part though it is asked, as far as is known."""
        return np.zeros(devices.size)

    def observe(self, outcome: Outcome) -> None:  # noqa: B027 - most strategies do not care
        """Told after every round what happened in it; a strategy that learns from it overrides this."""

    def inherit(self, older: Strategy, mine: Ints, theirs: Ints) -> None:  # noqa: B027 - most have nothing to pass on
        """Take over what the strategy of an earlier plan learned; device ``mine[i]`` here was ``theirs[i]`` there."""

    def looks_at(self, t: int) -> bool:
        """Whether the strategy wants to know after round t what the gradients are like by then."""
        return False

    def learn(self, spread: Spread) -> None:  # noqa: B027 - most strategies never asked
        """Told what the gradients of that round were like; layers that nobody sent are NaN."""

    @property
    def schedule(self) -> Schedule | None:
        """The whole plan, if there is one before the first round."""
        return None

    @property
    def label(self) -> str:
        """What reports call it, with the options that matter; by default all that differ from their defaults."""
        return self.labelled([])

    def labelled(self, said: Sequence[str]) -> str:
        """Return the name, and in brackets some words and the options that no class of adelfl's own knows.

        Parameters
        ----------
        said : sequence of str
            Words for the options that the class knows.
        """
        ours = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("adelfl."))
        known = inspect.signature(ours).parameters
        own = [f"{key}={_in_short(value)}" for key, value in self.options.items() if key not in known]
        return self.name + (f" ({', '.join([*said, *own])})" if said or own else "")

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


Init = Callable[..., None]


def _remembering(init: Init) -> Init:
    """Let ``__init__`` keep the options that it is called with, in ``_options``; of several, the outermost does."""
    signature = inspect.signature(init)

    @wraps(init)
    def remember(self: Strategy, *given: Any, **options: Any) -> None:  # noqa: ANN401 - as the strategy takes them
        if "_options" not in self.__dict__:
            self.__dict__["_options"] = _differing(signature, self, *given, **options)
        init(self, *given, **options)

    return remember


def _differing(signature: inspect.Signature, *given: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the arguments after ``self`` and the setting that differ from their defaults."""
    try:
        bound = signature.bind(*given, **options)
    except TypeError:  # raised again by the call itself
        return {}
    found: dict[str, Any] = {}
    for key, value in [*bound.arguments.items()][2:]:
        parameter = signature.parameters[key]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif not np.array_equal(value, parameter.default):
            found[key] = value
    return found


def _in_short(value: object) -> str:
    """Return an option's value as words of a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_in_short, value))}]"
    plain = value is None or isinstance(value, str | int | np.integer | np.floating)
    return (str(value) if plain else type(value).__name__)[:40]


def fixed_batch(setting: Setting, devices: Ints, deadline: float, width: Floats | float = 1.0) -> Ints:
    """The baselines' batch rule: S, or all samples of a device that holds fewer; 0 if its upload does not fit.

    The upload is that of a submodel of the given width.
    """
    sizes = np.where(setting.upload[devices] * np.square(width) < deadline, setting.batch, 0)
    return setting.within_data(sizes, devices)


def check_schedule(setting: Setting, schedule: Schedule | None) -> None:
    """Refuse a given schedule that is not one, or that is for another number of local iterations."""
    if schedule is None:
        return
    if not isinstance(schedule, Schedule):
        raise ConfigError("strategy option schedule must be a Schedule; it can be given from Python only")
    if schedule.local_iterations != setting.local_iterations:
        raise ConfigError(
            f"the schedule is for {schedule.local_iterations} local iterations, the setting for "
            f"{setting.local_iterations}; plan with the same number"
        )


def check_choice(key: str, value: str, allowed: object) -> None:
    """Refuse an option that is not one of a Literal's values."""
    if value not in get_args(allowed):
        raise ConfigError(f"strategy option {key} must be one of {', '.join(get_args(allowed))}, not {value!r}")
