"""From a fleet and a time budget to deadlines and batch sizes."""

from adelfl.planner.admit import SittingOut
from adelfl.planner.problem import Constants, Problem
from adelfl.planner.solve import Alternative, Method, Objective, Solution, plan
from adelfl.planner.what_if import WhatIfRow, values_between, what_if

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
    "values_between",
    "what_if",
]
