"""ADEL-FL beyond its paper: a plan by the noise itself, a merge by precision, and both learn while training goes on.

    T_1..T_R, m_1..m_R  =  argmin Σ_t a_t N(T_t, m_t)   within   Σ T_t ≤ T_max            (docs/beyond.md)
    S_t^u = max(1, ⌊m_t P_u (T_t − B_u)/T_t⌋)                                              (B3)
    w^l ← w^l − η_t Σ_u A[u,l] g_u^l,    A[u,l] = v_u 1[u delivered l] / Σ_w v_w 1[w delivered l]
    v_u = 1/(σ_l²/S_u + M ζ_l²)

The paper's own method is ``adel-paper``.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.latency import Exponential, for_plans
from adelfl.planner import Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.planner.local_work import SPARE
from adelfl.planner.noise_plan import QUICK, THOROUGH, BatchScale, Effort, NoisePlan, check_uploads, solve
from adelfl.planner.population import Population
from adelfl.schedule import Schedule
from adelfl.strategies.base import check_choice
from adelfl.strategies.merge import AverageOver, Correction, Gradients, Knowledge, layerwise
from adelfl.strategies.rounds import Floats, Ints, Orders, Outcome, Progress, RoundStrategy, Weigh, check_schedule
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.round_noise import memory

Deadlines = Literal["auto", "planned", "uniform"]

_SAMPLE = 2048  # devices
_LIKELY = 0.5  # with few rounds: how often the last layer must arrive, in each of them, for training to be worth while


class Adel(RoundStrategy):
    """Planned deadlines and batch sizes for the noise that they leave.

    Parameters
    ----------
    problem : Problem
    schedule : Schedule, optional
        A plan made elsewhere, which is then kept to, and to its number of rounds.
    replan : bool
        Whether speeds, uploads and gradients are learned, and the rest of the rounds planned again after each.
    batch_scale : {"per-round", "one"}
        m_t for every round, or one m for all.
    deadlines : {"auto", "planned", "uniform"}
        Planned ones rise while the rate is constant, which leaves the last rounds less noise. A falling rate does that
        by itself, and deep networks suffer from short first rounds: "auto" plans at a constant rate only.
    average_over, correction
        How delivered layers are merged (:func:`adelfl.strategies.merge.layerwise`).
    weigh : {"data", "equally"}
        Weigh devices by the samples that they hold, or equally.
    """

    name = "adel"

    def __init__(
        self,
        problem: Problem,
        *,
        schedule: Schedule | None = None,
        replan: bool = True,
        batch_scale: BatchScale = "per-round",
        deadlines: Deadlines = "auto",
        average_over: AverageOver = "precision",
        correction: Correction = "none",
        weigh: Weigh = "data",
    ) -> None:
        super().__init__(problem, weigh=weigh)
        for key, value, allowed in (
            ("batch_scale", batch_scale, BatchScale),
            ("deadlines", deadlines, Deadlines),
            ("average_over", average_over, AverageOver),
            ("correction", correction, Correction),
        ):
            check_choice(key, value, allowed)
        if not isinstance(replan, bool):
            raise ConfigError(f"strategy option replan must be true or false, not {replan!r}")
        check_schedule(problem, schedule)
        if problem.devices > 1:
            problem.planned()  # refuses what no plan can be made for
        self.replan = replan and schedule is None
        self._given = schedule is not None
        self.batch_scale: BatchScale = batch_scale
        self.deadlines: Deadlines = deadlines
        self.average_over: AverageOver = average_over
        self.correction: Correction = correction
        self.knowledge = Knowledge(problem)
        law = getattr(problem.latency, "law", None)
        variation = getattr(for_plans(problem.latency), "spread", 1.0) if law is None else law.variation
        self.beliefs: Beliefs = Beliefs(problem.compute, problem.upload, variation)
        by_speed = np.argsort(problem.compute, kind="stable")
        places = np.linspace(0, problem.devices - 1, min(problem.devices, _SAMPLE)).round().astype(np.int64)
        self._sample = by_speed[places]  # who stands for the fleet when the rest is planned again
        self._rounds = problem.rounds if schedule is None else schedule.rounds
        self._expected: Floats | None = None  # rounds in which somebody delivers each layer
        if schedule is None:
            schedule = self._first_plan()
        self._schedule = schedule
        self._T = schedule.deadlines.copy()
        self._m = None if schedule.m is None else np.broadcast_to(schedule.m, self._T.shape).copy()

    @property
    def _weighting(self) -> Literal["precision", "equal"]:
        return "precision" if self.average_over == "precision" else "equal"

    @property
    def label(self) -> str:
        """Name what differs from the whole method."""
        words = []
        if not self.replan:
            words.append("no replanning")
        if self.batch_scale == "one":
            words.append("one m")
        if self.deadlines != "auto":
            words.append(f"{self.deadlines} deadlines")
        if self.average_over != "precision":
            words.append(f"average over {self.average_over}")
        if self.correction != "none":
            words.append(f"{self.correction} correction")
        return self.labelled(words)

    @property
    def schedule(self) -> Schedule:
        """The plan before the first round."""
        return self._schedule

    @property
    def rounds(self) -> int:
        """R."""
        return self._rounds

    @property
    def notes(self) -> tuple[str, ...]:
        """Name devices that cannot take part, and layers that hardly arrive."""
        words = []
        late = self.problem.fleet.upload >= self._T.max()
        if late.any():
            out = int(self.problem.fleet.count[late].sum())
            words.append(f"{out} devices sit out: their uploads outlast every deadline (at most {self._T.max():.4g} s)")
        if self._expected is not None and self._expected[0] < 1.0:
            words.append(f"the first layer is expected to arrive {self._expected[0]:.2g} times in all: too little time")
        return tuple(words)

    def planned(self, t: int) -> float:
        """Seconds that rounds t, t+1, … are meant to take."""
        return float(self._T[t:].sum())

    def orders(self, t: int, devices: Ints) -> Orders:
        """Planned T_t, and rule B3's batch sizes for the speeds that are believed."""
        T = float(self._T[t])
        if self._m is None:
            sizes = self._schedule.batch_sizes(t, self.problem.group[devices])
            return Orders(T, self.problem.within_data(sizes, devices), early=True)
        P, B = self.believed(devices)
        time, overhead, E = self._m[t] * P * (T - B) / T, self.problem.overhead[devices], self.problem.local_iterations
        sizes = time - overhead
        if E > 1:
            sizes = np.maximum(time / E - overhead, np.minimum(sizes, self.problem.batch))
        sizes = np.maximum(1.0, np.floor(sizes))
        takes_part = B < T
        if self._given:
            takes_part &= ~self._schedule.sits_out[self.problem.group[devices]]
        return Orders(T, self.problem.within_data(np.where(takes_part, sizes, 0.0), devices), early=True)

    def weights(self, t: int, progress: Progress) -> Floats:
        """The merge, with what is known of the gradients."""
        known = Gradients(self.knowledge.spread, float(self.learning_rates[t]), self._memory(t))
        return layerwise(progress, self.correction, self.average_over, known)

    def absent(self, devices: Ints) -> Floats:
        """Learned from silence."""
        return self.beliefs.away(devices) if self.replan else np.zeros(devices.size)

    def _memory(self, t: int) -> float:
        return memory(self.learning_rates[t:], self.problem.constants.rho_c)

    # -- learning

    def observe(self, outcome: Outcome) -> None:
        """Learn how fast devices are, and give the time that is left to the rounds that are left."""
        o = outcome
        if self.replan:
            super().observe(outcome)
        t = o.t + 1
        if t >= self._rounds or o.left <= 0:
            return
        if self.replan:
            try:
                solution = self._plan(t, o.left)
            except InfeasibleBudgetError:
                pass  # by what is believed nobody can deliver any more: better the old plan than none
            else:
                self._T[t:], self._m = (
                    solution.T,
                    np.concatenate([self._scales()[:t], np.broadcast_to(solution.m, solution.T.shape)]),
                )
                return
        stretch = o.left / self._T[t:].sum()
        self._T[t:] *= min(1.0, stretch) if self._given else stretch

    def _scales(self) -> Floats:
        assert self._m is not None
        return self._m

    def inherit(self, older: RoundStrategy | None, beliefs: Beliefs) -> None:
        """Take over the beliefs and the gradient statistics, and plan with them."""
        super().inherit(older, beliefs)
        if not (isinstance(older, Adel) and self.replan and older.replan):
            return
        self.knowledge = older.knowledge
        solution = self._plan(0, self.problem.budget)
        self._T, self._m = solution.T, np.broadcast_to(solution.m, solution.T.shape).copy()

    def looks_at(self, t: int) -> bool:
        """Some times in a run."""
        return self.replan and self.knowledge.is_due(t, self._rounds)

    def learn(self, spread: GradientStats) -> None:
        """Mix what was seen into what was known."""
        self.knowledge.learn(spread)

    # -- planning

    def _first_plan(self) -> Schedule:
        s = self.problem
        fleet = s.fleet
        solution = self._solve(self._first_population(np.arange(fleet.groups), fleet.count), 0, s.budget, THOROUGH)
        holding = self._first_by_data()
        if holding is not None and holding.exceeds(solution.T, solution.m):
            solution = self._solve(holding, 0, s.budget, THOROUGH)
        schedule = Schedule(
            s.bounded_fleet,
            s.layers,
            solution.T,
            m=solution.m,
            batch=s.batch if s.local_iterations > 1 else None,
            sits_out=fleet.upload >= solution.T.max(),
            cohort=s.cohort,
            local_iterations=s.local_iterations,
            latency=for_plans(s.latency),
        )
        if type(s.latency) is Exponential:
            self._expected = _times_filled(schedule)
            if self._expected[-1] < min(1.0, _LIKELY * schedule.rounds):
                R, many = schedule.rounds, schedule.rounds > 1
                raise InfeasibleBudgetError(
                    f"no plan: in {R} round{'s' if many else ''} and {s.budget:.4g} s even the last layer is expected "
                    f"to arrive {self._expected[-1]:.2g} times in all; give more time{', or plan fewer rounds' * many}",
                    binding="the time of all devices together",
                    smallest_budget=None,
                )
        return schedule

    def _first_by_data(self) -> Population | None:
        """Return the fleet with its groups divided by how many samples devices hold; None if that bounds nothing."""
        s = self.problem
        if s.held is None:
            return None
        alike, count = np.unique(np.stack([s.group, s.held]), axis=1, return_counts=True)
        return self._first_population(alike[0].astype(np.int64), count, alike[1])

    def _first_population(self, group: Ints, count: Ints, held: Floats | None = None) -> Population:
        """Return so many devices of some groups, as they are known before the first round."""
        fleet = self.problem.fleet
        costs = fleet.compute[group], fleet.upload[group], fleet.overhead_of(group)
        return self._population(0, *costs, count.astype(np.float64), np.ones(group.size), held)

    def _plan(self, t: int, left: float) -> NoisePlan:
        """Plan the rounds from t on, with what is believed by now."""
        s, b, some = self.problem, self.beliefs, self._sample
        costs = b.compute(some), b.upload(some), s.overhead[some]
        held, count = None if s.held is None else s.held[some], np.full(some.size, s.devices / some.size)
        return self._solve(self._population(t, *costs, count, 1.0 - b.away(some), held), t, left, QUICK)

    def _population(
        self, t: int, P: Floats, B: Floats, overhead: Floats, count: Floats, there: Floats, held: Floats | None
    ) -> Population:
        """Return groups of devices with these costs, numbers, probabilities of being there and amounts of data."""
        s = self.problem
        share = 1.0 if s.cohort is None else s.cohort / s.devices
        return Population(
            P=P,
            B=B,
            count=count,
            chance=share * there,
            layers=s.layers,
            spread=self.knowledge.spread,
            memory=self._memory(t),
            latency=for_plans(s.latency),
            weighting=self._weighting,
            samples=held,
            overhead=overhead,
        )

    def _solve(self, population: Population, t: int, budget: float, effort: Effort) -> NoisePlan:
        c, eta = self.problem.constants, self.learning_rates[t:]
        if self.problem.local_iterations > 1:  # a round's noise is that of many steps: no deadline is worth another's
            check_uploads(population, eta.size, budget)
            T = np.full(eta.size, budget / eta.size)
            return NoisePlan(T, T / (SPARE * self.problem.layers), np.nan, np.nan)
        return solve(
            population,
            eta,
            budget,
            rho_c=c.rho_c,
            Delta1=c.Delta1,
            batch_scale=self.batch_scale,
            uniform=self.deadlines == "uniform" or (self.deadlines == "auto" and bool(np.ptp(self.learning_rates) > 0)),
            effort=effort,
        )


def _times_filled(schedule: Schedule) -> Floats:
    """In how many rounds somebody is expected to deliver each layer, from some of them, shape (L,)."""
    some = np.unique(np.linspace(0, schedule.rounds - 1, min(schedule.rounds, 16)).round().astype(np.int64))
    filled: Floats = np.mean([1.0 - schedule.p_empty(int(t)) for t in some], axis=0) * schedule.rounds
    return filled
