"""Truncated backpropagation on a real clock: from the last layer until time is up, for any module.

Autograd walks back from the loss by itself; a hook on each parameter tells when its gradient is complete, and when the
last parameter of a layer is, the caller is asked whether time is up. If so, the walk is ended from inside: what was not
done is not computed. Nothing about the model's shape is assumed, so shortcuts, weights that are used twice and modules
that are called twice are right by construction: autograd adds up all uses before it calls a gradient complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from adelfl.errors import ConfigError
from adelfl.training.layers import Layer


class Answer(Enum):
    """What a caller may say besides yes and no when it is asked whether time is up."""

    after_this = "this layer counts, and is the last"


ShouldStop = Callable[[int], bool | Answer]
"""Asked with a layer's position (0 is the input side) when its gradient is complete: is time up?"""

Result = TypeVar("Result")

Loss = Callable[[nn.Module], Tensor]
"""Runs the model on one batch and gives the mean loss, a scalar."""


@dataclass(frozen=True, eq=False)
class Partial:
    """What a truncated pass came to.

    Attributes
    ----------
    gradients : dict of str to Tensor
        Of the parameters of complete layers. A parameter that the loss does not depend on has none.
    depth : int
        How many layers are complete, counted from the last.
    loss : float
        Of the batch.
    stopped : bool
        Whether time was up before everything was done.
    """

    gradients: dict[str, Tensor] = field(repr=False)
    depth: int
    loss: float
    stopped: bool


class _TimeIsUp(Exception):
    """Ends a walk from inside; never leaves this module."""


