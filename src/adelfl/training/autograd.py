"""The autograd pass: for any module whose samples do not influence each other.

Layer l needs the gradient of Σ_i A[u(i),l]/S_u(i) loss_i. Layers whose rows all have one weight share one backward
pass; each other layer needs its own backward pass. If passes are expensive, rows are cut into parts of devices with the
same weights, so that each part needs one backward pass, and does not compute layers that none of its devices reached.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from copy import deepcopy
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.errors import ConfigError
from adelfl.training.costs import layer_costs
from adelfl.training.layers import Layer
from adelfl.training.passes import CHUNK_BYTES, Pass, Rows

_WORTH_A_PASS = 2e7  # forward multiplications from which a separate pass for rows of the same weights pays


class AutogradPass(Pass):
    """Weighted gradients by autograd.

    :func:`adelfl.training.engines.build_engine` checks that samples do not influence each other. A copy of the model,
    in its training modes, is run on two of the samples ``x``.
    """

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], x: Tensor) -> None:
        self.model, self.layers, self.parameters = model, layers, dict(model.named_parameters())
        self.order = [name for layer in reversed(layers) for name in layer.parameters]
        self.rows_at_once = max(1, CHUNK_BYTES // max(1, _bytes_per_row(model, x)))
        self.few = math.ceil(_WORTH_A_PASS / sum(layer_costs(model, layers, x[:1])))

    def mode(self) -> AbstractContextManager[object]:
        """Return the mode with autograd."""
        return torch.inference_mode(False)

    def ends(self, changes: list[int], rows: int) -> list[int]:
        """Cut rows where their weights change, unless the parts become too small, and where parts are too large."""
        cuts = [0]
        for end in changes:
            if end - cuts[-1] >= self.few and rows - end >= self.few:
                cuts.append(end)
        return [
            end for a, b in pairwise([*cuts, rows]) for end in (*range(a + self.rows_at_once, b, self.rows_at_once), b)
        ]

    def gradients(self, x: Tensor, labels: Tensor, rows: Rows, total: list[Tensor]) -> Tensor:
        """Do one forward pass, and one backward pass for all layers whose rows have one weight."""
        losses = functional.cross_entropy(self.model(x), labels[0], reduction="none") * rows.share
        scale: dict[str, float] = {}
        groups: dict[int, tuple[Tensor, list[str]]] = {}  # weighted losses and names, by rows or else by layer
        for l, (layer, n, weight) in enumerate(zip(self.layers, rows.reach, rows.weight, strict=True)):
            if n and weight is not None and bool((weight == weight[0]).all()):
                scale |= dict.fromkeys(layer.parameters, float(weight[0]))
                weight = None
            if n:
                terms = losses[:n] if weight is None else losses[:n] * weight
                groups.setdefault(n if weight is None else -1 - l, (terms, []))[1].extend(layer.parameters)
        done: dict[str, Tensor] = {}
        for terms, names in groups.values():
            wanted = [self.parameters[name] for name in names]
            grads = torch.autograd.grad(
                terms.sum(), wanted, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            done |= zip(names, grads, strict=True)
        gradients = [done[name] * scale.get(name, 1.0) for name in self.order if name in done]
        if not total:
            total += gradients
        else:
            total[: len(gradients)] = torch._foreach_add(total[: len(gradients)], gradients)
        return -losses.detach().sum()[None]


def _bytes_per_row(model: nn.Module, x: Tensor) -> int:
    """Return the memory that autograd needs per sample; refuse a model whose buffers change in a forward pass."""
    model, buffers, kept = deepcopy(model), dict(model.named_buffers()), 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x[:2].clone())  # some models change their input
    if any(not torch.equal(b, buffers[name]) for name, b in model.named_buffers()):
        raise ConfigError("its buffers change in a forward pass")
    return kept // 2
