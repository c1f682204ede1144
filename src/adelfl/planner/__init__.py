"""Plans of deadlines and batch sizes for a fleet and a time budget."""

from adelfl.planner.problem import Constants, Problem
from adelfl.planner.solution import Alternative, Method, Objective, SittingOut, Solution
from adelfl.planner.solve import WhatIfRow, plan, what_if

__all__ = [
    "Alternative",
    "Constants",
    "Method",
    "Objective",
    "Problem",
    "SittingOut",
    "Solution",
    "WhatIfRow",
    "plan",
    "what_if",
]
