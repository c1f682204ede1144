"""ADEL-FL: SALF's merge on a plan of deadlines and batch sizes.

Goren, Lang, Shlezinger, Cohen, "Adaptive deadline and batch layered synchronized federated learning" (Algorithm 1).

    T_1..T_R, m  =  argmin of Theorem 1's bound within Σ T_t ≤ T_max                    (Problem 2)
    S_t^u = max(1, ⌊m P_u (T_t − B_u)/T_t⌋)                                              (B3)
    w^l ← w^l − η_t Σ_u A[u,l] g_u^l,     A as in SALF                                   (eq. 5)
"""

from __future__ import annotations

from adelfl.errors import ConfigError
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
        if schedule is not None and not isinstance(schedule, Schedule):
            raise ConfigError("strategy option schedule must be a Schedule; it can be given from Python only")
        self._notes: tuple[str, ...] = ()
        if schedule is None:
            solution = plan(_problem(setting))
            schedule = solution.schedule
            out = sum(s.count for s in solution.sitting_out)
            named = "; ".join(f"{s.name} (× {s.count}): {s.reason}" for s in solution.sitting_out[:3])
            more = " …" if len(solution.sitting_out) > 3 else ""
            self._notes = solution.warnings + ((f"{out} devices sit out: {named}{more}",) if out else ())
        self._schedule = schedule

    @property
    def schedule(self) -> Schedule:
        """The plan."""
        return self._schedule

    @property
    def notes(self) -> tuple[str, ...]:
        """The plan's warnings, and who sits out."""
        return self._notes

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
