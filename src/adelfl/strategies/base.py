"""Base class of strategies: they react to events with actions, and do not depend on torch, Flower or clocks."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar, get_args

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.schedule import Schedule
from adelfl.strategies.actions import Actions, Event, View

Choice = TypeVar("Choice", bound=str)

_WORDS = {
    "average_over=all": "average over all",
    "batches=fixed": "fixed batches",
    "batches=proportional": "proportional batches",
    "correction=none": "no correction",
    "deadlines=uniform": "uniform deadlines",
    "replan=false": "no replanning",
    "weigh=equally": "equal weights",
}
"""What labels show in place of these options; other options follow as key=value."""


class Strategy(ABC):
    """A straggler method for one problem: events in, actions out. Options are keyword arguments of ``__init__``.

    Synchronous methods derive from :class:`~adelfl.strategies.rounds.RoundStrategy`, which answers events for them.
    """

    name: ClassVar[str]
    """Name on the command line."""
    submodels: ClassVar[tuple[float, ...]] = ()
    """Widths of the submodels that may be assigned to devices; empty if they train the whole model."""
    server_step: ClassVar[str] = "sgd"
    """Default server step of the method."""
    unhurried: ClassVar[bool] = False
    """Whether the method is simulated in a world where every device delivers everything by the deadline."""
    clairvoyant: ClassVar[bool] = False
    """Whether the method is simulated in a world that cuts each batch to what its device finishes in time."""
    control_variates: ClassVar[bool] = False
    """Whether devices correct their gradients by control variates, which they keep from one task to the next."""
    simulated_only: ClassVar[str] = ""
    """Why the method cannot run on a deployment; empty if it can."""

    options: dict[str, Any]
    """Options that differ from their defaults, by name."""
    schedule: Schedule | None = None
    """Plan of all rounds, if there is one before the first round."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __new__(cls, *arguments: Any, **options: Any) -> Self:  # noqa: ANN401 - as __init__ takes them
        """Note the options that differ from their defaults."""
        strategy = super().__new__(cls)
        known = inspect.signature(cls.__init__).parameters
        default = {key: parameter.default for key, parameter in known.items()}
        options |= dict(zip([*known][2:], arguments[1:], strict=False))
        names = [key for key in {**default, **options} if key in options]  # in the order of the parameters
        strategy.options = {k: options[k] for k in names if not np.array_equal(options[k], default.get(k, ...))}
        return strategy

    @property
    def rounds(self) -> int:
        """Number of rounds: that of the plan if the attribute ``schedule`` is set, otherwise that of the problem."""
        schedule: Schedule | None = vars(self).get("schedule")  # a property of this name may use ``rounds``
        return self.problem.rounds if schedule is None else schedule.rounds

    @property
    def most_steps(self) -> int:
        """Largest number of local iterations that may be assigned to a device."""
        return self.problem.local_iterations

    @property
    def label(self) -> str:
        """Name in reports, with the options that differ from their defaults, except for a given schedule."""
        options = [f"{key}={_in_short(value)}" for key, value in self.options.items() if key != "schedule"]
        words = sorted((_WORDS.get(option, option) for option in options), key=lambda word: "=" in word)
        return self.name + (f" ({', '.join(words)})" if words else "")

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user before the first round, a sentence each."""
        return ()

    @abstractmethod
    def react(self, view: View, event: Event) -> Actions:
        """Return the actions that follow an event, given the time, the budget and the version of the weights."""


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


def check_options(kind: type[Strategy], options: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that a strategy does not have."""
    try:
        inspect.signature(kind.__init__).bind(None, None, **options)
    except TypeError as error:
        names = list(inspect.signature(kind.__init__).parameters)[2:]
        known = f"its options are {', '.join(names)}" if names else "it has no options"
        raise ConfigError(f"strategy.options: {kind.name} does not take these ({error}); {known}") from None


def not_negative(key: str, value: float) -> float:
    """Return an option that must be a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"strategy option {key} must be a number that is not negative, not {value!r}")
    return float(value)


def at_least_one(key: str, value: int) -> int:
    """Return an option that must be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"strategy option {key} must be a whole number of at least 1, not {value!r}")
    return value


def check_choice(key: str, value: Choice, allowed: object) -> Choice:
    """Return an option that must be one of a Literal's values."""
    if value not in get_args(allowed):
        raise ConfigError(f"strategy option {key} must be one of {', '.join(get_args(allowed))}, not {value!r}")
    return value
