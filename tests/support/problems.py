"""Problems for the planner's tests: some by hand, the rest made by hypothesis."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import strategies as st

import adelfl
from adelfl import ConstantRate, Constants, Fleet, InverseDecay, Problem, Schedule
from adelfl.planner.paper import needed_deadlines

plan = partial(adelfl.plan, objective="paper")
"""Of Theorem 1's bound."""

PAPER = Problem(Fleet.of(16.0, 0.1, 30), layers=3, rounds=100, budget=300.0)
MIXED = Problem(
    Fleet.of([4.0, 16.0, 60.0], [0.3, 0.1, 0.05], [5, 15, 10]),
    layers=5,
    rounds=12,
    budget=30.0,
    learning_rate=InverseDecay(0.5, 3.0),
)
CONSTANT = Problem(
    Fleet.of([10.0, 20.0], 0.0, [3, 2]), layers=4, rounds=8, budget=40.0, learning_rate=ConstantRate(0.2)
)
TIGHT = Problem(Fleet.of([5.0, 9.0], [0.2, 0.4], [40, 60]), layers=8, rounds=6, budget=7.0)
BY_HAND = {"paper": PAPER, "mixed": MIXED, "constant": CONSTANT, "tight": TIGHT}


@st.composite
def problems(draw: st.DrawFn, max_rounds: int = 30, max_groups: int = 6) -> Problem:
    """Feasible problems over many orders of magnitude: time scale, speeds, uploads, depth, noise, slack."""
    groups = draw(st.integers(1, max_groups))

    def powers(low: float, high: float) -> list[float]:
        exponents = draw(st.lists(st.floats(low, high), min_size=groups, max_size=groups))
        return [10.0**e for e in exponents]

    unit = 10.0 ** draw(st.floats(-3, 3))
    uploads = [0.0] * groups if draw(st.booleans()) else [unit * v for v in powers(-4, 1)]
    fleet = Fleet.of([v / unit for v in powers(-1, 2.5)], uploads, [max(2, round(v)) for v in powers(0.3, 4)])
    decays = st.builds(InverseDecay, st.floats(0.01, 1.0), st.floats(1.0, 100.0))
    rate = draw(st.one_of(decays, st.builds(ConstantRate, st.floats(0.01, 1.0))))
    constants = Constants(
        sigma2=tuple(powers(-2, 3)), G2=10.0 ** draw(st.floats(-2, 2)), rho_c=10.0 ** draw(st.floats(-3, -0.2))
    )
    layers, rounds = draw(st.integers(1, 50)), draw(st.integers(1, max_rounds))
    problem = Problem(fleet, layers, rounds, 1.0, rate, constants)
    slack = draw(st.sampled_from([1.0001, 1.01, 1.2, 2.0, 10.0, 1000.0]))
    return replace(problem, budget=slack * rounds * float(np.max(needed_deadlines(problem, fleet.size))))


def recorded_schedule(values: dict) -> Schedule:
    """Rebuild a schedule from ``Schedule.to_dict``; an infinite number of samples is None there."""
    fleet = values["fleet"]
    held = {"samples": [np.inf if n is None else n for n in fleet["samples"]]} if "samples" in fleet else {}
    arrays = {"deadlines": np.asarray(values["deadlines"]), "sits_out": np.asarray(values["sits_out"], dtype=bool)}
    m = np.asarray(values["m"]) if isinstance(values["m"], list) else values["m"]
    return Schedule(**values | arrays | {"m": m, "fleet": Fleet.of(**fleet | held)})
