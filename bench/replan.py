"""Measure how long replanning takes after a round, for several fleet sizes.

python bench/replan.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

from adelfl import ConstantRate, Fleet
from adelfl.clock import monotonic
from adelfl.planner import Problem
from adelfl.seeds import rng_for
from adelfl.strategies.adel import Adel
from adelfl.strategies.rounds import Outcome

GOAL_MS = 50.0
CASES = ((30, 3, None), (1000, 3, None), (1000, 11, None), (100_000, 3, 30))


def replan_ms(devices: int, layers: int, cohort: int | None, rounds: int) -> tuple[float, float]:
    """Return the median and the maximum duration of replanning, in milliseconds."""
    fleet = Fleet.lognormal(devices, compute=16.0, sigma=0.5, upload=0.02, upload_sigma=0.5, seed=0)
    problem = Problem(fleet, layers, 2 * rounds, 0.5 * layers * rounds, ConstantRate(0.3), batch=16, cohort=cohort)
    strategy, took, now = Adel(problem), [], 0.0
    for t in range(rounds):
        rng = rng_for(0, "bench", t)
        cohort_devices = np.sort(rng.choice(devices, cohort or devices, replace=False))
        orders = strategy.orders(t, cohort_devices)
        z = rng.integers(0, layers + 1, cohort_devices.size)
        now += orders.deadline
        seconds, upload = np.full(cohort_devices.size, orders.deadline), np.where(z > 0, 0.02, np.nan)
        outcome = Outcome(t, cohort_devices, orders.batch, z, seconds, upload, problem.budget - now)
        begin = monotonic()
        strategy.observe(outcome)
        took.append(1e3 * (monotonic() - begin))
    return statistics.median(took), max(took)


def main() -> None:
    """Print one line per fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    for devices, layers, cohort in CASES:
        median, worst = replan_ms(devices, layers, cohort, rounds)
        drawn = f", {cohort} of them per round" if cohort else ""
        print(f"{devices} devices{drawn}, {layers} layers: {median:.1f} ms (worst {worst:.1f}; goal: {GOAL_MS:g})")


if __name__ == "__main__":
    main()
