"""The stacked engine: stacks the weights of many devices, and takes each step with all of them at once.

With several local steps, or if devices start from different versions of the weights, batches cannot be concatenated.
Weights are stacked instead. Chains of known operations use batched matrix products
(:mod:`adelfl.training.stack_ops`); any other module is mapped over devices (``torch.func.vmap``). A stack contains
devices of similar batch size, whose batches are padded with rows of weight zero. The deepest devices come first, so
that the devices which take a step, or deliver a layer, are the first ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional

from adelfl.array_types import Floats, Ints
from adelfl.training.chain import Link, chain_of
from adelfl.training.layers import Layer
from adelfl.training.operations import SoftmaxLoss, first
from adelfl.training.stack_ops import STACK_OPERATIONS, is_stackable
from adelfl.training.work import NOTHING, Change, Engine, RoundWork, Samples, Stateless, joined_work

_CHUNK_BYTES = 256 << 20  # largest size of a stack that is mapped
_FEW_CHANNELS = 32
_CACHE_BYTES = 24 << 20  # largest size of a stack for batched products, which then stays in the cache


def _mapped(model: nn.Module) -> Any:  # noqa: ANN401 - torch.func's wrapper has no exact type
    """Return a function of stacked weights, inputs, labels and row weights that returns gradients and losses."""
    call = Stateless(model)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, row_weight: Tensor) -> Tensor:
        return functional.cross_entropy(call(weights, x), y, reduction="none") @ row_weight

    return vmap(grad_and_value(loss))


def why_not_stacked(model: nn.Module, samples: Samples, *, slowly: bool) -> str | None:
    """Return why a model cannot be mapped over two devices; None if it can. ``slowly`` allows vmap's loops."""
    weights = {name: p.detach().expand(2, *p.shape) for name, p in model.named_parameters() if p.requires_grad}
    x, y = samples.x[:2, None].clone(), samples.y[:2, None]  # some models change their input
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if slowly else "error")  # vmap warns if it uses a loop
            # A copy, since forward may store tensors of the mapping in attributes.
            _mapped(deepcopy(model))(weights, x, y, torch.ones(y.shape, device=x.device))
    except Exception as error:  # a user's model may raise anything here
        return first_line(error)
    return None


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, cut to 120 characters, or else the name of its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


@dataclass(eq=False)
class _Stack:
    """Weights of U devices during training, with shapes (U, ...)."""

    start: Mapping[str, Tensor]
    rate: float | Tensor
    """η of all devices, or of each."""
    decay: float
    momentum: float
    proximal: float
    corrections: Mapping[str, Tensor]
    """Terms that are added to the gradients."""

    def __post_init__(self) -> None:
        self.weights = {name: w.clone(memory_format=torch.contiguous_format) for name, w in self.start.items()}
        self.velocity: dict[str, Tensor] = {}
        changed = self.decay or self.momentum or self.proximal or self.corrections
        self.plain = not changed and isinstance(self.rate, float)

    def move(self, name: str, grad: Tensor) -> None:
        """Take a step with the gradients of the first devices."""
        n = grad.shape[0]
        w = first(self.weights[name], n)
        if self.decay:
            grad = grad + self.decay * w
        if self.proximal:
            grad = grad + self.proximal * (w - self.start[name][:n])
        if name in self.corrections:
            grad = grad + self.corrections[name][:n]
        if self.momentum:
            if name in self.velocity:
                grad = grad + self.momentum * self.velocity[name][:n]
            self.velocity[name] = grad
        if isinstance(self.rate, float):
            w.sub_(grad, alpha=self.rate)
        else:
            w.addcmul_(grad, self.rate[:n].view(n, *([1] * (w.dim() - 1))), value=-1.0)

    def move_along(self, name: str, left: Tensor, right: Tensor) -> None:
        """Take a step with gradients that are products of two matrices, without computing them if nothing is added."""
        n, w = left.shape[0], self.weights[name]
        if self.plain:
            first(w, n).view(n, left.shape[1], -1).baddbmm_(left, right, alpha=-float(self.rate))
        else:
            self.move(name, torch.bmm(left, right).view(n, *w.shape[1:]))


