"""Rounds on a virtual clock."""

from adelfl.simulation.engine import Experiment, TrainingError, simulate

__all__ = ["Experiment", "TrainingError", "simulate"]
