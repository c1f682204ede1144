"""Plan for a fleet that a CSV file lists, and hear whether a plan is worth its trouble.

python examples/plan_a_fleet.py
"""

from pathlib import Path

import adelfl as ad


def main() -> None:
    """Print the advice, the first and last deadline, and what each group of devices is asked to do."""
    fleet = ad.Fleet.from_csv(Path(__file__).parent / "fleet.csv")
    problem = ad.Problem(fleet, layers=4, rounds=100, budget=60.0, learning_rate=ad.ConstantRate(0.1))
    solution = ad.plan(problem)
    print(solution.advice)
    deadlines = solution.schedule.deadlines
    print(f"Deadlines: {deadlines[0]:.2f} s in the first round, {deadlines[-1]:.2f} s in the last.")
    first, last = solution.schedule.batch_sizes(0), solution.schedule.batch_sizes(problem.rounds - 1)
    for group in range(fleet.groups):
        print(f"{fleet.count[group]:3d} {fleet.name(group)}: batch {first[group]} at first, {last[group]} in the end.")
    for one in solution.sitting_out:
        print(f"{one.name} sits out: {one.reason}")


if __name__ == "__main__":
    main()
