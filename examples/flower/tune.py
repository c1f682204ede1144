"""Select the local steps of the demonstration's baselines by simulating scenarios 1 and 3 with a grid of steps.

    python examples/flower/tune.py [--seeds 4]

Lags are those of the real deployment on two cores, 10 and 15 s. A step takes as long as on the emulated nodes.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np

import adelfl as ad
from adelfl.errors import AdelError
from adelfl.report.comparison import standard_error

STEPS = (5, 10, 15, 20, 30, 60, 120)
SCENARIOS = {
    1: (160.0, [500.0] * 3 + [62.5], 10.0, "split"),
    3: (200.0, [500.0] * 7 + [25.0], 15.0, "split_in_eight"),
}
METHODS = {"wait": 400, "drop": 10, "fedbuff": 400}  # with their most rounds


def accuracy(scenario: int, method: str, rounds: int, steps: int, seed: int, folder: Path) -> float:
    """Return the final accuracy of one simulated run, in percent; NaN if it could not run."""
    budget, speeds, lag, split = SCENARIOS[scenario]
    fleet = folder / f"fleet{scenario}.csv"
    fleet.write_text("compute,upload\n" + "".join(f"{speed},{lag}\n" for speed in speeds))
    changes = [
        f"fleet.file={fleet}",
        f"data.partition=digits_app.task:{split}",
        "model.factory=digits_app.task:build",
        "latency.law=gamma",
        "latency.spread=0.1",
        f"training.budget={budget}",
        f"training.rounds={rounds}",
        f"training.local_iterations={steps}",
        "learning_rate.initial=0.3",
    ]
    options = {"buffer": len(speeds)} if method == "fedbuff" else {}
    try:
        experiment = ad.build_experiment(ad.load_run(None, changes).with_strategy(method, options, seed))
        return 100.0 * (ad.simulate(experiment).final_accuracy or 0.0)
    except AdelError:
        return math.nan


def main() -> None:
    """Print a row per scenario and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    seeds = range(1000, 1000 + parser.parse_args().seeds)
    with tempfile.TemporaryDirectory() as folder:
        for scenario in SCENARIOS:
            for method, rounds in METHODS.items():
                print(f"scenario {scenario}, {method}:", end="")
                for steps in STEPS:
                    ends = [accuracy(scenario, method, rounds, steps, seed, Path(folder)) for seed in seeds]
                    print(f"  {steps}: {np.mean(ends):.1f} ± {standard_error(np.array(ends)):.1f}", end="", flush=True)
                print()


if __name__ == "__main__":
    main()
