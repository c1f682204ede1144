"""Compare the merges of adelfl with those of APPFL and FLGo, on the same arrivals.

    python bench/peer_methods.py            # a table; exit code 1 if a difference is not explained
    python bench/peer_methods.py --json

Every program merges the same forty updates of five devices, in the same order and with the same staleness
(bench/peers/arrivals.py), and twelve rounds of a synchronous method. The table shows the largest difference of any
weight after any merge, relative to the largest weight. Differences above 1e-6 must be known and explained. Environments
are created in .bench-envs/ when they are first needed. The table names programs that cannot be installed within ten
minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

import simulators
from simulators import CannotRun, Peer, interpreter, run

TOLERANCE = 1e-6
simulators.INSTALL_SECONDS = 600

OURS = Peer("adelfl", "adelfl_methods.py", None)
PEERS = (
    Peer("APPFL", "appfl_methods.py", "appfl", ("appfl==1.12.0", "torch")),
    Peer("FLGo", "flgo_methods.py", "flgo", ("flgo==0.4.4", "torch")),
)

EXPLAINED = {
    ("FLGo", "fedasync hinge"): "FLGo's hinge is 1/(a (τ − b)); the paper's, and ours, is 1/(a (τ − b) + 1)",
    ("APPFL", "fedbuff of models"): (
        "given models, APPFL's FedBuff adds w_u − w at the moment of arrival; the paper, and we, add w_u − w_start, "
        "which APPFL does when it is given gradients"
    ),
}
NEIGHBOUR = {"fedbuff of models": "fedbuff"}
"""Our method that is nearest to one of a peer."""


def histories(peer: Peer) -> dict[str, list[dict[str, Any]]]:
    """Run the script of a program and return its weights after each merge, by method."""
    python = interpreter(peer)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "histories.json"
        source = {"PYTHONPATH": str(simulators.REPOSITORY / "src")} if peer is OURS else {}
        run([str(python), str(simulators.SCRIPTS / peer.script), str(out)], 300, source)
        found: dict[str, list[dict[str, Any]]] = json.loads(out.read_text())
    return found


def difference(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> float:
    """Return the largest difference over all merges, relative to the largest weight; infinite if merges differ."""
    if len(one) != len(other):
        return float("inf")
    flat = [[np.concatenate([np.ravel(w[n]) for n in sorted(w)]) for w in history] for history in (one, other)]
    apart = np.abs(np.array(flat[0]) - np.array(flat[1]))
    return float(apart.max() / np.abs(flat[0]).max())


def compare() -> list[dict[str, Any]]:
    ours, rows = histories(OURS), []
    for peer in PEERS:
        try:
            theirs = histories(peer)
        except CannotRun as reason:
            rows.append({"peer": peer.name, "method": "-", "difference": None, "verdict": f"cannot run: {reason}"})
            continue
        for method, history in theirs.items():
            apart = difference(ours[NEIGHBOUR.get(method, method)], history)
            reason = EXPLAINED.get((peer.name, method))
            verdict = "equal" if apart <= TOLERANCE else f"explained: {reason}" if reason else "NOT EXPLAINED"
            merges = len(history)
            rows.append(
                {"peer": peer.name, "method": method, "merges": merges, "difference": apart, "verdict": verdict}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = compare()
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print("| program | method | merges | largest difference | |\n| --- | --- | --- | --- | --- |")
        for row in rows:
            apart = "-" if row["difference"] is None else f"{row['difference']:.1e}"
            print(f"| {row['peer']} | {row['method']} | {row.get('merges', '-')} | {apart} | {row['verdict']} |")
    sys.exit(any(row["verdict"] == "NOT EXPLAINED" for row in rows))


if __name__ == "__main__":
    main()
