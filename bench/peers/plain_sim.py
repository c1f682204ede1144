"""Common PyTorch loop: load_state_dict, an optimiser per device, and an average of state dicts."""

from __future__ import annotations

import measure


class Plain:
    """FedAvg as in tutorials; ``loop_sim.py`` is the same without needless copies."""

    def __init__(self, request: measure.Request) -> None:
        import torch
        import torch_models

        torch.set_num_threads(request.threads)
        torch.manual_seed(0)
        self.workload = request.workload
        self.fixed = None if request.batches is None else torch.from_numpy(request.batches)
        self.model = torch_models.model(request.workload)
        self.world = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.x, self.y = torch_models.data(request.workload)

    def run(self, rounds: int) -> None:
        """Train every device in turn from the global weights, then average."""
        import torch
        from torch.nn.functional import cross_entropy

        w = self.workload
        for _ in range(rounds):
            local = []
            for u in range(w.devices):
                self.model.load_state_dict(self.world)
                optimiser = torch.optim.SGD(self.model.parameters(), lr=w.rate)
                rows = torch.randint(w.samples, (w.batch,)) if self.fixed is None else self.fixed[u]
                loss = cross_entropy(self.model(self.x[u][rows]), self.y[u][rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                local.append({name: value.clone() for name, value in self.model.state_dict().items()})
            self.world = {name: torch.stack([one[name] for one in local]).mean(0) for name in self.world}

    def weights(self) -> list[measure.Floats]:
        """The global weights."""
        import torch_models

        return torch_models.arrays(list(self.world.values()))


if __name__ == "__main__":
    measure.main(measure.request(), Plain, ["torch"])
