"""Simulation of runs on a virtual clock."""

from adelfl.simulation.backend import TrainingError
from adelfl.simulation.engine import check_start, simulate
from adelfl.simulation.experiment import Experiment

__all__ = ["Experiment", "TrainingError", "check_start", "simulate"]
