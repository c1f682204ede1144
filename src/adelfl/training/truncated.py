"""Truncated backpropagation on a real clock: from the last layer until time is up, for any module.

A hook on each parameter runs when autograd has completed its gradient. When all parameters of a layer are complete,
a function of the caller decides whether time is up; if so, an exception ends the backward pass, and the rest is not
computed. Shortcuts, weights that are used twice and modules that are called twice need no special treatment: autograd
adds up all uses before a gradient is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor, nn

from adelfl.errors import ConfigError
from adelfl.training.layers import Layer, reached_from


class Answer(Enum):
    """A third answer of ``should_stop``, besides true and false."""

    after_this = "this layer counts, and is the last"


ShouldStop = Callable[[int], bool | Answer]
"""Called with a layer's position (0 is the input side) when its gradient is complete; returns whether time is up."""

Loss = Callable[[nn.Module], Tensor]
"""Runs the model on one batch and returns the mean loss, a scalar."""


@dataclass(frozen=True, eq=False)
class Partial:
    """Result of a truncated pass."""

    gradients: dict[str, Tensor] = field(repr=False)
    """Gradients of the parameters of complete layers. A parameter that the loss does not depend on has none."""
    depth: int
    """Number of complete layers, counted from the last."""
    loss: float
    """Loss of the batch."""
    stopped: bool
    """Whether time was up before all layers were complete."""


class _TimeIsUp(Exception):
    """Ends a backward pass; never leaves this module."""


class Truncation:
    """Truncated passes through one model; a context manager, so that hooks are set once for many passes.

    Every pass leaves ``grad`` of the parameters as it was. Layers are as
    :func:`~adelfl.training.layers.find_layers` returns them.
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
        """Backpropagate from a loss until time is up.

        Parameters
        ----------
        loss : Tensor
            A scalar that the model produced; its graph is used up.
        should_stop : callable
            Called once before the pass, with the number of layers, and then with the position of each layer that has
            become complete, from the last to the first. True means that the layer came too late: it does not count, and
            the pass ends. :attr:`Answer.after_this` ends the pass too, but the layer counts.
        """
        value = float(loss.detach())
        self.loss, self.should_stop = loss, should_stop
        self.missing, self.looked, self.depth = [len(own) for own in self.members], False, 0
        if should_stop(len(self.layers)):
            return Partial({}, 0, value, stopped=True)
        before = [(p, p.grad) for p in self.parameters.values()]
        try:
            for p, _ in before:
                p.grad = None
            with suppress(_TimeIsUp):
                loss.backward()  # type: ignore[no-untyped-call]
                # What is still missing was not reached at all: the loss does not depend on it.
                self.missing = [0] * len(self.layers)
                self._advance()
            done = [name for layer in self.layers[len(self.layers) - self.depth :] for name in layer.parameters]
            gradients = {name: grad for name in done if (grad := self.parameters[name].grad) is not None}
            return Partial(gradients, self.depth, value, stopped=self.depth < len(self.layers))
        finally:
            for p, grad in before:
                p.grad = grad

    def _complete(self, parameter: Tensor) -> None:
        l = self.home[id(parameter)]
        self.missing[l] -= 1
        current = len(self.layers) - 1 - self.depth
        if l < current and not self.looked:
            # A layer was passed over, so the loss may not depend on all of it. Looking that up takes time, and is done
            # only here, where it may matter.
            self.looked, reached = True, reached_from(self.loss)
            for k, own in enumerate(self.members):
                self.missing[k] -= sum(id(p) not in reached for p in own)
        self._advance()

    def _advance(self) -> None:
        """Count the layers that are complete by now, from the last on."""
        while (l := len(self.layers) - 1 - self.depth) >= 0 and self.missing[l] <= 0:
            answer = self.should_stop(l)
            if answer and answer is not Answer.after_this:
                raise _TimeIsUp
            self.depth += 1
            if answer:
                raise _TimeIsUp


def backward(loss: Tensor, model: nn.Module, layers: tuple[Layer, ...], should_stop: ShouldStop) -> Partial:
    """Backpropagate from a loss until time is up: one pass of a :class:`Truncation`."""
    with Truncation(model, layers) as truncation:
        return truncation.backward(loss, should_stop)


def check_truncation(model: nn.Module, layers: tuple[Layer, ...], loss: Loss) -> None:
    """Check on a copy of a model that it can be truncated, before the first round.

    Raises
    ------
    ConfigError
        If the layers do not become complete from the last to the first, or gradients would be wrong.
    """
    copied = deepcopy(model)
    copied.zero_grad()
    _seeded_loss(copied, loss).backward()  # type: ignore[no-untyped-call]
    whole = {name: p.grad for name, p in copied.named_parameters() if p.grad is not None}
    for first in range(len(layers)):
        copied = deepcopy(model)
        parameters = dict(copied.named_parameters())

        def stop(l: int, first: int = first, parameters: dict[str, nn.Parameter] = parameters) -> bool:
            for early in layers[:l]:
                if l < len(layers) and all(parameters[name].grad is not None for name in early.parameters):
                    raise ConfigError(
                        f"layer {early.name!r} is complete before layer {layers[l].name!r}, which is listed after it: "
                        "their order is not that of backpropagation; list the layers by hand, input side first"
                    )
            return l < first

        for name, grad in backward(_seeded_loss(copied, loss), copied, layers, stop).gradients.items():
            if name not in whole or not torch.allclose(grad, whole[name], rtol=1e-3, atol=1e-6, equal_nan=True):
                raise ConfigError(f"the gradient of {name!r} differs when the backward pass is truncated")


def _seeded_loss(model: nn.Module, loss: Loss) -> Tensor:
    """Return the loss with the same dropout masks every time, and restore torch's generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return loss(model)
