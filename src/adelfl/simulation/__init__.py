"""Rounds on a virtual clock."""

from adelfl.simulation.engine import TrainingError, rehearse, simulate
from adelfl.simulation.experiment import Experiment

__all__ = ["Experiment", "TrainingError", "rehearse", "simulate"]
