"""Make a method, by its name, for devices that are not known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.learning_rate import LearningRate
from adelfl.planner import Problem
from adelfl.strategies import RoundStrategy, Strategy, find_strategy
from adelfl.strategies.base import check_options
from adelfl.strategies.deployment import Deployment

_MOST_DEVICES, _MOST_MERGES = 100_000, 1_000_000


def deployed(
    name: str,
    options: Mapping[str, Any],
    *,
    layers: int,
    rounds: int | None,
    budget: float,
    learning_rate: LearningRate,
    batch: int,
    local_iterations: int | None,
    **more: Any,  # noqa: ANN401 - of Deployment
) -> Strategy:
    """Return a synchronous method that plans for the devices as they turn out, or an asynchronous one.

    Parameters
    ----------
    name, options
        The method, and its own options.
    layers, rounds, budget, learning_rate, batch, local_iterations, **more
        As for :class:`~adelfl.strategies.deployment.Deployment`.
    """
    kind = find_strategy(name)
    check_options(kind, options)
    own_world = kind.submodels or kind.unhurried or kind.clairvoyant or kind.control_variates
    if why := kind.simulated_only or (own_world and "it needs more than real devices can do"):
        raise ConfigError(f"method {name!r} runs in the simulator only: {why}")
    if not issubclass(kind, RoundStrategy):
        if local_iterations is None:
            raise ConfigError(f'method {name!r} needs a number of local_iterations, not "auto"')
        if more.get("fraction", 1.0) < 1:
            raise ConfigError(f"method {name!r} keeps every node at work: fraction_train must be 1")
        fleet, merges = Fleet.of(1.0, 0.0, _MOST_DEVICES), rounds or _MOST_MERGES  # speeds are not used
        problem = Problem(fleet, layers, merges, budget, learning_rate, batch=batch, local_iterations=local_iterations)
        return kind(problem, **options)

    def make(problem: Problem) -> RoundStrategy:
        method = kind(problem, **options)
        assert isinstance(method, RoundStrategy)
        return method

    return Deployment(
        make,
        layers=layers,
        rounds=rounds,
        budget=budget,
        learning_rate=learning_rate,
        batch=batch,
        local_iterations=local_iterations,
        **more,
    )
