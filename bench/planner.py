"""How fast are plans made? Exact against trust-region, side by side; then a fleet of a million devices.

    python bench/planner.py            # about a minute and a half
    python bench/planner.py --quick    # without finite differences

Every time is the median over repeats in this process; the solvers take turns, so that a noisy machine hits all.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import numpy as np

from adelfl import Fleet, Problem, plan
from adelfl.clock import monotonic
from adelfl.planner import exact, trust_region
from adelfl.planner.grouping import exact_cost, merge_equal
from adelfl.theory import bound

SEED = 1


def side_by_side(quick: bool) -> bool:
    fleet = Fleet.lognormal(30, compute=16.0, sigma=0.5, upload=0.1, upload_sigma=0.5, seed=SEED)
    problem = Problem(fleet, layers=11, rounds=100, budget=1000.0)
    cost = merge_equal(exact_cost(problem, np.ones(30, dtype=bool)))
    a = bound.weights(problem.eta, problem.constants.rho_c)

    def by_exact() -> exact.Optimum:
        guess = exact.minimise_uniform(cost, problem.rounds, problem.budget).m
        return exact.minimise(cost, a, problem.budget, guess)

    solvers = {
        "exact": (by_exact, 15),
        "trust-region, exact gradients": (lambda: trust_region.minimise(cost, a, problem.budget), 5),
    }
    if not quick:
        solvers["trust-region, finite differences"] = (
            lambda: trust_region.minimise(cost, a, problem.budget, gradients="finite-difference"),
            1,
        )
    times: dict[str, list[float]] = {name: [] for name in solvers}
    excess = {}
    for repeat in range(15):
        for name, (solve, repeats) in solvers.items():
            if repeat < repeats:
                start = monotonic()
                found = solve()
                times[name].append(monotonic() - start)
                excess[name] = bound.excess(cost, a, found.T, found.m)
    whole = statistics.median(plan(problem).seconds for _ in range(15))
    best = statistics.median(times["exact"])
    print("R = 100, U = 30 (all different), L = 11")
    print(f"{'solver':34}{'median':>10}{'ratio':>9}{'excess':>14}{'above exact':>13}")
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        above = excess[name] / excess["exact"] - 1
        print(f"{name:34}{middle * 1e3:8.1f} ms{middle / best:8.0f}x{excess[name]:14.8g}{above:13.1e}")
    print(f"plan() as a whole: {whole * 1e3:.1f} ms (to reach: 50)")
    ratios = [statistics.median(times[n]) / best for n in solvers if n != "exact"]
    return whole <= 0.05 and all(r >= goal for r, goal in zip(ratios, (50, 300), strict=False))


def a_million() -> bool:
    fleet = Fleet.lognormal(1_000_000, compute=16.0, sigma=0.5, upload=0.5, upload_sigma=0.5, seed=SEED)
    problem = Problem(fleet, layers=19, rounds=1000, budget=30_000.0)
    plans = [plan(problem) for _ in range(3)]
    seconds = statistics.median(p.seconds for p in plans)
    print("\nR = 1,000, U = 1,000,000 (all different), L = 19")
    print(f"plan(): {seconds:.2f} s (to reach: 2); relative error of grouping {plans[0].grouping_error:.1e}")
    print(f"deadlines {plans[0].schedule.deadlines[0]:.2f} to {plans[0].schedule.deadlines[-1]:.2f} s, m {plans[0].m:.3f}")
    return seconds <= 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="skip the finite-difference solver")
    arguments = parser.parse_args()
    reached = [side_by_side(arguments.quick), a_million()]
    print("\nall goals reached" if all(reached) else "\nNOT all goals reached")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
