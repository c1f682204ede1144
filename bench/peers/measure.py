"""What all peers share: the command line, the stopwatch and the one line of JSON.

CPU time is ``time.process_time`` (all threads of the process, user and system), between the end of the warm-up
rounds and the end of the timed rounds, so start-up, imports, data and compilation are not counted. Flower works in
many processes and brings its own stopwatch.
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
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np
from workloads import WORKLOADS, Floats, Integers, Workload, for_check


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    workload: Workload
    name: str
    rounds: int
    warmup: int
    threads: int
    batches: Integers | None
    """In a cross-check: the rows that every device must take. Otherwise each device draws its own."""
    check: Path | None
    rows: Path | None = None
    """The file that ``batches`` are from. adelfl draws its own, as in a timed run, and leaves them there for others."""
    variant: str = ""
    """One of the ways in which this peer can be set up (simulators.py lists them); empty: the plain one."""


class Simulation(Protocol):
    """A peer, ready to go."""

    def run(self, rounds: int) -> None:
        """Train for that many rounds, and return when they are done."""
        ...

    def weights(self) -> list[Floats]:
        """The global weights, in the order and the layouts of ``workloads.first_weights``."""
        ...


def request() -> Request:
    """Read the command line, and set the threads before a library can read the environment."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, help="timed rounds")
    parser.add_argument("--warmup", type=int, help="rounds before those")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--variant", default="", help="a way to set this peer up; see simulators.py")
    parser.add_argument(
        "--check", type=Path, metavar="OUT.npz", help="one round on the batches of --rows; write the weights"
    )
    parser.add_argument("--rows", type=Path, metavar="ROWS.npy", help="with --check: (devices, batch) rows to train on")
    given = parser.parse_args()
    if (given.check is None) != (given.rows is None):
        parser.error("--check and --rows belong together")
    workload = WORKLOADS[given.workload]
    if given.check:
        workload = for_check(workload)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(given.threads)
    return Request(
        workload=workload,
        name=given.workload,
        rounds=given.rounds or workload.rounds,
        warmup=workload.warmup if given.warmup is None else given.warmup,
        threads=given.threads,
        batches=np.load(given.rows) if given.check else None,
        check=given.check,
        rows=given.rows,
        variant=given.variant,
    )


def main(asked: Request, prepare: Callable[[Request], Simulation], packages: list[str]) -> None:
    """Time a peer that lives in this process, or write the weights of its first round."""
    simulation = prepare(asked)
    if asked.check:
        simulation.run(1)
        save(asked.check, simulation.weights())
        return
    simulation.run(asked.warmup)
    wall, cpu = time.perf_counter(), time.process_time()
    simulation.run(asked.rounds)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    must_be_finite(simulation.weights())
    report(asked, cpu, wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, packages)


def report(asked: Request, cpu: float, wall: float, peak_mb: float, packages: list[str]) -> None:
    """Print the one line that simulators.py reads; ``cpu`` and ``wall`` are seconds for all timed rounds."""
    found = {
        "cpu_s_per_round": cpu / asked.rounds,
        "wall_s_per_round": wall / asked.rounds,
        "peak_mb": peak_mb,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "threads": asked.threads,
        "rounds": asked.rounds,
    }
    print(json.dumps(found), flush=True)


def save(path: Path, weights: list[Floats]) -> None:
    """Write weights for the cross-check."""
    np.savez(path, *weights)


def must_be_finite(weights: list[Floats]) -> None:
    """Training that blew up computes with NaN, whose speed says nothing."""
    if not all(np.isfinite(w).all() for w in weights):
        sys.exit("the weights are no longer finite: this time means nothing")
