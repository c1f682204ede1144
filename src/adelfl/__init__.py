"""Train federated models before a deadline.

``adelfl.plan(problem)`` turns a fleet and a time budget into a deadline for every round and a batch size for every
device; ``adelfl.simulate(experiment)`` trains on a virtual clock. Names are loaded when they are first used, so that
``import adelfl`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adelfl.config.build import build_experiment as build_experiment
    from adelfl.config.run import load_run as load_run
    from adelfl.data import Dataset as Dataset
    from adelfl.data import load_dataset as load_dataset
    from adelfl.errors import AdelError as AdelError
    from adelfl.errors import ConfigError as ConfigError
    from adelfl.errors import InfeasibleBudgetError as InfeasibleBudgetError
    from adelfl.errors import MissingExtraError as MissingExtraError
    from adelfl.fleet import Fleet as Fleet
    from adelfl.learning_rate import ConstantRate as ConstantRate
    from adelfl.learning_rate import InverseDecay as InverseDecay
    from adelfl.planner import Constants as Constants
    from adelfl.planner import Problem as Problem
    from adelfl.planner import Solution as Solution
    from adelfl.planner import plan as plan
    from adelfl.planner import what_if as what_if
    from adelfl.records.reader import RunRecord as RunRecord
    from adelfl.report.time_series import plot as plot
    from adelfl.schedule import Schedule as Schedule
    from adelfl.simulation import Experiment as Experiment
    from adelfl.simulation import simulate as simulate
    from adelfl.strategies import Strategy as Strategy

__version__ = "0.2.0"

_HOME = {
    "AdelError": "adelfl.errors",
    "ConfigError": "adelfl.errors",
    "InfeasibleBudgetError": "adelfl.errors",
    "MissingExtraError": "adelfl.errors",
    "Fleet": "adelfl.fleet",
    "ConstantRate": "adelfl.learning_rate",
    "InverseDecay": "adelfl.learning_rate",
    "Constants": "adelfl.planner",
    "Problem": "adelfl.planner",
    "Solution": "adelfl.planner",
    "plan": "adelfl.planner",
    "what_if": "adelfl.planner",
    "Schedule": "adelfl.schedule",
    "build_experiment": "adelfl.config.build",
    "load_run": "adelfl.config.run",
    "Dataset": "adelfl.data",
    "load_dataset": "adelfl.data",
    "RunRecord": "adelfl.records.reader",
    "plot": "adelfl.report.time_series",
    "Experiment": "adelfl.simulation",
    "simulate": "adelfl.simulation",
    "Strategy": "adelfl.strategies",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    if name not in _HOME:
        raise AttributeError(f"module 'adelfl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
