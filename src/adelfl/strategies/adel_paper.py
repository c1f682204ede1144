"""ADEL-FL as in the paper: SALF's merge on a plan of deadlines and batch sizes.

Goren, Lang, Shlezinger, Cohen, "Adaptive deadline and batch layered synchronized federated learning" (Algorithm 1).

    T_1..T_R, m  =  argmin of Theorem 1's bound within Σ T_t ≤ T_max                    (Problem 2)
    S_t^u = max(1, ⌊m P_u (T_t − B_u)/T_t⌋)                                              (B3)
    w^l ← w^l − η_t Σ_u A[u,l] g_u^l,     A as in SALF                                   (eq. 5)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner import Problem, Solution, plan
from adelfl.schedule import Schedule
from adelfl.strategies.base import check_choice
from adelfl.strategies.merge import AverageOver, Correction
from adelfl.strategies.rounds import Ints, Orders, check_schedule
from adelfl.strategies.salf import Salf

Deadlines = Literal["planned", "uniform"]
Batches = Literal["planned", "fixed", "proportional"]


class AdelPaper(Salf):
    """SALF with planned deadlines and batch sizes; nothing else differs.

    A given ``schedule`` is followed, with its number of rounds; by default, Problem 2 is solved for the whole fleet.
    The other options are for ablations. ``deadlines`` are planned T_t, or T_max/R with ``"uniform"``. ``batches`` are
    planned m (with uniform deadlines: the best m for those), ``"fixed"`` at the baselines' S, or ``"proportional"`` to
    speed: rule B3 with the m that makes S the mean.
    """

    name = "adel-paper"
    schedule: Schedule

    def __init__(
        self,
        problem: Problem,
        *,
        schedule: Schedule | None = None,
        deadlines: Deadlines = "planned",
        batches: Batches = "planned",
        average_over: AverageOver = "contributors",
        correction: Correction = "unbiased",
    ) -> None:
        super().__init__(problem, average_over=average_over, correction=correction, weigh="equally")
        check_schedule(problem, schedule)
        if schedule is not None and (deadlines, batches) != ("planned", "planned"):
            raise ConfigError("strategy options deadlines and batches cannot be combined with a given schedule")
        check_choice("deadlines", deadlines, Deadlines)
        check_choice("batches", batches, Batches)
        self._notes: tuple[str, ...] = ()
        if schedule is None:
            solution = plan(problem, objective="paper")
            schedule = _part_of(solution, deadlines, batches)
            out = sum(s.count for s in solution.sitting_out)
            named = "; ".join(f"{s.name} (× {s.count}): {s.reason}" for s in solution.sitting_out[:3])
            more = " …" if len(solution.sitting_out) > 3 else ""
            self._notes = (f"{out} devices sit out: {named}{more}",) if out else ()
        self.schedule = schedule

    @property
    def notes(self) -> tuple[str, ...]:
        """Devices that sit out."""
        return self._notes

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return planned deadlines and batch sizes (B3)."""
        groups = self.problem.group[devices]
        sizes = self.problem.within_data(self.schedule.batch_sizes(t, groups), devices)
        return Orders(float(self.schedule.deadlines[t]), sizes)


def _part_of(solution: Solution, deadlines: Deadlines, batches: Batches) -> Schedule:
    """Return the plan, with the deadlines or batch sizes of the baselines where the options say so."""
    schedule, problem = solution.schedule, solution.problem
    if deadlines == "uniform":
        T = np.full(schedule.rounds, solution.uniform.deadline)
        schedule = replace(schedule, deadlines=T, m=solution.uniform.m)
    if batches == "fixed":
        return replace(schedule, m=None, batch=problem.batch)
    if batches == "proportional":
        fleet, T_mean = problem.fleet, solution.uniform.deadline
        reach = fleet.compute / problem.local_iterations * np.maximum(0.0, 1.0 - fleet.upload / T_mean)
        takes_part = fleet.count * ~schedule.sits_out
        return replace(schedule, m=problem.batch * takes_part.sum() / (takes_part @ reach))
    return schedule
