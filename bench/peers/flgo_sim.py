"""Run FLGo's FedBuff: 300 clients with random latencies on its clock; a round is a buffer of updates.

FLGo creates tasks from files. The script therefore creates a task of a few points, and replaces its samples and model
by those of the workload. There is no evaluation and no log. FLGo trains a client when it is dispatched, so the number
of rounds is the number of computed updates divided by the size of the buffer.
"""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace

import measure


class FlGo:
    """FedBuff by FLGo; each call of ``run`` creates a runner."""

    def __init__(self, request: measure.Request) -> None:
        import flgo
        import flgo.benchmark.fcube_classification as points
        import flgo.benchmark.fcube_classification.core as core
        import torch
        import torch_models

        torch.set_num_threads(request.threads)
        self.workload = w = request.workload
        self.x, self.y = torch_models.data(w)
        self.folder = tempfile.TemporaryDirectory()
        plain = core.TaskGenerator.__init__

        def sized(generator: object, *args: object, **options: object) -> None:
            plain(generator, *args, **options)
            generator.num_clients = w.devices  # type: ignore[attr-defined]

        core.TaskGenerator.__init__ = sized
        self.task = f"{self.folder.name}/task"
        flgo.gen_task_by_(points, task_path=self.task)
        self.runner: object = None

    def run(self, rounds: int) -> int:
        """Run ``rounds`` merges from the first weights; return the number of computed updates, in units of a merge."""
        import flgo
        import flgo.algorithm.fedbuff as fedbuff
        import numpy as np
        import torch_models
        from flgo.experiment.logger import BasicLogger
        from flgo.simulator import BasicSimulator
        from flgo.utils.fmodule import FModule
        from torch import Tensor
        from torch.utils.data import TensorDataset

        w = self.workload

        trained = 0

        class Client(fedbuff.Client):
            """Client that counts its updates."""

            def train(self, model: FModule) -> None:
                """Count the update, and train as FLGo does."""
                nonlocal trained
                trained += 1
                super().train(model)

        class Net(FModule):
            """Model of the workload."""

            def __init__(self) -> None:
                super().__init__()
                self.inner = torch_models.model(w)

            def forward(self, x: Tensor) -> Tensor:
                """Return the logits."""
                return self.inner(x)

        class Latencies(BasicSimulator):
            """Simulator in which each client has its own latency, from 5 to 100 ticks."""

            def initialize(self) -> None:
                """Draw the latencies."""
                rng = np.random.default_rng(0)
                self.set_variable(list(self.clients), "latency", rng.integers(5, 100, len(self.clients)).tolist())

        class Silent(BasicLogger):
            """Logger that writes nothing."""

            def initialize(self, *args: object, **options: object) -> None:
                """Do nothing."""

            def log_once(self, *args: object, **options: object) -> None:
                """Do nothing."""

        def into(owner: object) -> None:
            if "Server" in type(owner).__name__:
                owner.model = Net()  # type: ignore[attr-defined]

        model = SimpleNamespace(__name__="net", init_local_module=lambda owner: None, init_global_module=into)
        option = {
            "num_rounds": rounds,
            "num_steps": w.steps,
            "batch_size": w.batch,
            "learning_rate": w.rate,
            "proportion": 1.0,
            "eval_interval": -1,
            "log_file": False,
            "no_log_console": True,
            "algo_para": [w.buffer / w.devices + 1e-9, 1.0],
        }
        method = SimpleNamespace(__name__="fedbuff", Server=fedbuff.Server, Client=Client)
        runner = flgo.init(self.task, method, option, model=model, Logger=Silent, Simulator=Latencies)
        for client, x, y in zip(runner.clients, self.x, self.y, strict=True):
            client.set_data(TensorDataset(x, y), "train")
            client.set_learning_rate(w.rate)
        self.runner = runner
        runner.run()
        return trained // w.buffer

    def weights(self) -> list[measure.Floats]:
        """Return the global weights."""
        import torch_models

        return torch_models.arrays(list(self.runner.model.parameters()))  # type: ignore[attr-defined]


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = "1"
    measure.main(measure.request(), FlGo, ["flgo", "torch"])
