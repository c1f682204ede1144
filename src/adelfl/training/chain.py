"""The chain pass: weighted gradients without autograd, for chains of known operations.

A chain is an ``nn.Sequential`` of operations that :mod:`adelfl.training.operations` has, or a class whose ``forward``
does the same (:mod:`adelfl.training.tracing`). The backward pass of an operation computes the plain gradient of its
input and the weighted gradients of its parameters, for the rows of the devices that reached it, which are the first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adelfl.training.layers import Layer
from adelfl.training.operations import STEPS, SoftmaxLoss, is_known
from adelfl.training.passes import CHUNK_BYTES, Pass, Rows
from adelfl.training.tracing import traced_chain

# The inputs of a part of the rows, which are read three times, fit into this share of the processor's cache, unless the
# part would have too few rows.
_INPUT_BYTES, _FEW_ROWS = 3 << 20, 512


def _flat(model: nn.Sequential) -> list[nn.Module]:
    # The forward method of a subclass may use its children in another way.
    return [inner for part in model for inner in (_flat(part) if type(part) is nn.Sequential else [part])]


def _is_modified(module: nn.Module) -> bool:
    """Return whether a module has hooks, as those of ``spectral_norm``, or a forward method of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _is_identity(module: nn.Module) -> bool:
    return type(module) is nn.Identity or (type(module) in (nn.Dropout, nn.Dropout2d) and not module.p)


class Link(NamedTuple):
    """One operation of a chain."""

    module: nn.Module
    names: list[str]
    """Names of its parameters."""
    layer: int
    """Layer of its parameters; without parameters, that of the operation before, or −1 for the first operations."""


def chain_of(model: nn.Module, layers: tuple[Layer, ...], example: Tensor) -> list[Link] | None:
    """Return the model as a chain for :class:`ChainPass`, or None if it is not one; ``example`` is a batch."""
    if any(_is_modified(module) for module in model.modules()):
        return None
    modules = _flat(model) if type(model) is nn.Sequential else traced_chain(model, example) or []
    modules = [module for module in modules if not _is_identity(module)]
    if not all(type(module) in STEPS and is_known(module) for module in modules):
        return None
    layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
    name_of = {id(value): name for name, value in model.named_parameters()}
    chain: list[Link] = []
    seen: set[str] = set()
    last = -1
    for module in modules:
        names = [name_of[id(p)] for p in module.parameters(recurse=False)]
        own = {layer_of.get(name, -1) for name in names}
        if not seen.isdisjoint(names) or len(own) > 1 or any(l < max(last, 0) for l in own):
            return None  # tied weights, split between layers, frozen, or not in the order of execution
        seen.update(names)
        last = max(own, default=last)
        chain.append(Link(module, names, last))
    return chain if chain and _takes_rows(chain, example[:1].clone()) else None  # some models change their input


@torch.no_grad()
def _takes_rows(chain: list[Link], x: Tensor) -> bool:
    """Return whether dense layers and the loss get one vector per sample, and not one per word or pixel."""
    for module, *_ in chain:
        if isinstance(module, nn.Linear) and x.dim() != 2:
            return False
        x = module(x)
    return x.dim() == 2


class ChainPass(Pass):
    """Weighted gradients of a chain of known operations (:func:`chain_of`), without autograd."""

    def __init__(self, chain: list[Link], example: Tensor) -> None:
        self.steps = [STEPS[type(link.module)](link.module) for link in chain]
        lowest = next(k for k, link in enumerate(chain) if link.names)  # no gradient is needed below
        self.order = [name for link in reversed(chain) for name in link.names]
        # For each operation of the backward pass: its layer, the next operation, and the gradients of its parameters.
        above = [*self.steps[1:], None]
        self.way_back: list[tuple[int, Any, Callable[[Tensor, Tensor | None], list[Tensor]] | None]] = [
            (chain[k].layer, above[k], self.steps[k].grads if chain[k].names else None)
            for k in reversed(range(lowest, len(chain)))
        ]
        self.rows_at_once = self._rows_that_fit(example)
        self.loss = SoftmaxLoss()

    def _rows_that_fit(self, example: Tensor) -> int:
        x, kept = example[:1].clone(), 0
        near = max(_FEW_ROWS, _INPUT_BYTES // max(1, x.nbytes))
        with torch.no_grad():
            for step in self.steps:
                x = step.forward(x)
                kept += x.numel() * x.element_size()
        return max(1, min(near, CHUNK_BYTES // max(1, kept)))

    def mode(self) -> AbstractContextManager[object]:
        """Return a context without effect, since no autograd is needed."""
        return nullcontext()

    def ends(self, changes: list[int], rows: int) -> list[int]:
        """Cut rows into parts that fit into memory and cache."""
        return [*range(self.rows_at_once, rows, self.rows_at_once), rows]

    def gradients(self, x: Tensor, labels: Tensor, rows: Rows, total: list[Tensor]) -> Tensor:
        """Do a forward and a backward pass, operation by operation."""
        for step in self.steps:
            x = step.forward(x)
        loss, delta = self.loss(x, labels, rows.share)
        waiting, left = len(self.steps), rows.end - rows.start
        gradients: list[Tensor] = []
        for l, above, grads in self.way_back:
            n = rows.reach[l]
            if n == 0:
                break
            if n < left:
                delta, left = delta[:n], n
            if above is not None:
                delta = above.input_grad(delta)
                above.kept = None
                waiting -= 1
            if grads is not None:
                gradients += grads(delta, rows.weight[l])
        for step in self.steps[:waiting]:
            step.kept = None
        if not total:
            total += gradients
        elif gradients:  # the rows before belong to deeper devices, which reached these layers too
            torch._foreach_add_(total[: len(gradients)], gradients)
        return loss
