"""Tuned PyTorch loop: for every device, load the global weights, take the steps, and add to the average.

The loop uses no state dicts and no optimiser objects, only the two copies that FedAvg needs, foreach kernels for all
parameters at once, and one call to draw all batches of a round. The variant ``float64`` is the reference of the
cross-check and is not timed.
"""

from __future__ import annotations

import measure


class Loop:
    """FedAvg with one model that visits the devices in turn."""

    def __init__(self, request: measure.Request) -> None:
        import torch
        import torch_models

        torch.set_num_threads(request.threads)
        torch.manual_seed(0)
        self.workload = request.workload
        self.fixed = None if request.batches is None else torch.from_numpy(request.batches)
        self.model = torch_models.model(request.workload, request.variant)
        self.parameters = list(self.model.parameters())
        self.world = [p.detach().clone() for p in self.parameters]
        self.total = [torch.zeros_like(p) for p in self.world]
        x, self.y = torch_models.data(request.workload)
        self.x = x.to(self.world[0].dtype)

    def run(self, rounds: int) -> None:
        """Train."""
        import torch
        from torch.nn.functional import cross_entropy

        w = self.workload
        for _ in range(rounds):
            rows = torch.randint(w.samples, (w.steps, w.devices, w.batch)) if self.fixed is None else self.fixed
            for x, y, own in zip(self.x, self.y, rows.unbind(1), strict=True):
                with torch.no_grad():
                    torch._foreach_copy_(self.parameters, self.world)
                for chosen in own:
                    loss = cross_entropy(self.model(x.index_select(0, chosen)), y.index_select(0, chosen))
                    gradients = torch.autograd.grad(loss, self.parameters)
                    with torch.no_grad():
                        torch._foreach_add_(self.parameters, gradients, alpha=-w.rate)
                with torch.no_grad():
                    torch._foreach_add_(self.total, self.parameters, alpha=1 / w.devices)
            self.world, self.total = self.total, self.world
            torch._foreach_zero_(self.total)

    def weights(self) -> list[measure.Floats]:
        """Return the global weights."""
        import torch_models

        return torch_models.arrays(self.world)


if __name__ == "__main__":
    measure.main(measure.request(), Loop, ["torch"])
