"""The fused engine: one forward and one backward pass over the batches of all devices at once.

With one local step all devices start from the same weights, so their batches can be concatenated; what tells devices
apart is only the weight A[u,l]/S_u of each row in each layer's gradient. Devices are sorted by depth, deepest first, so
the rows that reach layer l are a prefix: rows of devices that stopped leave the pass as it walks back, by slicing.

    grad^l = Σ_i A[u(i),l]/S_u(i) ∂loss_i/∂w^l          over the rows i of devices that deliver layer l

The walk needs a chain of known operations (nested ``nn.Sequential``); each knows how to go back for a prefix of rows,
separately for its input (plain) and for its parameters (weighted).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.errors import ConfigError
from adelfl.learning.layers import Layer
from adelfl.learning.operations import STEPS, is_known
from adelfl.learning.work import RoundWork, Samples

_CHUNK_BYTES = 256 << 20  # activations that are kept at once; more rows than fit are taken in turns


def primitives(model: nn.Module) -> list[nn.Module] | None:
    """The model as a flat chain of operations that this engine knows, or None if it is not one."""
    if type(model) is not nn.Sequential:  # a subclass may do something else with its parts
        return None
    chain: list[nn.Module] = []
    for part in model:
        if type(part) is nn.Sequential:
            inner = primitives(part)
            if inner is None:
                return None
            chain.extend(inner)
        elif type(part) in STEPS:
            chain.append(part)
        else:
            return None
    return chain


def fusible(model: nn.Module, layers: tuple[Layer, ...]) -> bool:
    """Whether this engine computes the model's gradients exactly: a chain of known operations, each used as here."""
    chain = primitives(model)
    if chain is None or not all(is_known(module) for module in chain):
        return False
    layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
    name_of = {id(value): name for name, value in model.named_parameters()}
    seen: set[int] = set()
    last = 0
    for module in chain:
        own = list(module.parameters(recurse=False))
        if any(id(p) in seen for p in own):
            return False  # tied weights
        seen.update(id(p) for p in own)
        homes = {layer_of.get(name_of[id(p)]) for p in own}
        if not homes:
            continue
        if len(homes) > 1 or None in homes:
            return False  # frozen, or split between layers
        (home,) = homes
        assert home is not None
        if home < last:
            return False  # layers that are not in the order of execution
        last = home
    return True


class FusedPass:
    """Weighted gradients of a chain for the concatenated batches of many devices."""

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], example: Tensor) -> None:
        chain = primitives(model)
        if chain is None or not fusible(model, layers):
            raise ConfigError("engine 'fused' needs a model that is a plain Sequential of known layers; use 'loop'")
        self.steps = [STEPS[type(module)](module) for module in chain]
        layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
        name_of = {id(value): name for name, value in model.named_parameters()}
        names = [[name_of[id(p)] for p in module.parameters(recurse=False)] for module in chain]
        own = [layer_of[n[0]] if n else None for n in names]
        # An operation without parameters belongs to the parametrised one before it, or to the first.
        self.layer: list[int] = []
        for l in own:
            self.layer.append(l if l is not None else self.layer[-1] if self.layer else 0)
        self.names = names
        self.lowest = next(k for k, n in enumerate(names) if n)  # no gradient is wanted below
        self.rows_at_once = self._rows_that_fit(model, example)

    def _rows_that_fit(self, model: nn.Module, example: Tensor) -> int:
        x, kept = example[:1], 0
        with torch.no_grad():
            for step in self.steps:
                x = step.forward(x)
                kept += x.numel() * x.element_size()
        return max(1, _CHUNK_BYTES // max(1, kept))

    def gradients(
        self, x: Tensor, y: Tensor, depth_rows: Sequence[int], row_weight: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """Walk forward and back over one chunk of rows.

        Parameters
        ----------
        x, y : Tensor
            Rows of devices sorted by depth, deepest first.
        depth_rows : sequence of int, length L
            How many rows (a prefix) deliver layer l.
        row_weight : Tensor, shape (L, rows)
            A[u,l]/S_u of each row.

        Yields
        ------
        name, gradient
        """
        for step in self.steps:
            x = step.forward(x)
        log_p = torch.log_softmax(x, 1)
        self.loss = functional.nll_loss(log_p, y, reduction="none")
        delta = log_p.exp_()
        delta.scatter_add_(1, y[:, None], delta.new_full((1, 1), -1.0).expand(y.shape[0], 1))
        for k in range(len(self.steps) - 1, self.lowest - 1, -1):
            l = self.layer[k]
            n = depth_rows[l]
            if n == 0:
                return
            if k < len(self.steps) - 1:
                delta = self.steps[k + 1].input_grad(delta[:n])
            if self.names[k]:
                yield from zip(self.names[k], self.steps[k].grads(delta[:n], row_weight[l, :n]), strict=True)


class Fused:
    """One pass for all devices; exact for one local step of models whose samples do not influence each other."""

    name = "fused"

    def __init__(
        self, model: nn.Module, layers: tuple[Layer, ...], samples: Samples, weight_decay: float = 0.0
    ) -> None:
        self.samples = samples
        self.layers = layers
        self.weight_decay = weight_decay
        self.parameters = dict(model.named_parameters())
        self.walk = FusedPass(model, layers, samples.x[:1])

    @torch.no_grad()
    def run(self, work: RoundWork) -> float:
        """Do one round."""
        work = work.deepest_first()
        if work.sizes.size == 0:
            return math.nan
        total, loss = weighted_gradients(self.walk, self.samples, work)
        if self.weight_decay:
            self._decay(work)
        for name, grad in total.items():
            self.parameters[name].add_(grad, alpha=-work.eta)
        return loss

    def _decay(self, work: RoundWork) -> None:
        for l, layer in enumerate(self.layers):
            decay = self.weight_decay * float(work.A[:, l] @ work.progress.delivered[:, l])
            for name in layer.parameters:
                self.parameters[name].mul_(1.0 - work.eta * decay)


def weighted_gradients(walk: FusedPass, samples: Samples, work: RoundWork) -> tuple[dict[str, Tensor], float]:
    """Σ_u A[u,l] g_u^l for every parameter, and the mean over devices of their mean loss.

    Devices of ``work`` are sorted by depth, deepest first.
    """
    reach = (work.sizes @ work.progress.delivered).tolist()  # rows that deliver layer l
    per_device = np.empty((len(reach) + 1, work.sizes.size), np.float32)
    per_device[0] = 1.0 / work.sizes
    per_device[1:] = work.A.T / work.sizes
    per_row = torch.from_numpy(np.repeat(per_device, work.sizes, axis=1)).to(samples.device)
    loss_weight, row_weight = per_row[0], per_row[1:]
    total: dict[str, Tensor] = {}
    loss = 0.0
    for start in range(0, work.rows[0].size, walk.rows_at_once):
        x, y = samples.take(work.rows[0][start : start + walk.rows_at_once])
        end = start + y.shape[0]
        within = [min(max(rows - start, 0), end - start) for rows in reach]
        for name, grad in walk.gradients(x, y, within, row_weight[:, start:end]):
            if name in total:
                total[name] += grad
            else:
                total[name] = grad
        loss += float(walk.loss @ loss_weight[start:end])
    return total, loss / work.sizes.size
