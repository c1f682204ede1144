"""Run Apple's pfl-research: SimulatedBackend and FederatedAveraging with its own local SGD, without code of adelfl.

The settings are the fastest found. There is one user per device. A batch is drawn and passed as a complete dataset
(``local_batch_size=None``, so that pfl does not slice it). There are no postprocessors, callbacks, validation cohorts
or reported metrics. The evaluation of round 0, which pfl requires, is part of the warm-up. Threads are torch's. pfl
itself uses two cores with two processes under torchrun, which saves wall-clock time but no CPU time.
"""

from __future__ import annotations

import measure


class Pfl:
    """FedAvg by pfl-research."""

    def __init__(self, request: measure.Request) -> None:
        import torch
        import torch_models
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.hyperparam import NNTrainHyperParams
        from pfl.metrics import Weighted
        from pfl.model.pytorch import PyTorchModel
        from torch import Tensor, nn
        from torch.nn.functional import cross_entropy

        torch.set_num_threads(request.threads)
        torch.manual_seed(0)
        w = request.workload
        fixed = None if request.batches is None else torch.from_numpy(request.batches[0])
        xs, ys = torch_models.data(w)

        class WithLoss(nn.Module):
            """Model with the loss and metrics methods that pfl requires."""

            def __init__(self) -> None:
                super().__init__()
                self.inner = torch_models.model(w, request.variant)

            def loss(self, x: Tensor, y: Tensor) -> Tensor:
                return cross_entropy(self.inner(x), y)

            @torch.no_grad()
            def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
                return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

        def batch(device: int) -> Dataset:
            rows = torch.randint(w.samples, (w.batch,)) if fixed is None else fixed[device]
            return Dataset((xs[device].index_select(0, rows), ys[device].index_select(0, rows)))

        self.module = WithLoss()
        self.model = PyTorchModel(
            self.module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.module.parameters(), lr=1.0),
        )
        users = FederatedDataset(batch, get_user_sampler("minimize_reuse", list(range(w.devices))))
        self.backend = SimulatedBackend(training_data=users, val_data=users)
        self.algorithm = FederatedAveraging()
        self.local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=w.rate, local_batch_size=None)
        self.devices = w.devices
        self.done = 0

    def run(self, rounds: int) -> None:
        """Train."""
        from pfl.algorithm.base import NNAlgorithmParams

        # The algorithm counts its rounds across calls, so a second run continues the first one.
        self.done += rounds
        self.algorithm.run(
            NNAlgorithmParams(
                central_num_iterations=self.done,
                evaluation_frequency=10**9,
                train_cohort_size=self.devices,
                val_cohort_size=0,
            ),
            self.backend,
            self.model,
            self.local,
            send_metrics_to_platform=False,
        )

    def weights(self) -> list[measure.Floats]:
        """Return the global weights."""
        import torch_models

        return torch_models.arrays(list(self.module.inner.parameters()))


if __name__ == "__main__":
    measure.main(measure.request(), Pfl, ["pfl", "torch"])