class Truncation:
    """Truncated passes through one model; as a context, so that its hooks are set once for many passes.

    Parameters
    ----------
    model : nn.Module
        Its parameters' ``grad`` are left as they were by every pass.
    layers : tuple of Layer
        Input side first, as :func:`~adelfl.training.layers.find_layers` gives them.
    """

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...]) -> None:
        self.layers = layers
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.members = [[self.parameters[name] for name in layer.parameters] for layer in layers]
        self.home = {id(p): l for l, own in enumerate(self.members) for p in own}
        self.depth = 0

    def __enter__(self) -> Truncation:
        self._handles = [
            p.register_post_accumulate_grad_hook(self._complete)  # type: ignore[no-untyped-call]
            for p in self.parameters.values()
            if id(p) in self.home
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def backward(self, loss: Tensor, should_stop: ShouldStop) -> Partial:
        """Go back from a loss until time is up.

        Parameters
        ----------
        loss : Tensor
            A scalar that the model produced; its graph is used up.
        should_stop : callable
            Asked once before the walk, with the number of layers, and then with the position of each layer that has
            become complete, from the last to the first. Where it says yes, that layer came too late: it does not count,
            and the walk ends. :attr:`Answer.after_this` ends it too, but the layer counts.
        """
        value = float(loss.detach())
        self.loss, self.should_stop = loss, should_stop
        self.missing, self.looked, self.depth = [len(own) for own in self.members], False, 0
        if should_stop(len(self.layers)):
            return Partial({}, 0, value, stopped=True)
        with _own_gradients(self.parameters.values()):
            try:
                loss.backward()  # type: ignore[no-untyped-call]
                # What is still missing was not reached at all, so it is as complete as it will ever be.
                self.missing = [0] * len(self.layers)
                self._advance()
            except _TimeIsUp:
                pass
            return Partial(self._collect(), self.depth, value, stopped=self.depth < len(self.layers))

    def _complete(self, parameter: Tensor) -> None:
        l = self.home[id(parameter)]
        self.missing[l] -= 1
        current = len(self.layers) - 1 - self.depth
        if l < current and not self.looked:
            # A layer is passed by: perhaps the loss does not depend on all of it. Looking that up takes a while, and
            # is done only where it may matter.
            self.looked, reached = True, reached_from(self.loss)
            for k, own in enumerate(self.members):
                self.missing[k] -= sum(id(p) not in reached for p in own)
        self._advance()

    def _advance(self) -> None:
        """Count the layers from the last on that are complete by now."""
        while (l := len(self.layers) - 1 - self.depth) >= 0 and self.missing[l] <= 0:
            answer = self.should_stop(l)
            if answer and answer is not Answer.after_this:
                raise _TimeIsUp
            self.depth += 1
            if answer:
                raise _TimeIsUp

    def _collect(self) -> dict[str, Tensor]:
        done = self.layers[len(self.layers) - self.depth :]
        found = {name: self.parameters[name].grad for layer in done for name in layer.parameters}
        return {name: grad for name, grad in found.items() if grad is not None}


def backward(loss: Tensor, model: nn.Module, layers: tuple[Layer, ...], should_stop: ShouldStop) -> Partial:
    """Go back from a loss until time is up: one pass of a :class:`Truncation`."""
    with Truncation(model, layers) as truncation:
        return truncation.backward(loss, should_stop)


def reached_from(loss: Tensor) -> set[int]:
    """The ids of the parameters that a loss depends on, read off its graph."""
    found: set[int] = set()
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        todo.extend(following for following, _ in node.next_functions)
    return found


@contextmanager
def _own_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let a backward pass begin with no gradients, and give the caller's back afterwards."""
    before = [(p, p.grad) for p in parameters]
    for p, _ in before:
        p.grad = None
    try:
        yield
    finally:
        for p, grad in before:
            p.grad = grad


def train(
    model: nn.Module,
    layers: tuple[Layer, ...],
    batches: Iterable[Loss | list[tuple[Loss, int]]],
    optimizer: torch.optim.Optimizer,
    should_stop: ShouldStop,
) -> tuple[int, float]:
    """Local iterations until time is up: each steps the layers that it completed, and only those.

    Parameters
    ----------
    model, layers
        As for :func:`backward`. The model is trained in place.
    batches : iterable
        One entry per local iteration: a function that runs the model and gives the mean loss; or a list of such
        functions with their numbers of samples, micro-batches whose gradients are accumulated. A layer's gradient is
        then the mean over the samples of the micro-batches that completed it.
    optimizer : torch.optim.Optimizer
        Of the model's parameters; one without a gradient is left alone, as torch's optimizers do.
    should_stop : callable
        As for :func:`backward`.

    Returns
    -------
    depth, loss : int, float
        Layers completed over all iterations, and the loss of the first.
    """
    total, first = 0, float("nan")
    with Truncation(model, layers) as truncation:
        for iteration, entry in enumerate(batches):
            parts = entry if isinstance(entry, list) else [(entry, 1)]
            found = _accumulated(truncation, model, parts, should_stop)
            if iteration == 0:
                first = found.loss
            total += found.depth
            with _own_gradients(truncation.parameters.values()):
                for name, p in truncation.parameters.items():
                    p.grad = found.gradients.get(name)
                optimizer.step()
            if found.stopped:
                break
    return total, first


def _accumulated(
    truncation: Truncation, model: nn.Module, parts: list[tuple[Loss, int]], should_stop: ShouldStop
) -> Partial:
    """Mean gradients over micro-batches, each layer's over those that completed it; the depth of the deepest."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    depth, loss, samples, stopped = 0, 0.0, 0, False
    for run, size in parts:
        found = truncation.backward(run(model), should_stop)
        loss, samples = loss + size * found.loss, samples + size
        for name, grad in found.gradients.items():
            sums[name] = grad.mul_(size) if name not in sums else sums[name].add_(grad, alpha=size)
            counts[name] = counts.get(name, 0) + size
        depth, stopped = max(depth, found.depth), found.stopped
        if stopped:
            break
    means = {name: grad.div_(counts[name]) for name, grad in sums.items()}
    return Partial(means, depth, loss / samples, stopped)


def rehearse(model: nn.Module, layers: tuple[Layer, ...], loss: Loss) -> None:
    """Find out before the first round whether a model can be truncated, on a copy of it.

    Raises
    ------
    ConfigError
        If the layers do not become complete from the last to the first, or gradients would be wrong.
    """
    whole = _plain_gradients(deepcopy(model), loss)
    L = len(layers)
    _check_order(deepcopy(model), layers, loss)
    for first in range(L):
        found = _same_luck(partial(_down_to, first, deepcopy(model), layers, loss))
        for name, grad in found.gradients.items():
            if name not in whole or not torch.allclose(grad, whole[name], rtol=1e-3, atol=1e-6, equal_nan=True):
                raise ConfigError(f"the gradient of {name!r} is another one when the pass is cut short")


def _down_to(first: int, model: nn.Module, layers: tuple[Layer, ...], loss: Loss) -> Partial:
    return backward(loss(model), model, layers, lambda l: l < first)


def _check_order(model: nn.Module, layers: tuple[Layer, ...], loss: Loss) -> None:
    parameters = dict(model.named_parameters())

    def look(l: int) -> bool:
        for early in layers[:l]:
            if l < len(layers) and all(parameters[name].grad is not None for name in early.parameters):
                raise ConfigError(
                    f"layer {early.name!r} is complete before layer {layers[l].name!r}, which is listed after it: "
                    "their order is not that of backpropagation; list the layers by hand, input side first"
                )
        return False

    _same_luck(lambda: backward(loss(model), model, layers, look))


def _plain_gradients(model: nn.Module, loss: Loss) -> dict[str, Tensor]:
    model.zero_grad()
    _same_luck(lambda: loss(model).backward())  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _same_luck(do: Callable[[], Result]) -> Result:
    """Do something with the same dropout every time, and leave torch's generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return do()
