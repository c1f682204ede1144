"""The loop engine: trains one device after another, as clients do. It supports any model, and is the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.masks import seeded
from adelfl.training.work import NOTHING, Change, Engine, RoundWork, Stateless
from adelfl.updates import add_weighted


class LoopEngine(Engine):
    """Trains each device separately; the change is Σ_u A[u,l] (w_u^l − w^l)."""

    name = "loop"

    def __init__(self, model: nn.Module, *arguments: Any) -> None:  # noqa: ANN401 - as of any engine
        super().__init__(model, *arguments)
        self.call = Stateless(model)
        self.buffers = dict(model.named_buffers())

    def run(self, work: RoundWork) -> Change:
        """Do the local work of a round and merge it."""
        names = [layer.parameters for layer in self.layers]
        first = {name: p.detach().clone() for name, p in self.parameters.items()}
        total: dict[str, Tensor] = {}
        start = {name: b.double() if not b.is_floating_point() else b for name, b in self.buffers.items()}
        moved = {name: torch.zeros_like(b) for name, b in start.items()}
        controls = self.controls if work.controls is not None and work.senders is not None else None
        losses = []
        for u in np.flatnonzero(work.contributes).tolist():
            task, device = (u, u) if work.senders is None else work.senders[u].tolist()
            correction = None if controls is None else controls.correction(device)
            update, buffers, loss = self.train(work, u, first, correction)
            losses.append(loss)
            if controls is not None and work.controls is not None:
                done = zip(names, work.progress.steps_done[u].tolist(), strict=True)
                steps = {name: k for layer, k in done for name in layer}
                controls.move(device, update, steps, work.eta, float(work.controls[u]))
            if self.uploads is not None:
                update = dict(self.uploads.send(update, task, device))
            add_weighted(total, names, update, work.A[u])
            for name, b in buffers.items():
                moved[name] += b.to(start[name]) - start[name]
        if self.controls is not None:
            self.controls.close()
        if not losses:
            return NOTHING
        # Running statistics of batch norm are averaged over the contributors; unchanged ones are left out.
        means = {name: b + moved[name] / len(losses) for name, b in start.items() if moved[name].any()}
        new = {name: m if self.buffers[name].is_floating_point() else m.round() for name, m in means.items()}
        return Change(total, new, sum(losses) / len(losses))

    def train(
        self, work: RoundWork, u: int, start: dict[str, Tensor], correction: Mapping[str, Tensor] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
        """Train the device at position u; return its update, its buffers, and its loss in the first step.

        ``correction`` is added to its gradients.
        """
        L, z = len(self.layers), int(work.progress.z[u])
        buffers = {name: b.clone() for name, b in self.buffers.items()}
        update: dict[str, Tensor] = {}
        velocity: dict[str, Tensor] = {}
        first_loss = math.nan
        with seeded(None if work.mask_seeds is None else int(work.mask_seeds[u]), self.samples.device):
            for iteration, rows in enumerate(work.rows):
                done = min(L, z - iteration * L)
                if done <= 0:
                    break
                names = [name for layer in self.layers[L - done :] for name in layer.parameters]
                local = {
                    name: (w + update[name] if name in update else w.detach()).requires_grad_()
                    for name, w in start.items()
                }
                x, y = self.samples.take(rows[work.starts[u] : work.starts[u + 1]])
                loss = functional.cross_entropy(self.call(local | buffers, x), y)
                # With stochastic depth, a module may be skipped; its gradient is then zero.
                wanted = [local[name] for name in names]
                grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
                if iteration == 0:
                    first_loss = float(loss.detach())
                with torch.no_grad():
                    for name, grad in zip(names, grads, strict=True):
                        step = grad + self.weight_decay * local[name] if self.weight_decay else grad
                        if work.proximal and name in update:
                            step = step + work.proximal * update[name]
                        if correction is not None and name in correction:
                            step = step + correction[name]
                        if self.momentum:
                            step = step + self.momentum * velocity[name] if name in velocity else step.clone()
                            velocity[name] = step
                        update[name] = update[name] - work.eta * step if name in update else -work.eta * step
        return update, buffers, first_loss
