"""Compare Flower's own FedAvg with adelfl's methods on a real Flower deployment, under one wall-clock budget.

    python examples/flower/demo.py              (or: make flower-demo)
    python examples/flower/demo.py --scenario 3 --methods fedavg drop fedbuff adel --repeats 5 --out results.csv

The script starts a SuperLink and SuperNodes on loopback, with TLS and node authentication, and stops them at the end.
Scenarios:

    1   four nodes on digits; the last one is eight times slower and holds most of the eights and nines. Nodes sleep to
        emulate slow devices.
    2   four nodes and a CNN on MNIST, with real computing; the last two nodes get half and a seventh of a core.
    3   eight nodes on digits; the last one is 20 times slower, and another is gone for the second third of the run.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from deployment import Deployment

from adelfl.report.comparison import standard_error

METHODS = {
    "fedavg": "FedAvg (Flower's own)",
    "fedavg-timeout": "FedAvg with a timeout",
    "drop": "drop",
    "fedbuff": "FedBuff",
    "adel": "adel",
    "adel-paper": "adel-paper",
}


@dataclass(frozen=True)
class Scenario:
    """Nodes of a deployment, with their speeds and absences.

    Attributes
    ----------
    budget : float
        Seconds for each method.
    slowdowns : list of float
        Factor by which each node is slower than a device of speed 1, by sleeping; 0 to compute without sleeping.
    shares : dict of int to float
        Share of a core that nodes may use.
    away : tuple of (int, float, float), optional
        A node, and the shares of the budget at which it is killed and started again.
    config : dict
        Settings of the app.
    steps : dict of str to int
        Local steps of the methods that do not choose them, selected from a grid by a simulation of the scenario
        (tune.py; in scenario 2, ``adelfl what-if`` on a record).
    """

    budget: float
    slowdowns: list[float]
    shares: dict[int, float] = field(default_factory=dict)
    away: tuple[int, float, float] | None = None
    config: dict[str, object] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


SCENARIOS = {
    1: Scenario(160.0, [1.0, 1.0, 1.0, 8.0], steps={"fedavg": 30, "drop": 60, "fedbuff": 60}),
    2: Scenario(
        240.0,
        [0.0] * 4,
        shares={2: 0.5, 3: 0.15},
        config={"task": "mnist", "learning-rate": 0.1},
        steps={"fedavg": 480, "drop": 240, "fedbuff": 480},
    ),
    3: Scenario(200.0, [1.0] * 7 + [20.0], away=(6, 1 / 3, 2 / 3), steps={"fedavg": 20, "drop": 30, "fedbuff": 60}),
}


def main() -> int:
    """Run the methods one after another, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", type=int, choices=SCENARIOS, default=1)
    parser.add_argument("--budget", type=float, help="seconds for each method; by default the scenario's")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of methods that do not choose their number")
    parser.add_argument(
        "--local-iterations", type=int, help="local steps of methods that do not choose them; by default tuned"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["fedavg", "drop", "adel"])
    parser.add_argument("--repeats", type=int, default=1, help="runs of every method")
    parser.add_argument("--out", type=Path, help="CSV file to which each result is appended as its run ends")
    parser.add_argument("--records", type=Path, help="folder for the records of adelfl's methods")
    options = parser.parse_args()
    # Exit on SIGTERM such that the deployment is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scenario = SCENARIOS[options.scenario]
    results: dict[str, list[dict[str, object]]] = {method: [] for method in options.methods}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="adelfl-demo-") as temporary:
        print(f"starting a SuperLink and {len(scenario.slowdowns)} SuperNodes with TLS ...", flush=True)
        with Deployment(scenario.slowdowns, Path(temporary) / "flower", scenario.shares) as flower:
            for repeat in range(options.repeats):
                for method in options.methods:
                    result = run(flower, scenario, method, repeat, options, Path(temporary))
                    if result is None:
                        return 1
                    results[method].append(result)
    print_table(results)
    print(f"\n{time.monotonic() - began:.0f} s in total; all processes are stopped.")
    return 0


def run(
    flower: Deployment, scenario: Scenario, method: str, repeat: int, options: argparse.Namespace, folder: Path
) -> dict[str, object] | None:
    """Run one method once; return its result, and append it to the CSV file."""
    budget = options.budget or scenario.budget
    out = folder / f"{method}-{repeat}.json"
    print(f"{METHODS[method]}: {budget:.0f} s ...", flush=True)
    config = scenario.config | {
        "method": method,
        "budget": budget,
        "timeout": budget / 8,
        "rounds": options.rounds,
        "local-iterations": options.local_iterations or scenario.steps.get(method.removesuffix("-timeout"), 30),
        "nodes": len(scenario.slowdowns),
        "out": str(out),
    }
    if options.records is not None:
        config["record"] = str(options.records.absolute() / f"scenario{options.scenario}-{method}-{repeat}")
    away = nullcontext()
    if scenario.away is not None:
        node, leaves, returns = scenario.away
        away = flower.away(node, leaves * budget, returns * budget)
    with away:
        status = flower.run(config, seconds=2 * budget + 120)
    if not out.exists():
        print(f"{METHODS[method]} ended with {status}:\n{flower.last_log}", file=sys.stderr)
        return None
    answer = json.loads(out.read_text(encoding="utf-8"))
    last = answer["evaluations"][-1]
    result = {
        "scenario": options.scenario,
        "method": method,
        "repeat": repeat,
        "budget": budget,
        "local_iterations": "auto" if method == "adel" else config["local-iterations"],
        "rounds": last["round"],
        "accuracy": last["accuracy"],
        "rare": last["rare"],
        "seconds": answer["seconds"],
    }
    if options.out is not None:
        new = not options.out.exists()
        with options.out.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, result.keys())
            if new:
                writer.writeheader()
            writer.writerow(result)
    return result


def print_table(results: dict[str, list[dict[str, object]]]) -> None:
    """Print the accuracy of each run at the end of the budget, and the mean if a method has several runs."""
    line = "{:24}{:>12}{:>14}{:>14}{:>14}{:>6}".format
    print("\n" + line("method", "rounds", "accuracy, %", "8s and 9s, %", "seconds", "of"))
    for method, runs in results.items():
        budget = f"{runs[0]['budget']:.0f}"
        ends = [(r["rounds"], 100 * r["accuracy"], 100 * r["rare"], r["seconds"]) for r in runs]
        for end in ends:
            print(line(METHODS[method], end[0], *(f"{value:.1f}" for value in end[1:]), budget))
        if len(ends) > 1:
            print(line("    mean", *map(mean_and_error, zip(*ends, strict=True)), budget))


def mean_and_error(values: tuple[float, ...]) -> str:
    """Format the mean and its standard error."""
    return f"{np.mean(values):.1f} ± {standard_error(np.array(values)):.1f}"


if __name__ == "__main__":
    sys.exit(main())
