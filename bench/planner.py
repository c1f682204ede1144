"""Compare the exact planner with the trust-region solver, then plan for a fleet of a million devices.

    python bench/planner.py            # about a minute and a half
    python bench/planner.py --stress 3000   # count failures of the exact solver on random problems

Times are medians over repeats in this process. The solvers run in turns, so that load on the machine affects all of
them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from functools import partial

import numpy as np

import adelfl
from adelfl import ConstantRate, Constants, Fleet, InverseDecay, Problem
from adelfl.clock import monotonic
from adelfl.planner import exact, trust_region
from adelfl.planner.grouping import merge_equal
from adelfl.planner.paper import exact_cost, needed_deadlines
from adelfl.theory import bound

SEED = 1
plan = partial(adelfl.plan, objective="paper")


def side_by_side() -> bool:
    fleet = Fleet.lognormal(30, compute=16.0, sigma=0.5, upload=0.1, upload_sigma=0.5, seed=SEED)
    problem = Problem(fleet, layers=11, rounds=100, budget=1000.0)
    cost = merge_equal(exact_cost(problem, np.ones(30, dtype=bool)))
    a = bound.weights(problem.eta, problem.constants.rho_c)

    def by_exact() -> exact.Optimum:
        guess = exact.minimise_uniform(cost, problem.rounds, problem.budget).m
        return exact.minimise(cost, a, problem.budget, guess)

    solvers = {
        "exact": (by_exact, 15),
        "trust-region": (lambda: trust_region.minimise(cost, a, problem.budget), 5),
    }
    times: dict[str, list[float]] = {name: [] for name in solvers}
    excess = {}
    for repeat in range(15):
        for name, (solve, repeats) in solvers.items():
            if repeat < repeats:
                start = monotonic()
                optimum = solve()
                times[name].append(monotonic() - start)
                excess[name] = bound.excess(cost, a, optimum.T, optimum.m)
    whole = statistics.median(plan(problem).seconds for _ in range(15))
    best = statistics.median(times["exact"])
    print("R = 100, U = 30 (all different), L = 11")
    print(f"{'solver':34}{'median':>10}{'ratio':>9}{'excess':>14}{'above exact':>13}")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        above = excess[name] / excess["exact"] - 1
        print(f"{name:34}{middle * 1e3:8.1f} ms{middle / best:8.0f}x{excess[name]:14.8g}{above:13.1e}")
    print(f"plan() as a whole: {whole * 1e3:.1f} ms (goal: 50)")
    return whole <= 0.05 and statistics.median(times["trust-region"]) / best >= 50


def a_million() -> bool:
    fleet = Fleet.lognormal(1_000_000, compute=16.0, sigma=0.5, upload=0.5, upload_sigma=0.5, seed=SEED)
    problem = Problem(fleet, layers=19, rounds=1000, budget=30_000.0)
    plans = [plan(problem) for _ in range(3)]
    seconds = statistics.median(p.seconds for p in plans)
    print("\nR = 1,000, U = 1,000,000 (all different), L = 19")
    print(f"plan(): {seconds:.2f} s (goal: 2); relative error of grouping {plans[0].grouping_error:.1e}")
    print(
        f"deadlines {plans[0].schedule.deadlines[0]:.2f} to {plans[0].schedule.deadlines[-1]:.2f} s, m {plans[0].m:.3f}"
    )
    return seconds <= 2.0


def stress(problems: int) -> bool:
    rng = np.random.default_rng(SEED)
    failed = worse = 0
    for _ in range(problems):
        groups, layers = int(rng.integers(1, 12)), int(rng.integers(1, 51))
        rounds, unit = int(rng.choice([1, 2, 5, 20, 100])), 10 ** rng.uniform(-3, 3)
        upload = 10 ** rng.uniform(-4, 1.5, groups) * unit * (rng.random() > 0.3)
        count = np.maximum(2, 10 ** rng.uniform(0.4, rng.choice([1, 3, 5]), groups)).astype(int)
        fleet = Fleet.of(10 ** rng.uniform(-1, 3, groups) / unit, upload, count)
        rate = (
            ConstantRate(0.1) if rng.random() < 0.2 else InverseDecay(10 ** rng.uniform(-2, 0), 10 ** rng.uniform(0, 2))
        )
        constants = Constants(10 ** rng.uniform(-3, 4), 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-4, -0.2))
        problem = Problem(fleet, layers, rounds, 1.0, rate, constants)
        slack = rng.choice([1 + 1e-5, 1.001, 1.05, 1.5, 3, 10, 1000])
        solution = plan(replace(problem, budget=slack * rounds * needed_deadlines(problem, fleet.size).max()))
        failed += solution.method != "exact"
        worse += solution.excess > solution.uniform.excess * (1 + 1e-9)
    print(f"{problems} random problems: failed {failed} times, worse than the best uniform schedule {worse} times")
    return failed == worse == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stress", type=int, metavar="N", help="plan N random problems instead")
    arguments = parser.parse_args()
    if arguments.stress:
        return 0 if stress(arguments.stress) else 1
    reached = [side_by_side(), a_million()]
    print("\nall goals reached" if all(reached) else "\nNOT all goals reached")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
