"""Train on the combined batches of all devices in plain PyTorch: one gradient, one step.

With one local step from common weights, the average of the devices' updates equals one SGD step on the mean loss of all
their rows. adelfl's fused engine relies on this. One batch cannot keep devices apart, which is needed for several local
steps and for devices that deliver different layers. The code is tuned as in ``loop_sim.py``. Variants:
``channels_last``; ``chunks_of_N``, which processes the rows of N devices at a time, for models with large activations.
"""

from __future__ import annotations

import measure


class Batch:
    """FedAvg as one step on one batch."""

    def __init__(self, request: measure.Request) -> None:
        import torch
        import torch_models

        torch.set_num_threads(request.threads)
        torch.manual_seed(0)
        w = self.workload = request.workload
        self.fixed = None if request.batches is None else torch.from_numpy(request.batches[0])
        self.model = torch_models.model(w, request.variant)
        self.parameters = list(self.model.parameters())
        x, y = torch_models.data(w)
        self.x, self.y = x.flatten(0, 1), y.flatten(0, 1)
        self.first_row = torch.arange(w.devices)[:, None] * w.samples
        self.chunk = int(request.variant.rpartition("chunks_of_")[2]) if "chunks_of_" in request.variant else w.devices

    def run(self, rounds: int) -> None:
        """Train."""
        import torch
        from torch.nn.functional import cross_entropy

        w = self.workload
        for _ in range(rounds):
            rows = torch.randint(w.samples, (w.devices, w.batch)) if self.fixed is None else self.fixed
            total: list[torch.Tensor] = []
            for chosen in (rows + self.first_row).flatten().split(self.chunk * w.batch):
                x, y = self.x.index_select(0, chosen), self.y.index_select(0, chosen)
                loss = cross_entropy(self.model(x), y, reduction="sum")
                gradients = torch.autograd.grad(loss, self.parameters)
                if total:
                    torch._foreach_add_(total, gradients)
                else:
                    total = list(gradients)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, total, alpha=-w.rate / rows.numel())

    def weights(self) -> list[measure.Floats]:
        """Return the global weights."""
        import torch_models

        return torch_models.arrays(self.parameters)


if __name__ == "__main__":
    measure.main(measure.request(), Batch, ["torch"])
