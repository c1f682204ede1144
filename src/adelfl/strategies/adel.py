"""ADEL-FL beyond its paper: plan for the noise of training, merge by precision, and learn during training.

    T_1..T_R, m_1..m_R  =  argmin Σ_t a_t N(T_t, m_t)   within   Σ T_t ≤ T_max             (docs/adel.md)
    S_t^u = max(1, ⌊m_t P_u (T_t − B_u)/T_t⌋)                                              (B3)
    w^l ← w^l − η_t Σ_u A[u,l] g_u^l,    A[u,l] = v_u 1[u delivered l] / Σ_w v_w 1[w delivered l]
    v_u = 1/(σ_l²/S_u + M ζ_l²)

The paper's own method is ``adel-paper``.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.latency import Exponential, for_plans
from adelfl.planner import Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.planner.local_work import SPARE, least_batch
from adelfl.planner.noise_plan import Population, check_uploads, solve
from adelfl.schedule import Schedule, batch_floor, fitting_batch
from adelfl.strategies.merge import ByPrecision
from adelfl.strategies.rounds import Floats, Ints, Orders, Outcome, RoundStrategy, Weigh, check_schedule

_SAMPLE = 2048  # devices that stand for the fleet in a plan
_SHORTEST = 0.5  # computing time of the first round at a constant rate, as a share of the last one's
_LIKELY = 0.5  # expected arrivals of the last layer in each round of a run with fewer than two in all


class Adel(ByPrecision):
    """Plan the deadlines and batch sizes that leave the least noise, and plan again during training.

    With a constant learning rate, deadlines rise, to at most about twice the first, so that late rounds have less
    noise. With a falling rate, late rounds matter less already, and short ones harm deep networks, so all deadlines are
    equal.

    With ``replan``, speeds, uploads and gradients are estimated again during the run, and the remaining rounds are
    planned again up to nine times. A given ``schedule`` is followed instead, with its number of rounds.
    """

    name = "adel"
    server_step = "average"
    schedule: Schedule

    def __init__(
        self, problem: Problem, *, schedule: Schedule | None = None, replan: bool = True, weigh: Weigh = "data"
    ) -> None:
        super().__init__(problem, weigh=weigh)
        if not isinstance(replan, bool):
            raise ConfigError(f"strategy option replan must be true or false, not {replan!r}")
        check_schedule(problem, schedule)
        if problem.devices > 1:
            problem.planned()  # raises ConfigError if no plan can be made
        self.replan = replan and schedule is None
        self._given = schedule is not None
        law = getattr(problem.latency, "law", None)
        variation = getattr(for_plans(problem.latency), "spread", 1.0) if law is None else law.variation
        self.beliefs: Beliefs = Beliefs(problem.compute, problem.upload, variation)
        by_speed = np.argsort(problem.compute, kind="stable")
        places = np.linspace(0, problem.devices - 1, min(problem.devices, _SAMPLE)).round().astype(np.int64)
        self._sample = by_speed[places]
        self._expected: Floats | None = None  # number of rounds in which some device delivers each layer
        self.schedule = self._first_plan() if schedule is None else schedule
        self._T = self.schedule.deadlines.copy()
        self._m = None if self.schedule.m is None else np.broadcast_to(self.schedule.m, self._T.shape).copy()

    @property
    def notes(self) -> tuple[str, ...]:
        """Name devices that cannot take part, and a first layer that hardly ever arrives."""
        notes = []
        late = self.problem.fleet.upload >= self._T.max()
        if late.any():
            out = int(self.problem.fleet.count[late].sum())
            notes.append(f"{out} devices sit out: their uploads outlast every deadline (at most {self._T.max():.4g} s)")
        if self._expected is not None and self._expected[0] < 1.0:
            notes.append(f"the first layer is expected to arrive {self._expected[0]:.2g} times in all; give more time")
        return tuple(notes)

    def planned(self, t: int) -> float:
        """Seconds that rounds t, t+1, … are meant to take."""
        return float(self._T[t:].sum())

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return the planned T_t, and batch sizes by rule B3 for the estimated speeds."""
        T = float(self._T[t])
        if self._m is None:
            sizes = self.schedule.batch_sizes(t, self.problem.group[devices])
            return Orders(T, self.problem.within_data(sizes, devices), early=True)
        P, B = self.believed(devices)
        samples, overhead = self._m[t] * P * (T - B) / T, self.problem.overhead[devices]
        fitting = fitting_batch(samples, overhead, self.problem.local_iterations, least_batch(self.problem))
        takes_part = B < T
        if self._given:
            takes_part &= ~self.schedule.sits_out[self.problem.group[devices]]
        return Orders(T, self.problem.within_data(np.where(takes_part, fitting, 0.0), devices), early=True)

    def absent(self, devices: Ints) -> Floats:
        """Return the estimated probability of absence; 0 without replanning."""
        return self.beliefs.away(devices) if self.replan else np.zeros(devices.size)

    # -- learning

    def observe(self, outcome: Outcome) -> None:
        """Update the estimates, and distribute the time that is left over the rounds that are left."""
        t, left = outcome.t + 1, outcome.left
        if self.replan:
            super().observe(outcome)
        if t >= self.rounds or left <= 0:
            return
        if self.looks_at(outcome.t):
            with suppress(InfeasibleBudgetError):  # if no device is expected to deliver any more, the old plan stays
                self._replan(t, left)
                return
        stretch = left / self._T[t:].sum()
        self._T[t:] *= min(1.0, stretch) if self._given else stretch

    def inherit(self, older: RoundStrategy | None, beliefs: Beliefs) -> None:
        """Take over beliefs and gradient statistics, and plan with them."""
        super().inherit(older, beliefs)
        if isinstance(older, Adel) and self.replan and older.replan:
            self.spread, self._seen = older.spread, older._seen
            with suppress(InfeasibleBudgetError):  # then the first plan stays
                self._replan(0, self.problem.budget)

    def looks_at(self, t: int) -> bool:
        """Return whether gradient statistics are needed after round t: up to nine times in a run with replanning."""
        return self.replan and super().looks_at(t)

    # -- planning

    def _first_plan(self) -> Schedule:
        s = self.problem
        T, m = self._plan(0, s.budget, np.zeros(self._sample.size))
        limits = s.local_iterations > 1 or bool(s.overhead.any())
        schedule = s.schedule(T, m, s.fleet.upload >= T.max(), least_batch(s) if limits else None)
        if type(s.latency) is Exponential:
            self._expected = _times_filled(schedule)
            if self._expected[-1] < min(1.0, _LIKELY * schedule.rounds):
                rounds, advice = ("1 round", "") if s.rounds == 1 else (f"{s.rounds} rounds", ", or plan fewer rounds")
                raise InfeasibleBudgetError(
                    f"no plan: in {rounds} and {s.budget:.4g} s even the last layer is expected to arrive "
                    f"{self._expected[-1]:.2g} times in all; give more time{advice}",
                    binding="the time of all devices together",
                )
        return schedule

    def _replan(self, t: int, left: float) -> None:
        """Plan the rounds from t on, with the present estimates."""
        assert self._m is not None
        self._T[t:], self._m[t:] = self._plan(t, left, self.absent(self._sample))

    def _plan(self, t: int, left: float, absent: Floats) -> tuple[Floats, Floats]:
        """Return deadlines and batch scales of the rounds from t on."""
        s, some, eta = self.problem, self._sample, self.learning_rates[t:]
        population = Population(
            P=self.beliefs.compute(some),
            B=self.beliefs.upload(some),
            count=np.full(some.size, s.devices / some.size),
            chance=(1.0 if s.cohort is None else s.cohort / s.devices) * (1.0 - absent),
            layers=s.layers,
            spread=self.spread,
            memory=self._memory(t),
            latency=for_plans(s.latency),
            samples=None if s.held is None else s.held[some],
            overhead=s.overhead[some],
            smallest=batch_floor(s.overhead[some], least_batch(s)),
        )
        if s.local_iterations > 1:  # N describes rounds of one step only, so all deadlines are equal
            check_uploads(population, eta.size, left)
            T = np.full(eta.size, left / eta.size)
            return T, T / (SPARE * s.layers)
        shortest = 1.0 if np.ptp(self.learning_rates) > 0 else _SHORTEST
        plan = solve(population, eta, left, rho_c=s.constants.rho_c, shortest=shortest)
        return plan.T, plan.m


def _times_filled(schedule: Schedule) -> Floats:
    """Estimate from some rounds the number of rounds in which some device delivers each layer, shape (L,)."""
    some = np.unique(np.linspace(0, schedule.rounds - 1, min(schedule.rounds, 16)).round().astype(np.int64))
    filled: Floats = np.mean([1.0 - schedule.p_empty(int(t)) for t in some], axis=0) * schedule.rounds
    return filled
