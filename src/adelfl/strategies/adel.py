"""ADEL-FL: SALF's merge on a plan of deadlines and batch sizes.

Goren, Lang, Shlezinger, Cohen, "Adaptive deadline and batch layered synchronized federated learning" (Algorithm 1).

    T_1..T_R, m  =  argmin of Theorem 1's bound within Σ T_t ≤ T_max                    (Problem 2)
    S_t^u = max(1, ⌊m P_u (T_t − B_u)/T_t⌋)                                              (B3)
    w^l ← w^l − η_t Σ_u A[u,l] g_u^l,     A as in SALF                                   (eq. 5)
"""

from __future__ import annotations

from adelfl.planner import Problem, plan
from adelfl.schedule import Schedule
from adelfl.strategies.base import AverageOver, Correction, Ints, Orders, Setting
from adelfl.strategies.salf import Salf


class Adel(Salf):
    """SALF with planned deadlines and batch sizes; nothing else differs.

    Parameters
    ----------
    setting : Setting
    schedule : Schedule, optional
        A plan made elsewhere; by default Problem 2 is solved for the whole fleet.
    average_over, correction
        As for SALF.
    """

    name = "adel"

    def __init__(
        self,
        setting: Setting,
        *,
        schedule: Schedule | None = None,
        average_over: AverageOver = "contributors",
        correction: Correction = "unbiased",
    ) -> None:
        super().__init__(setting, average_over=average_over, correction=correction)
        self._schedule = schedule or plan(_problem(setting)).schedule

    @property
    def schedule(self) -> Schedule:
        """The plan."""
        return self._schedule

    def orders(self, t: int, devices: Ints) -> Orders:
        """Planned T_t, and B3's batch sizes."""
        groups = self.setting.group[devices]
        return Orders(float(self._schedule.deadlines[t]), self._schedule.batch_sizes(t, groups))


def _problem(setting: Setting) -> Problem:
    return Problem(
        fleet=setting.fleet,
        layers=setting.layers,
        rounds=setting.rounds,
        budget=setting.budget,
        learning_rate=setting.learning_rate,
        constants=setting.constants,
        cohort=setting.cohort,
        local_iterations=setting.local_iterations,
        baseline_batch=setting.batch,
    )
