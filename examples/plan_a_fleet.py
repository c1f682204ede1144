"""Plan for the fleet in a CSV file, and print whether planning helps.

python examples/plan_a_fleet.py
"""

from pathlib import Path

import adelfl as ad


def main() -> None:
    """Print the advice, the first and last deadline, and each group's batch size in the first and last round."""
    fleet = ad.Fleet.from_csv(Path(__file__).parent / "fleet.csv")
    problem = ad.Problem(fleet, layers=4, rounds=100, budget=60.0, learning_rate=ad.ConstantRate(0.1))
    solution = ad.plan(problem)
    print(solution.advice)
    deadlines = solution.schedule.deadlines
    print(f"Deadlines: {deadlines[0]:.2f} s in the first round, {deadlines[-1]:.2f} s in the last.")
    first, last = solution.schedule.batch_sizes(0), solution.schedule.batch_sizes(problem.rounds - 1)
    for group in range(fleet.groups):
        print(f"{fleet.count[group]:3d} {fleet.name(group)}: batch sizes from {first[group]} to {last[group]}.")
    for device in solution.sitting_out:
        print(f"{device.name} sits out: {device.reason}")


if __name__ == "__main__":
    main()
