"""Compare the plan's choice of rounds and local steps with a grid, in twelve worlds.

python bench/local_work.py [--seeds 2] [--jobs 2] [--out local-work.json]

The worlds have 4 or 30 devices of lognormal speed, IID data or Dirichlet 0.1, and a lag of 0, 2.5 or 4 s per round (0,
half and four fifths of a round of 5 s). All have digits, 100 s, steady layer times and a learning rate of 0.3. ``adel``
with ``rounds = local_iterations = "auto"`` is compared with ``adel`` at every point of a grid of (R, E), and with
FedAvg (``wait``) at every E of the grid.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

BUDGET = 100.0
ROUNDS, STEPS = (5, 10, 20, 40, 80), (1, 4, 16, 64)
WORLDS = tuple(itertools.product((4, 30), ("iid", "dirichlet"), (0.0, 2.5, 4.0)))


def accuracy(world: tuple[int, str, float], strategy: str, rounds: int | str, steps: int | str, seed: int) -> float:
    """Return the final accuracy of one run, in percent; NaN if it broke down."""
    from adelfl import build_experiment, load_run, simulate
    from adelfl.errors import AdelError
    from adelfl.process import settle

    settle(1)
    devices, partition, lag = world
    changes = [
        "data.name=digits",
        f"data.partition={partition}",
        *(["data.alpha=0.1"] if partition == "dirichlet" else []),
        f"fleet.devices={devices}",
        "fleet.compute=160",
        "fleet.sigma=0.7",
        f"fleet.upload={lag}",
        "latency.law=gamma",
        "latency.spread=0.3",
        f"training.budget={BUDGET}",
        f"training.rounds={json.dumps(rounds)}",
        f"training.local_iterations={json.dumps(steps)}",
        "training.evaluations=1",
        "learning_rate.schedule=constant",
        "learning_rate.initial=0.3",
    ]
    config = load_run(None, changes).with_strategy(strategy, {}, seed)
    try:
        return 100.0 * float(simulate(build_experiment(config)).final_accuracy or 0.0)
    except AdelError:
        return math.nan


def main() -> int:
    """Print a row per world."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write all accuracies there (JSON)")
    args = parser.parse_args()
    choices = [("adel", "auto", "auto"), *(("wait", 400, E) for E in STEPS)]
    choices += [("adel", R, E) for R, E in itertools.product(ROUNDS, STEPS)]
    table = []
    print(f"{'devices':>7} {'data':>10} {'lag':>4}   auto   best of grid (R, E)   best FedAvg (E)", flush=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        for world in WORLDS:
            jobs = {
                choice: [pool.submit(accuracy, world, *choice, seed) for seed in range(args.seeds)]
                for choice in choices
                if choice[1] in ("auto", 400) or world[2] * float(choice[1]) < BUDGET
            }
            mean = {choice: float(np.mean([job.result() for job in runs])) for choice, runs in jobs.items()}
            grid = max((c for c in mean if c[0] == "adel" and c[1] != "auto"), key=lambda c: np.nan_to_num(mean[c]))
            wait = max((c for c in mean if c[0] == "wait"), key=lambda c: np.nan_to_num(mean[c]))
            chosen = mean["adel", "auto", "auto"]
            n, data, lag = world
            print(
                f"{n:7d} {data:>10} {lag:4.1f}  {chosen:5.1f}   {mean[grid]:5.1f} ({grid[1]}, {grid[2]})"
                f"          {mean[wait]:5.1f} ({wait[2]})",
                flush=True,
            )
            table.append({"world": world, "accuracies": [[*choice, value] for choice, value in mean.items()]})
    if args.out:
        args.out.write_text(json.dumps(table, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
