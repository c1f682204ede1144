"""Run adelfl's complete simulator (cohort, virtual clock, draws, merge, records), as ``adelfl run`` does.

A cross-check runs the same code for one round and writes the rows that it drew to a file, for use by the other peers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import measure

SEED = 1  # with seed 0, rounding decides the sign of a ReLU input in the check


class Adelfl:
    """Simulation with FedBuff, or with the oracle, in which all devices finish in time and a round equals FedAvg."""

    def __init__(self, request: measure.Request) -> None:
        import numpy as np
        import torch
        import torch_models

        from adelfl.data import Dataset, Partition
        from adelfl.process import settle
        from adelfl.training.layers import find_layers

        settle(request.threads)
        w = self.workload = request.workload
        x, y = torch_models.data(w)
        x, y = x.flatten(0, 1).numpy(), y.flatten(0, 1).numpy()
        self.dataset = Dataset.from_arrays(x, y, x[:64], y[:64])
        self.partition = Partition.of(np.arange(w.devices * w.samples).reshape(w.devices, w.samples), len(y))
        self.model = torch_models.model(w)
        self.layers = find_layers(self.model, torch.from_numpy(x[:2]))
        self.records = tempfile.TemporaryDirectory()
        self.runs = 0
        if request.rows:
            np.save(request.rows, self._rows_of_first_round())

    def run(self, rounds: int) -> int:
        """Simulate and record a number of rounds from the initial weights, or about as many merges of FedBuff."""
        from adelfl import ConstantRate, Fleet
        from adelfl.planner import Problem
        from adelfl.runtime.run import Record
        from adelfl.simulation import Experiment, simulate
        from adelfl.simulation.recording import describe
        from adelfl.strategies.base import Strategy
        from adelfl.strategies.fedbuff import FedBuff
        from adelfl.strategies.oracle import Oracle

        w = self.workload
        fleet = Fleet.lognormal(w.devices, compute=16.0, sigma=0.5, seed=0)
        rate, sizes = ConstantRate(w.rate), {"batch": w.batch, "local_iterations": w.steps}
        if w.buffer is None:
            strategy: Strategy = Oracle(Problem(fleet, len(self.layers), rounds, float(rounds), rate, **sizes))
        else:  # devices of one speed, and a budget for that many merges on average
            fleet = Fleet.of(16.0, 0.0, w.devices)
            seconds = w.steps * w.batch * len(self.layers) / 16.0 * w.buffer / w.devices
            problem = Problem(fleet, len(self.layers), rounds, rounds * seconds, rate, **sizes)
            strategy = FedBuff(problem, buffer=w.buffer)
        experiment = Experiment(
            self.dataset, self.partition, self.model, self.layers, strategy, seed=SEED, evaluations=1
        )
        self.runs += 1
        return simulate(experiment, Record(self._last_run(), describe(experiment, {}, {}))).rounds

    def weights(self) -> list[measure.Floats]:
        """Return the final weights of the last run, from its record."""
        from adelfl.records.reader import RunRecord

        weights = RunRecord(self._last_run()).weights()
        return [weights[name] for name, _ in self.model.named_parameters()]

    def _last_run(self) -> Path:
        return Path(self.records.name) / f"run-{self.runs}"

    def _rows_of_first_round(self) -> measure.Integers:
        """Return the indices of the samples that each device draws, of shape (steps, devices, batch)."""
        import numpy as np

        from adelfl.simulation.draws import draw_rows

        w = self.workload
        cohort = (0, np.arange(w.devices), np.full(w.devices, w.batch))
        (drawn,) = draw_rows(self.partition, SEED, [cohort], [w.steps])
        rows = np.stack(drawn).reshape(w.steps, w.devices, w.batch) - w.samples * np.arange(w.devices)[:, None]
        if rows.min() < 0 or rows.max() >= w.samples:
            sys.exit("a device drew a sample that is not its own")
        return rows


if __name__ == "__main__":
    measure.main(measure.request(), Adelfl, ["adelfl", "torch"])