class _Mapping:
    """Steps of any module, mapped over the devices of a stack."""

    def __init__(self, model: nn.Module, layer_of: Mapping[str, int]) -> None:
        self.call, self.layer_of = _mapped(model), layer_of

    def device_bytes(self, weights: int, x: Tensor, rows: int) -> float:
        """Return the memory of a device as a share of the largest stack."""
        return (4 * weights + 4 * x[0].nbytes * rows) / _CHUNK_BYTES

    def step(self, stack: _Stack, x: Tensor, y: Tensor, row_weight: Tensor, reach: Sequence[int]) -> Tensor:
        """Take a step with the first devices, of which ``reach[l]`` deliver layer l; return the sum of their losses."""
        local = {name: w[: x.shape[0]] for name, w in stack.weights.items()}
        grads, loss = self.call(local, x, y, row_weight)
        with torch.no_grad():
            for name, grad in grads.items():
                stack.move(name, grad[: reach[self.layer_of[name]]])
        return loss.detach().sum()  # type: ignore[no-any-return]


class _Products:
    """Steps of a chain of known operations, by batched matrix products and without autograd."""

    def __init__(self, chain: list[Link], example: Tensor) -> None:
        self.chain, self.loss = chain, SoftmaxLoss()
        self.images = any(isinstance(link.module, nn.Conv2d | nn.MaxPool2d) for link in chain)
        self.operations = [STACK_OPERATIONS[type(link.module)](link.module) for link in chain]
        self.row_bytes = 0.0
        x = example[:1]
        with torch.no_grad():
            for module, *_ in chain:
                copies = math.prod(module.kernel_size) if isinstance(module, nn.Conv2d) else 1
                self.row_bytes += x.nbytes * copies
                x = module(x.clone())

    def device_bytes(self, weights: int, x: Tensor, rows: int) -> float:
        """Return the memory of a device as a share of the largest stack."""
        return (2 * weights + rows * self.row_bytes) / _CACHE_BYTES

    @torch.inference_mode()
    def step(self, stack: _Stack, x: Tensor, y: Tensor, row_weight: Tensor, reach: Sequence[int]) -> Tensor:
        """Take a step with the first devices, of which ``reach[l]`` deliver layer l; return the sum of their losses."""
        n, shape = x.shape[0], x.shape[2:]
        x = x.flatten(2)
        if self.images:
            x = x.transpose(1, 2).contiguous().view(n, *shape, -1)
        given = [[first(stack.weights[name], n) for name in link.names] for link in self.chain]
        for operation, values in zip(self.operations, given, strict=True):
            x = operation.forward(x, *values)
        minus_loss, delta = self.loss(x.flatten(0, 1), y.view(1, -1), row_weight.flatten())
        delta = delta.view(n, -1, delta.shape[1])
        for k in reversed(range(len(self.operations))):
            operation, names = self.operations[k], self.chain[k].names
            below = reach[self.chain[k - 1].layer] if k and self.chain[k - 1].layer >= 0 else 0
            lower = operation.input_grad(first(delta, below), *given[k][:1]) if below else None
            if names:  # weights move after the gradient has passed them
                stack.move_along(names[0], *operation.factors(delta))
                if len(names) > 1:
                    stack.move(names[1], operation.bias_grad(delta))
            operation.kept = None
            if lower is None:
                break
            delta = lower
        return -minus_loss


