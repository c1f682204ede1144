"""Make a method, by its name, for devices that are not known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.planner import Problem
from adelfl.strategies import RoundStrategy, Strategy, find_strategy
from adelfl.strategies.base import check_options
from adelfl.strategies.deployment import Deployment
from adelfl.strategies.deployment_planner import Settings

_MOST_DEVICES, _MOST_MERGES = 100_000, 1_000_000


def deployed(name: str, options: Mapping[str, Any], settings: Settings) -> Strategy:
    """Return a synchronous method that plans with estimates of the devices, or an asynchronous one.

    ``options`` are those of the method.
    """
    kind = find_strategy(name)
    check_options(kind, options)
    own_world = kind.submodels or kind.unhurried or kind.clairvoyant or kind.control_variates
    if why := kind.simulated_only or (own_world and "it needs more than real devices can do"):
        raise ConfigError(f"method {name!r} runs in the simulator only: {why}")
    if issubclass(kind, RoundStrategy):
        return Deployment(partial(kind, **options), settings)
    if settings.local_iterations is None:
        raise ConfigError(f'method {name!r} needs a number of local_iterations, not "auto"')
    if settings.fraction < 1:
        raise ConfigError(f"method {name!r} keeps every node at work: fraction_train must be 1")
    same = {key: getattr(settings, key) for key in ("layers", "budget", "learning_rate", "batch", "local_iterations")}
    fleet = Fleet.of(1.0, 0.0, _MOST_DEVICES)  # speeds are not used
    return kind(Problem(fleet, rounds=settings.rounds or _MOST_MERGES, **same), **options)
