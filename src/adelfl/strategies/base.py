"""Base class of strategies: they react to events with actions, and do not depend on torch, Flower or clocks."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.schedule import Schedule
from adelfl.strategies.actions import Actions, Event, View

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Strategy(ABC):
    """A straggler method for one problem: events in, actions out. Options are keyword arguments of ``__init__``.

    Synchronous methods derive from :class:`~adelfl.strategies.rounds.RoundStrategy`, which answers events for them.

    Attributes
    ----------
    name : str
        Its name on the command line.
    submodels : tuple of float
        Widths of the submodels that may be assigned to devices; empty if they train the whole model.
    unhurried : bool
        Whether the method is simulated in a world where every device delivers everything by the deadline.
    clairvoyant : bool
        Whether the method is simulated in a world that cuts each batch to what its device finishes in time.
    control_variates : bool
        Whether devices correct their gradients by control variates, which they keep from one task to the next.
    simulated_only : str
        Why the method cannot run on a deployment; empty if it can.
    """

    name: ClassVar[str]
    submodels: ClassVar[tuple[float, ...]] = ()
    unhurried: ClassVar[bool] = False
    clairvoyant: ClassVar[bool] = False
    control_variates: ClassVar[bool] = False
    simulated_only: ClassVar[str] = ""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __init_subclass__(cls, **more: Any) -> None:  # noqa: ANN401 - whatever the class statement says
        super().__init_subclass__(**more)
        if "__init__" in cls.__dict__:
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]

    @property
    def options(self) -> dict[str, Any]:
        """The options that the strategy was made with, by name, without those that have their default values."""
        options: dict[str, Any] = self.__dict__.get("_options", {})
        return dict(options)

    @property
    def rounds(self) -> int:
        """Number of rounds; a strategy may choose fewer or more than the problem states."""
        return self.problem.rounds

    @property
    def most_steps(self) -> int:
        """Largest number of local iterations that may be assigned to a device."""
        return self.problem.local_iterations

    @property
    def schedule(self) -> Schedule | None:
        """The whole plan, if there is one before the first round."""
        return None

    @property
    def label(self) -> str:
        """What reports call it, with the options that matter; by default all that differ from their defaults."""
        return self.labelled([])

    def labelled(self, words: Sequence[str]) -> str:
        """Return the name, and in brackets some words and the options that these do not stand for.

        Parameters
        ----------
        words : sequence of str
            Words for ``weigh``, and for the options of the class of adelfl's own that has a ``label`` of its own.
        """
        kinds = (kind for kind in type(self).__mro__ if kind.__module__.startswith("adelfl."))
        worded = next(kind for kind in kinds if "label" in vars(kind))
        known = {*inspect.signature(worded).parameters, "weigh"}
        own = [f"{key}={_in_short(value)}" for key, value in self.options.items() if key not in known]
        return self.name + (f" ({', '.join([*words, *own])})" if words or own else "")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before the first round, a sentence each."""
        return ()

    @abstractmethod
    def react(self, view: View, event: Event) -> Actions:
        """Decide what to do when something has happened.

        Parameters
        ----------
        view : View
            Time, budget, version of the weights.
        event : Event
            What has happened.
        """


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
    """Return the arguments after ``self`` and the problem that differ from their defaults."""
    try:
        bound = signature.bind(*given, **options)
    except TypeError:  # raised again by the call itself
        return {}
    differing: dict[str, Any] = {}
    for key, value in [*bound.arguments.items()][2:]:
        parameter = signature.parameters[key]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            differing |= value
        elif not np.array_equal(value, parameter.default):
            differing[key] = value
    return differing


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
    """Refuse options that a strategy does not have."""
    try:
        inspect.signature(kind).bind(None, **options)
    except TypeError as error:
        names = list(inspect.signature(kind).parameters)[1:]
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


def check_choice(key: str, value: str, allowed: object) -> None:
    """Refuse an option that is not one of a Literal's values."""
    if value not in get_args(allowed):
        raise ConfigError(f"strategy option {key} must be one of {', '.join(get_args(allowed))}, not {value!r}")
