"""From a fleet and a time budget to deadlines and batch sizes."""

from adelfl.planner.admit import SittingOut
from adelfl.planner.problem import Constants, Problem
from adelfl.planner.solve import Alternative, Method, Objective, Solution, plan

__all__ = ["Alternative", "Constants", "Method", "Objective", "Problem", "SittingOut", "Solution", "plan"]
