"""The stacked engine: weights of many devices side by side, and one vectorised step for all of them.

For E > 1 devices leave the common weights after their first step, so batches cannot be concatenated; weights are
stacked instead and the step is mapped over them (``torch.func.vmap``). Devices of like batch size go together; shorter
batches are filled up with rows of weight zero.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional

from adelfl.runtime.controls import Controls
from adelfl.training.layers import Layer
from adelfl.training.work import NOTHING, Change, Engine, RoundWork, Samples, Stateless

_CHUNK_BYTES = 256 << 20


def _step_of(model: nn.Module) -> Any:  # noqa: ANN401 - what torch.func makes
    """Return a function of stacked weights, inputs, labels and row weights that gives gradients and losses."""
    call = Stateless(model)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, row_weight: Tensor) -> Tensor:
        return functional.cross_entropy(call(weights, x), y, reduction="none") @ row_weight

    return vmap(grad_and_value(loss))


def why_not_stacked(model: nn.Module, samples: Samples, *, slowly: bool) -> str | None:
    """Return why a model cannot be mapped over devices, ``slowly`` or not; None if one sample on each of two works."""
    weights = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters() if p.requires_grad}
    x, y = samples.x[:2, None].clone(), samples.y[:2, None]  # some models work in place
    try:
        with warnings.catch_warnings():
            # vmap warns where it falls back to a loop.
            warnings.simplefilter("ignore" if slowly else "error")
            # A copy, since what forward keeps in attributes would be of no use outside of the mapping.
            _step_of(deepcopy(model))(weights, x, y, torch.ones(y.shape, device=x.device))
    except Exception as error:  # anything that a model may do with what is not an ordinary tensor
        return first_line(error)
    return None


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, cut to 120 characters, or else the name of its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


class Stacked(Engine):
    """Vectorised local SGD over devices; for models whose samples do not influence each other."""

    name = "stacked"

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[Layer, ...],
        samples: Samples,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        controls: Controls | None = None,
    ) -> None:
        self.controls = controls
        self.layers, self.samples = layers, samples
        self.weight_decay, self.momentum = weight_decay, momentum
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
        self.weight_bytes = sum(p.nbytes for p in self.parameters.values())
        self.step = _step_of(model)

    def run(self, work: RoundWork) -> Change:
        """Do the local work of a round and merge it."""
        chosen = np.flatnonzero(work.contributes)
        if chosen.size == 0:
            return NOTHING
        # Similar batch sizes together, so that little is filled up.
        chosen = chosen[np.argsort(work.sizes[chosen], kind="stable")]
        per_device = 4 * self.weight_bytes + 4 * self.samples.x[0].nbytes * int(work.sizes[chosen].max())
        at_once = max(1, _CHUNK_BYTES // per_device)
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        losses = 0.0
        for low in range(0, chosen.size, at_once):
            losses += self._chunk(work.only(chosen[low : low + at_once]), total)
        if self.controls is not None:
            self.controls.close()
        return Change(total, {}, losses / chosen.size)

    def _chunk(self, work: RoundWork, total: dict[str, Tensor]) -> float:
        U, S, L = work.sizes.size, int(work.sizes.max()), work.progress.layers
        device = self.samples.device
        place = np.arange(S)
        used = place < work.sizes[:, None]
        source = np.minimum(work.starts[:-1, None] + place, work.starts[1:, None] - 1)
        row_weight = torch.from_numpy((used / work.sizes[:, None]).astype(np.float32)).to(device)
        start = {name: p.detach() for name, p in self.parameters.items()}
        local = {name: p.expand(U, *p.shape).clone() for name, p in start.items()}
        velocity: dict[str, Tensor] = {}
        first = 0.0
        senders = None if self.controls is None or work.senders is None else work.senders[:, 1].tolist()
        corrections: dict[str, Tensor] = {}
        if self.controls is not None and senders is not None:
            corrections = {
                name: torch.stack([self.controls.correction(u).get(name, torch.zeros_like(p)) for u in senders])
                for name, p in start.items()
            }
        for iteration, rows in enumerate(work.rows):
            # Layer l of this iteration is done if and only if z ≥ iteration·L + (L+1−l).
            done = work.progress.z[:, None] >= iteration * L + np.arange(L, 0, -1)
            if not done.any():
                break
            x, y = self.samples.take(rows[source].reshape(-1))
            grads, loss = self.step(local, x.view(U, S, *x.shape[1:]), y.view(U, S), row_weight)
            if iteration == 0:
                first = float(loss.sum())
            mask = torch.from_numpy(done.astype(np.float32)).to(device)
            for name, grad in grads.items():
                step = grad + self.weight_decay * local[name] if self.weight_decay else grad
                if work.proximal:
                    step = step + work.proximal * (local[name] - start[name])
                if name in corrections:
                    step = step + corrections[name]
                if self.momentum:
                    velocity[name] = step = step + self.momentum * velocity[name] if name in velocity else step
                m = mask[:, self.layer_of[name]].view(U, *([1] * (step.dim() - 1)))
                local[name] = local[name] - work.eta * m * step
        if self.controls is not None and senders is not None and work.controls is not None:
            for i, u in enumerate(senders):
                steps = {name: int(work.progress.steps_done[i, l]) for name, l in self.layer_of.items()}
                moved = {name: local[name][i] - p for name, p in start.items()}
                self.controls.move(u, moved, steps, work.eta, float(work.controls[i]))
        A = torch.from_numpy(work.A.astype(np.float32)).to(device)
        for name, w in local.items():
            total[name] += torch.tensordot(A[:, self.layer_of[name]], w - start[name], dims=1)
        return first
