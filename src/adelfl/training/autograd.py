"""The autograd pass: for any module, with weights of rows for each layer's gradient.

Backpropagation is linear in the gradient of each row. So if a module's parameters are to weigh row i with f_i, the
gradient of its output is multiplied by f_i, and the gradient of its input is divided by f_i again:

    module:   y = h(x; w),      δy → f δy      before it,        δx → δx / f      after it

The parameters get Σ_i f_i ∂loss_i/∂w; what lies before the module gets its plain gradient, along every path, whatever
the module is. Modules within modules take the factors of the outer one into account. A row that does not deliver the
layer has a factor so small that it vanishes. Where all rows weigh the same, no hooks are set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.training.costs import layer_costs
from adelfl.training.layers import Layer
from adelfl.training.passes import CHUNK_BYTES, CannotFuse, Pass, Rows

_NOTHING = 1e-20  # instead of zero, by which the gradient could not be divided
_WORTH_A_PASS = 1e8  # forward multiplications from which on rows that stop earlier get a pass of their own

Spot = tuple[int, int]
"""Place of the rows in a tensor: the dimension, and how many entries of it each row has."""


@dataclass(eq=False)
class _Site:
    """A module that uses parameters of one layer, and the tensors that enter and leave it, call after call."""

    layer: int
    spots: list[Spot | None]
    upcoming: Iterator[Spot | None] = field(default_factory=lambda: iter(()))

    def scaled(self, tensor: Tensor, factor: Tensor | None, rows: int) -> Tensor:
        """Multiply the gradient of the next tensor, row by row."""
        spot = next(self.upcoming, (0, 0))
        if spot is not None and tensor.shape[spot[0] : spot[0] + 1] != (spot[1] * rows,):
            raise CannotFuse("it does other things with more samples")
        if factor is not None and spot is not None:
            dim, times = spot
            each = factor.repeat_interleave(times) if times > 1 else factor
            shaped = each.view(*(-1 if d == dim else 1 for d in range(tensor.dim())))
            tensor.register_hook(lambda grad: None if grad is None else grad * shaped)  # type: ignore[no-untyped-call]
        return tensor


class AutogradPass(Pass):
    """Weighted gradients of any module whose samples do not influence each other.

    :func:`adelfl.training.engines.why_not_fused` checks that they do not. The model is in the mode in which it is
    trained; a few of the samples ``x`` go through a copy of it.
    """

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], x: Tensor) -> None:
        self.model = model
        parameters = dict(model.named_parameters())
        self.order = [name for layer in reversed(layers) for name in layer.parameters]
        self.parameters = [parameters[name] for name in self.order]
        if {p.dtype for p in self.parameters} - {torch.float32, torch.float64}:
            raise CannotFuse("its weights are not of single or double precision")
        # Number of parameters that backpropagation has reached with layer l.
        self.with_layer = [sum(len(layer.parameters) for layer in layers[l:]) for l in range(len(layers))]
        two, three = (_watch(model, x[torch.arange(n) % len(x)]) for n in (2, 3))
        self.sites = _sites(model, layers, two, three)
        self.rows_at_once = max(1, CHUNK_BYTES // max(1, three.kept - two.kept))
        self.few = math.ceil(_WORTH_A_PASS / sum(layer_costs(model, layers, x[:1])))
        self.rows = 0
        self.factors: list[Tensor | None] = []
        self.inside: list[int] = []  # layers of the modules that are running, outermost first

    def mode(self) -> AbstractContextManager[object]:
        """Return the mode with autograd."""
        return torch.enable_grad()

    def ends(self, reach: list[int], rows: int) -> list[int]:
        """Cut rows where devices stop, if enough rows stop there, and where there are more than fit."""
        cuts = [0]
        for end in sorted({n for n in reach if 0 < n < rows}):
            if end - cuts[-1] >= self.few and rows - end >= self.few:
                cuts.append(end)
        return [
            end for a, b in pairwise([*cuts, rows]) for end in (*range(a + self.rows_at_once, b, self.rows_at_once), b)
        ]

    def gradients(self, x: Tensor, labels: Tensor, rows: Rows, total: list[Tensor]) -> Tensor:
        """Go forward and back by autograd, with factors where rows differ."""
        n = self.rows = rows.end - rows.start
        self.factors = [_factors(k, n, weight, rows.share) for k, weight in zip(rows.reach, rows.weight, strict=True)]
        with self._weighing():
            out = self.model(x)
        loss = functional.cross_entropy(out, labels[0], reduction="none") @ rows.share
        wanted = self.parameters[: next(count for count, k in zip(self.with_layer, rows.reach, strict=True) if k)]
        grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        if not total:
            total += grads
        else:
            total[: len(grads)] = torch._foreach_add(total[: len(grads)], grads)
        return -loss.detach()[None]

    @contextmanager
    def _weighing(self) -> Iterator[None]:
        """Multiply gradients at each module by its factors, if there are any."""
        if all(f is None for f in self.factors):
            yield
            return
        self.inside.clear()
        handles = []
        for module, site in self.sites.items():
            site.upcoming = iter(site.spots)
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:  # noqa: ANN401 - the module's own
        site = self.sites[module]
        factor = self._factor(site.layer, inverse=True)
        self.inside.append(site.layer)

        def alias(tensor: Tensor) -> Tensor:  # gradients that reach the tensor on other paths stay as they are
            return site.scaled(tensor.view_as(tensor), factor, self.rows)

        return _changed(args, alias), _changed(kwargs, alias)

    def _leave(self, module: nn.Module, _: object, out: Any) -> Any:  # noqa: ANN401 - the module's own
        site = self.sites[module]
        self.inside.pop()
        factor = self._factor(site.layer)
        # One of several outputs may be made of another, hence an alias. A single one may be changed in place.
        several = not isinstance(out, Tensor)
        return _changed(
            out, lambda tensor: site.scaled(tensor.view_as(tensor) if several else tensor, factor, self.rows)
        )

    def _factor(self, l: int, *, inverse: bool = False) -> Tensor | None:
        """Return the factors of layer l, relative to those of the module around it."""
        outer = self.factors[self.inside[-1]] if self.inside else None
        upper, lower = (outer, self.factors[l]) if inverse else (self.factors[l], outer)
        if lower is None:
            return upper
        return 1.0 / lower if upper is None else upper / lower


def _factors(reach: int, rows: int, weight: Tensor | None, like: Tensor) -> Tensor | None:
    """Return the weight of each row in a layer; None if no row reaches it, or all weigh the same."""
    if reach == 0 or (weight is None and reach == rows):
        return None
    factors = torch.full_like(like, _NOTHING)
    factors[:reach] = 1.0 if weight is None else torch.where(weight == 0, _NOTHING, weight)
    return factors


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401 - whatever modules take and give
    """Return the same structure, with those of its tensors changed that require gradients."""
    if isinstance(value, Tensor):
        return change(value) if value.requires_grad else value
    if isinstance(value, tuple):
        parts = [_changed(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_changed(v, change) for v in value]
    if type(value) is dict:
        return {key: _changed(v, change) for key, v in value.items()}
    return value


# --- places of rows in the inputs and outputs of modules, from two batches of different sizes


@dataclass(eq=False)
class _Watched:
    """Tensors at each module, by name: whether it is an output, and its shape, in the order of the calls."""

    visits: dict[str, list[tuple[bool, torch.Size]]] = field(default_factory=dict)
    kept: int = 0  # bytes, for the backward pass


def _watch(model: nn.Module, x: Tensor) -> _Watched:
    """Run some samples through a copy of the model, and note the tensors at each module."""
    model, buffers, watched = deepcopy(model), dict(model.named_buffers()), _Watched()

    def note(name: str, tensors: Any, *, out: bool) -> None:  # noqa: ANN401 - whatever modules take and give
        visits = watched.visits.setdefault(name, [])
        _changed(tensors, lambda tensor: visits.append((out, tensor.shape)) or tensor)  # type: ignore[func-returns-value]

    def keep(tensor: Tensor) -> Tensor:
        watched.kept += tensor.nbytes
        return tensor

    for name, module in model.named_modules():
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: note(name, (args, kwargs), out=False), with_kwargs=True
        )
        module.register_forward_hook(lambda _, args, out, name=name: note(name, out, out=True))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x.clone())  # some models work in place
    if any(not torch.equal(b, buffers[name]) for name, b in model.named_buffers()):
        raise CannotFuse("its buffers change while it trains")
    return watched


def _sites(model: nn.Module, layers: tuple[Layer, ...], two: _Watched, three: _Watched) -> dict[nn.Module, _Site]:
    """Return the modules at which rows get their factors.

    A parameter belongs to the nearest module around it that ran and whose output has rows.
    """
    layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
    modules, spots = dict(model.named_modules()), {}
    for name, visits in two.visits.items():
        pairs = list(zip(visits, three.visits.get(name, []), strict=False))
        if len(pairs) < max(len(visits), len(three.visits.get(name, []))) or any(a[0] != b[0] for a, b in pairs):
            raise CannotFuse("it does other things with more samples")
        spots[name] = [(out, _spot(a, b)) for (out, a), (_, b) in pairs]
    name_of = {id(value): name for name, value in model.named_parameters()}
    used = [
        (name, layer_of[name_of[id(p)]])
        for name, module in modules.items()
        for p in module.parameters(recurse=False)
        if p.requires_grad
    ]
    sites: dict[nn.Module, _Site] = {}
    for name, l in used:
        while not (given := [spot for out, spot in spots.get(name, []) if out]) or None in given:
            if not name:
                raise CannotFuse("what it gives has no rows")
            name = name.rpartition(".")[0]
        site = sites.setdefault(modules[name], _Site(l, [spot for _, spot in spots[name]]))
        if site.layer != l:
            raise CannotFuse(f"parameters of two layers are used in {name or 'the model itself'}")
    return sites


def _spot(two: torch.Size, three: torch.Size) -> Spot | None:
    """Return the place of the rows, from the shapes of a tensor for two samples and for three; None if it has none."""
    if two == three:
        return None
    changed = [d for d, (a, b) in enumerate(zip(two, three, strict=False)) if a != b]
    if len(two) != len(three) or len(changed) != 1 or 3 * two[changed[0]] != 2 * three[changed[0]]:
        raise CannotFuse("what goes through it does not grow with the number of samples")
    return changed[0], two[changed[0]] // 2
