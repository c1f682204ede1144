"""Common PyTorch loop: load_state_dict, an optimiser per device, and an average of state dicts.

FedBuff is the same loop in the order of a heap of arrivals.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import measure
import numpy as np

if TYPE_CHECKING:
    import torch


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

        if self.workload.buffer is not None:
            self._run_fedbuff(rounds, self.workload.buffer)
            return
        for _ in range(rounds):
            local = [self._trained(u, self.world) for u in range(self.workload.devices)]
            self.world = {name: torch.stack([one[name] for one in local]).mean(0) for name in self.world}

    def _trained(self, u: int, start: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights of a device after its steps."""
        import torch
        from torch.nn.functional import cross_entropy

        w = self.workload
        self.model.load_state_dict(start)
        optimiser = torch.optim.SGD(self.model.parameters(), lr=w.rate)
        for step in range(w.steps):
            rows = torch.randint(w.samples, (w.batch,)) if self.fixed is None else self.fixed[step, u]
            loss = cross_entropy(self.model(self.x[u][rows]), self.y[u][rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _run_fedbuff(self, merges: int, buffer: int) -> None:
        rng = np.random.default_rng(0)
        start = [(0, self.world)] * self.workload.devices  # version and weights from which each device works
        heap = [(rng.exponential(), u) for u in range(self.workload.devices)]
        heapq.heapify(heap)
        for version in range(merges):
            total = {name: value.clone() for name, value in self.world.items()}
            for _ in range(buffer):
                now, u = heap[0]
                since, weights = start[u]
                share = (1.0 + version - since) ** -0.5 / buffer
                for name, value in self._trained(u, weights).items():
                    total[name] += share * (value - weights[name])
                start[u] = version, self.world
                heapq.heapreplace(heap, (now + rng.exponential(), u))
            self.world = total

    def weights(self) -> list[measure.Floats]:
        """Return the global weights."""
        import torch_models

        return torch_models.arrays(list(self.world.values()))


if __name__ == "__main__":
    measure.main(measure.request(), Plain, ["torch"])
