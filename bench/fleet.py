"""Measure how the cost of an asynchronous update depends on the size of the fleet, with 1,000 devices under way.

    python bench/fleet.py [--devices 1000,10000,100000] [--merges 200] [--repeats 3]

The method is FedBuff with a buffer of 10 and one local step of an MLP 16-32-16-10 on 8 samples, so that clock, draws
and dispatch dominate. There is no evaluation and no server step. The table shows CPU milliseconds per update (medians;
one thread; fleet sizes run in turns). It also shows the peak memory that tracemalloc measures in a separate run, while
updates are computed after the set-up. Some numbers per device are computed once, when they are first needed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from adelfl import ConstantRate, Fleet
from adelfl.data import Dataset, Partition
from adelfl.planner import Problem
from adelfl.process import settle
from adelfl.runtime.loop import Loop
from adelfl.simulation import Experiment
from adelfl.simulation.engine import Simulation
from adelfl.strategies.fedbuff import FedBuff
from adelfl.training.layers import find_layers
from adelfl.training.models import build_model

UNDER_WAY, BUFFER, BATCH = 1000, 10, 8


def experiment(devices: int, merges: int) -> Experiment:
    """Return an experiment of about ``merges`` merges, in which each device holds two samples."""
    import torch

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * devices, 16), dtype=np.float32)
    y = rng.integers(0, 10, 2 * devices)
    model = build_model("mlp", input_shape=(16,), classes=10, seed=0)
    layers = find_layers(model, torch.from_numpy(x[:2]))
    seconds = merges * BUFFER / UNDER_WAY * BATCH * len(layers) / 16.0
    fleet = Fleet.of(16.0, 0.0, devices)
    problem = Problem(fleet, len(layers), merges, seconds, ConstantRate(0.05), batch=BATCH, cohort=UNDER_WAY)
    dataset = Dataset.from_arrays(x, y, x[:64], y[:64])
    partition = Partition.of(np.arange(2 * devices).reshape(devices, 2), 2 * devices)
    strategy = FedBuff(problem, buffer=BUFFER)
    return Experiment(dataset, partition, model, layers, strategy, seed=0, evaluations=1, oversample=True)


def run(of: Experiment) -> Callable[[], int]:
    """Set up a run; return a function that computes it and returns the number of updates."""
    simulation = Simulation(of)
    loop = Loop(simulation.strategy, simulation.backend, of.strategy.problem.budget)

    def go() -> int:
        loop.run(loop.steps(), lambda step: None, lambda step: None)
        return loop.version * BUFFER

    return go


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="1000,10000,100000")
    parser.add_argument("--merges", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    settle(1)
    worlds = {int(n): experiment(int(n), args.merges) for n in args.devices.split(",")}
    costs: dict[int, list[float]] = {n: [] for n in worlds}
    for _ in range(args.repeats + 1):
        for n, world in worlds.items():
            go = run(world)
            start = time.process_time()
            updates = go()
            costs[n].append(1e3 * (time.process_time() - start) / updates)
    print(f"{'devices':>10}{'CPU ms/update':>15}{'peak MB while updating':>25}")
    for n, world in worlds.items():
        go = run(world)
        tracemalloc.start()
        go()
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        print(f"{n:10,}{statistics.median(costs[n][1:]):15.3f}{peak:25.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
