"""Rounds on a virtual clock."""

from adelfl.simulation.engine import TrainingError, check_start, simulate
from adelfl.simulation.experiment import Experiment

__all__ = ["Experiment", "TrainingError", "check_start", "simulate"]
