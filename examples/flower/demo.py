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

from deployment import Deployment

METHODS = {
    "fedavg": "FedAvg (Flower's own)",
    "drop": "drop stragglers",
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
    """A row per method: what its model knew when the budget was over."""
    print(f"\n{'method':24}{'rounds':>8}{'accuracy':>10}{'8s and 9s':>11}{'seconds':>9}{'of':>6}")
    for method, results in found.items():
        for result in results:
            last = result["evaluations"][-1]
            print(
                f"{METHODS[method]:24}{last['round']:>8}{last['accuracy']:>10.1%}{last['rare']:>11.1%}"
                f"{result['seconds']:>9.1f}{result['budget']:>6.0f}"
            )


if __name__ == "__main__":
    sys.exit(main())
