"""Rounds on a virtual clock."""

from adelfl.simulation.engine import Experiment, TrainingError, rehearse, simulate

__all__ = ["Experiment", "TrainingError", "rehearse", "simulate"]
