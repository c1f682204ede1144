"""Train with torch.func: vmap(grad) over the stacked batches of all devices.

With one local step all devices start from the same weights, so the weights are not stacked (``in_dims=None``) and the
average of the new weights is one step along the average gradient. This is the fastest way to use vmap here. Variants
``chunks_of_N`` take N devices at a time, which saves memory and, with convolutions, much time.
"""

from __future__ import annotations

import measure


class Vmap:
    """FedAvg with the gradients of all devices in one call."""

    def __init__(self, request: measure.Request) -> None:
        import torch
        import torch_models
        from torch import Tensor
        from torch.func import functional_call, grad, vmap
        from torch.nn.functional import cross_entropy

        torch.set_num_threads(request.threads)
        torch.manual_seed(0)
        self.workload = request.workload
        self.fixed = None if request.batches is None else torch.from_numpy(request.batches[0])
        model = torch_models.model(request.workload)
        self.world = {name: p.detach().clone() for name, p in model.named_parameters()}
        x, y = torch_models.data(request.workload)
        self.x, self.y = x.flatten(0, 1), y.flatten(0, 1)
        self.first_row = torch.arange(request.workload.devices)[:, None] * request.workload.samples

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(functional_call(model, weights, (x,)), y)

        chunk = int(request.variant.removeprefix("chunks_of_")) if request.variant else None
        self.gradients = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)

    def run(self, rounds: int) -> None:
        """Train."""
        import torch

        w = self.workload
        for _ in range(rounds):
            rows = torch.randint(w.samples, (w.devices, w.batch)) if self.fixed is None else self.fixed
            rows = (rows + self.first_row).flatten()
            x = self.x.index_select(0, rows).unflatten(0, (w.devices, w.batch))
            y = self.y.index_select(0, rows).unflatten(0, (w.devices, w.batch))
            gradients = self.gradients(self.world, x, y)
            for name, value in self.world.items():
                value.sub_(gradients[name].mean(0), alpha=w.rate)

    def weights(self) -> list[measure.Floats]:
        """Return the global weights."""
        import torch_models

        return torch_models.arrays(list(self.world.values()))


if __name__ == "__main__":
    measure.main(measure.request(), Vmap, ["torch"])
