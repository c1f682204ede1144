"""Command line, timing and JSON output that all peers share.

CPU time is ``time.process_time`` (all threads of the process, user and system), between the end of the warm-up
rounds and the end of the timed rounds, so start-up, imports, data and compilation are not counted. Flower works in
several processes and measures its own time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np
from workloads import WORKLOADS, Floats, Integers, Workload, for_check


@dataclass(frozen=True)
class Request:
    """Parsed command line."""

    workload: Workload
    name: str
    rounds: int
    warmup: int
    threads: int
    batches: Integers | None
    """Rows (steps, devices, batch) to use in a cross-check; None if devices draw their own."""
    check: Path | None
    rows: Path | None = None
    """File of ``batches``. adelfl writes the rows that it draws to this file; the other peers read them."""
    variant: str = ""
    """Variant of this peer (simulators.py lists them); empty for the default."""


class Simulation(Protocol):
    """A peer that is set up and ready to run."""

    def run(self, rounds: int) -> int | None:
        """Train for ``rounds`` rounds; return the actual number if only a mean number can be requested."""
        ...

    def weights(self) -> list[Floats]:
        """The global weights, in the order and the layouts of ``workloads.first_weights``."""
        ...


def request() -> Request:
    """Parse the command line, and set the number of threads before any library reads the environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, help="timed rounds")
    parser.add_argument("--warmup", type=int, help="rounds before those")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variant", default="", help="a way to set this peer up; see simulators.py")
    parser.add_argument(
        "--check", type=Path, metavar="OUT.npz", help="one round on the batches of --rows; write the weights"
    )
    parser.add_argument(
        "--rows", type=Path, metavar="ROWS.npy", help="with --check: (steps, devices, batch) rows to train on"
    )
    args = parser.parse_args()
    if (args.check is None) != (args.rows is None):
        parser.error("--check and --rows belong together")
    workload = WORKLOADS[args.workload]
    if args.check:
        workload = for_check(workload)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    return Request(
        workload=workload,
        name=args.workload,
        rounds=args.rounds or workload.rounds,
        warmup=workload.warmup if args.warmup is None else args.warmup,
        threads=args.threads,
        batches=np.load(args.rows) if args.check else None,
        check=args.check,
        rows=args.rows,
        variant=args.variant,
    )


def main(request: Request, prepare: Callable[[Request], Simulation], packages: list[str]) -> None:
    """Time a peer that runs in this process, or write the weights after its first round."""
    simulation = prepare(request)
    if request.check:
        simulation.run(1)
        save(request.check, simulation.weights())
        return
    simulation.run(request.warmup)
    wall, cpu = time.perf_counter(), time.process_time()
    done = simulation.run(request.rounds)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    must_be_finite(simulation.weights())
    request = replace(request, rounds=done or request.rounds)
    report(request, cpu, wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, packages)


def report(request: Request, cpu: float, wall: float, peak_mb: float, packages: list[str]) -> None:
    """Print the JSON line that simulators.py reads; ``cpu`` and ``wall`` are seconds for all timed rounds."""
    result = {
        "cpu_s_per_round": cpu / request.rounds,
        "wall_s_per_round": wall / request.rounds,
        "peak_mb": peak_mb,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "threads": request.threads,
        "rounds": request.rounds,
    }
    print(json.dumps(result), flush=True)


def save(path: Path, weights: list[Floats]) -> None:
    """Write weights for the cross-check."""
    np.savez(path, *weights)


def must_be_finite(weights: list[Floats]) -> None:
    """Exit if the weights are not finite, because the time of diverged training is not meaningful."""
    if not all(np.isfinite(w).all() for w in weights):
        sys.exit("the weights are not finite, so the time is not meaningful")
