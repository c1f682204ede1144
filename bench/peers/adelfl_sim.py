"""adelfl's own simulator, whole: cohort, virtual clock, draws, merge and records, as ``adelfl run`` does it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import measure


class Adelfl:
    """Everybody takes part and is in time (the oracle), so that a round is FedAvg."""

    def __init__(self, asked: measure.Request) -> None:
        import numpy as np
        import torch
        import torch_models

        from adelfl.data import Dataset, Partition
        from adelfl.learning.engines import keep_memory
        from adelfl.learning.layers import find_layers

        torch.set_num_threads(asked.threads)
        keep_memory()
        self.workload, self.fixed = asked.workload, asked.batches
        w = asked.workload
        x, y = torch_models.data(w)
        x, y = x.flatten(0, 1).numpy(), y.flatten(0, 1).numpy()
        self.dataset = Dataset.from_arrays(x, y, x[:64], y[:64])
        self.partition = Partition.of(np.arange(w.devices * w.samples).reshape(w.devices, w.samples), len(y))
        self.model = torch_models.model(w)
        self.layers = find_layers(self.model, torch.from_numpy(x[:2]))

    def run(self, rounds: int) -> None:
        """Simulate so many rounds from the first weights, and record them."""
        from adelfl import ConstantRate, Fleet
        from adelfl.record import RunWriter
        from adelfl.simulation import Experiment, simulate
        from adelfl.strategies import Setting
        from adelfl.strategies.oracle import Oracle

        if self.fixed is not None:
            self._fixed_round()
            return
        w = self.workload
        fleet = Fleet.lognormal(w.devices, compute=16.0, sigma=0.5, seed=0)
        setting = Setting(fleet, len(self.layers), rounds, float(rounds), w.batch, ConstantRate(w.rate))
        experiment = Experiment(
            self.dataset, self.partition, self.model, self.layers, Oracle(setting), seed=0, evaluations=1
        )
        with tempfile.TemporaryDirectory() as folder, RunWriter.create(Path(folder) / "run", {}) as writer:
            simulate(experiment, writer)

    def _fixed_round(self) -> None:
        import numpy as np
        import torch

        from adelfl.learning.engines import LocalWork, build_engine
        from adelfl.learning.work import RoundWork, Samples
        from adelfl.strategies.base import Progress

        w, L = self.workload, len(self.layers)
        rows = (self.fixed + w.samples * np.arange(w.devices)[:, None]).reshape(-1)
        progress = Progress(np.full(w.devices, L), L, 1, np.ones(w.devices))
        A = np.full((w.devices, L), 1 / w.devices)
        samples = Samples(torch.from_numpy(self.dataset.x_train), torch.from_numpy(self.dataset.y_train))
        engine = build_engine("fused", self.model, self.layers, samples, LocalWork())
        engine.run(RoundWork((rows,), np.full(w.devices, w.batch), A, progress, w.rate))

    def weights(self) -> list[measure.Floats]:
        """The model's weights; a timed run trains copies."""
        import torch_models

        return torch_models.arrays(list(self.model.parameters()))


if __name__ == "__main__":
    measure.main(measure.request(), Adelfl, ["adelfl", "torch"])
