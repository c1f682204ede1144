"""Stock FedAvg, dropping and ADEL-FL on a real Flower deployment, under one wall-clock budget.

    python examples/flower/demo.py              (or: make flower-demo)

A SuperLink and four SuperNodes on loopback, TLS and node authentication on; the last node is eight times slower, and
has most of the eights and nines. Everything is stopped at the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from deployment import Deployment

from adelfl.report.comparison import standard_error

METHODS = {
    "fedavg": "FedAvg (Flower's own)",
    "fedavg-timeout": "FedAvg with a timeout",
    "drop": "drop stragglers",
    "fedbuff": "FedBuff",
    "adel": "ADEL-FL",
    "adel-paper": "ADEL-FL (the paper's)",
}


def main() -> int:
    """Run the methods one after another, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--budget", type=float, default=160.0, help="seconds for each method")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--slowdown", type=float, default=8.0, help="of the last node")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["fedavg", "drop", "adel"])
    parser.add_argument("--repeats", type=int, default=1, help="of every method")
    parser.add_argument("--out", type=Path, help="write all accuracies there (JSON)")
    asked = parser.parse_args()
    # Ended from outside, still stop what was started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: dict[str, list[dict]] = {method: [] for method in asked.methods}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="adelfl-demo-") as temporary:
        print("starting a SuperLink and four SuperNodes with TLS and node authentication ...", flush=True)
        with Deployment([1.0, 1.0, 1.0, asked.slowdown], Path(temporary) / "flower") as flower:
            for repeat in range(asked.repeats):
                for method in asked.methods:
                    title = METHODS[method]
                    out = Path(temporary) / f"{method}-{repeat}.json"
                    print(f"{title}: {asked.budget:.0f} s ...", flush=True)
                    config = {"method": method, "budget": asked.budget, "rounds": asked.rounds, "out": str(out)}
                    status = flower.run(config, seconds=2 * asked.budget + 120)
                    if not out.exists():
                        print(f"{title} ended with {status}:\n{flower.last_log}", file=sys.stderr)
                        return 1
                    found[method].append(json.loads(out.read_text(encoding="utf-8")))
    print_table(found)
    print(f"\n{time.monotonic() - began:.0f} s in all; every process is stopped.")
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


def print_table(found: dict[str, list[dict]]) -> None:
    """What each method's model knew when the budget was over: a row per run, and of several runs their mean."""
    line = "{:24}{:>12}{:>14}{:>14}{:>14}{:>6}".format
    print("\n" + line("method", "rounds", "accuracy, %", "8s and 9s, %", "seconds", "of"))
    for method, results in found.items():
        budget = f"{results[0]['budget']:.0f}"
        ends = []
        for result in results:
            last = result["evaluations"][-1]
            ends.append((last["round"], 100 * last["accuracy"], 100 * last["rare"], result["seconds"]))
            print(line(METHODS[method], last["round"], *(f"{value:.1f}" for value in ends[-1][1:]), budget))
        if len(ends) > 1:
            print(line("    mean", *map(mean_and_error, zip(*ends, strict=True)), budget))


def mean_and_error(values: tuple[float, ...]) -> str:
    """Mean ± standard error."""
    return f"{np.mean(values):.1f} ± {standard_error(np.array(values)):.1f}"


if __name__ == "__main__":
    sys.exit(main())