class Stacked(Engine):
    """Local SGD of many devices at once, for models whose samples do not influence each other."""

    name = "stacked"

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], samples: Samples, *arguments: Any) -> None:  # noqa: ANN401 - as of any engine
        super().__init__(model, layers, samples, *arguments)
        self.weight_bytes = sum(p.nbytes for p in self.parameters.values())
        chain = stackable_chain(model, layers, samples.x[:1])
        self.walk = _Mapping(model, self.layer_of) if chain is None else _Products(chain, samples.x)

    def run(self, work: RoundWork) -> Change:
        """Do the local work of a round and merge it."""
        return self._run(work, np.full(work.sizes.size, work.eta), None)

    def run_apart(self, works: Sequence[RoundWork], starts: Sequence[Mapping[str, Tensor]]) -> Change:
        """Do local work that starts from several weights, in common stacks."""
        if len({work.proximal for work in works}) > 1 or self.controls is not None:
            return super().run_apart(works, starts)
        sizes = [work.sizes.size for work in works]
        origin = np.repeat(np.arange(len(works)), sizes)
        rates = np.repeat([work.eta for work in works], sizes)
        return self._run(joined_work(works), rates, lambda name, u: [starts[k][name] for k in origin[u].tolist()])

    def _run(self, work: RoundWork, rates: Floats, starts: Callable[[str, Ints], list[Tensor]] | None) -> Change:
        chosen = np.flatnonzero(work.contributes)
        if chosen.size == 0:
            return NOTHING
        chosen = chosen[np.argsort(work.sizes[chosen], kind="stable")]  # similar batch sizes together: less padding
        share = self.walk.device_bytes(self.weight_bytes, self.samples.x, int(work.sizes[chosen].max()))
        parts = math.ceil(chosen.size * share) if chosen.size * share > 1 else 1
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        losses = 0.0
        for some in np.array_split(chosen, min(parts, chosen.size)):
            deepest = some[np.argsort(-work.progress.z[some], kind="stable")]
            start = {
                name: p.detach().expand(some.size, *p.shape) if starts is None else torch.stack(starts(name, deepest))
                for name, p in self.parameters.items()
            }
            losses += self._chunk(work.only(deepest), rates[deepest], start, total)
        if self.controls is not None:
            self.controls.close()
        return Change(total, {}, losses / chosen.size)

    def _chunk(self, work: RoundWork, rates: Floats, start: dict[str, Tensor], total: dict[str, Tensor]) -> float:
        S, L = int(work.sizes.max()), work.progress.layers
        device, dtype = self.samples.device, next(iter(start.values())).dtype
        place = np.arange(S)
        used = place < work.sizes[:, None]
        source = np.minimum(work.starts[:-1, None] + place, work.starts[1:, None] - 1)
        row_weight = torch.from_numpy(used / work.sizes[:, None]).to(device, dtype)
        rate = float(rates[0]) if (rates == rates[0]).all() else torch.from_numpy(rates).to(device, dtype)
        stack = _Stack(start, rate, self.weight_decay, self.momentum, work.proximal, self._corrections(work))
        losses = 0.0
        for iteration, rows in enumerate(work.rows):
            # Layer l of this iteration is done if and only if z ≥ iteration·L + (L+1−l).
            done = work.progress.z[:, None] >= iteration * L + np.arange(L, 0, -1)
            reach = done.sum(axis=0).tolist()
            n = reach[-1]
            if n == 0:
                break
            x, y = self.samples.take(rows[source[:n]].reshape(-1))
            loss = self.walk.step(stack, x.view(n, S, *x.shape[1:]), y.view(n, S), row_weight[:n], reach)
            if iteration == 0:
                losses = float(loss)
        moved = {name: w.sub_(start[name]) for name, w in stack.weights.items()}
        if self.controls is not None and work.senders is not None and work.controls is not None:
            for i, u in enumerate(work.senders[:, 1].tolist()):
                steps = {name: int(work.progress.steps_done[i, l]) for name, l in self.layer_of.items()}
                own = {name: change[i].clone() for name, change in moved.items()}
                self.controls.move(u, own, steps, work.eta, float(work.controls[i]))
        A = torch.from_numpy(work.A.T.copy()).to(device, dtype)
        for name, change in moved.items():
            total[name] += torch.mv(change.flatten(1).t(), A[self.layer_of[name]]).view_as(total[name])
        return losses

    def _corrections(self, work: RoundWork) -> dict[str, Tensor]:
        """Return the terms that control variates add to the gradients of each device."""
        if self.controls is None or work.senders is None:
            return {}
        own = [self.controls.correction(u) for u in work.senders[:, 1].tolist()]
        return {
            name: torch.stack([each.get(name, torch.zeros_like(p)) for each in own])
            for name, p in self.parameters.items()
        }


def stackable_chain(model: nn.Module, layers: tuple[Layer, ...], example: Tensor) -> list[Link] | None:
    """Return the model as a chain of operations that :mod:`adelfl.training.stack_ops` has, or None if it is not one."""
    chain = chain_of(model, layers, example)
    return chain if chain is not None and all(is_stackable(link.module) for link in chain) else None


def pays(model: nn.Module, layers: tuple[Layer, ...], samples: Samples) -> bool:
    """Return whether stacking is faster than the loop engine; for wide layers, it is not."""
    channels = [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)]
    if stackable_chain(model, layers, samples.x[:1]) is not None:
        return max(channels, default=0) <= _FEW_CHANNELS
    return not channels and why_not_stacked(model, samples, slowly=False) is None
