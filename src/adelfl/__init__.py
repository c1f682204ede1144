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

_MODULES = {
    "adelfl.config.build": ["build_experiment"],
    "adelfl.config.run": ["load_run"],
    "adelfl.data": ["Dataset", "load_dataset"],
    "adelfl.errors": ["AdelError", "ConfigError", "InfeasibleBudgetError", "MissingExtraError"],
    "adelfl.fleet": ["Fleet"],
    "adelfl.learning_rate": ["ConstantRate", "InverseDecay"],
    "adelfl.planner": ["Constants", "Problem", "Solution", "plan", "what_if"],
    "adelfl.records.reader": ["RunRecord"],
    "adelfl.report.time_series": ["plot"],
    "adelfl.schedule": ["Schedule"],
    "adelfl.simulation": ["Experiment", "simulate"],
    "adelfl.strategies": ["Strategy"],
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attributes are of any type
    if name not in _HOME:
        raise AttributeError(f"module 'adelfl' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
