"""Truncated backpropagation on a real clock, from the last layer until time is up, for any module.

A hook on each parameter runs when autograd has completed its gradient. When all parameters of a layer are complete, a
function of the caller decides whether time is up; if so, an exception ends the backward pass. Shortcuts, tied weights
and modules that are called twice need no special treatment, since a gradient is complete only after all its uses.
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
    """A third result of ``should_stop``, besides true and false."""

    after_this = "this layer counts, and is the last"


ShouldStop = Callable[[int], bool | Answer]
"""Function that is called with the position of a complete layer (0 at the input), and returns whether time is up."""

Loss = Callable[[nn.Module], Tensor]
"""Function that runs the model on a batch and returns the mean loss."""


@dataclass(frozen=True, eq=False)
class Partial:
    """Result of a truncated pass."""

    gradients: dict[str, Tensor] = field(repr=False)
    """Gradients of the parameters of complete layers, without parameters that do not affect the loss."""
    depth: int
    """Number of complete layers, counted from the last."""
    loss: float
    """Loss of the batch."""
    stopped: bool
    """Whether time was up before all layers were complete."""


class _TimeIsUp(Exception):
    """Ends a backward pass; used in this module only."""


class Truncation:
    """Truncated passes through one model, which do not change ``grad`` of the parameters.

    As a context manager, it sets hooks once for many passes.
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
        """Backpropagate from a scalar loss until time is up.

        ``should_stop`` is called before the pass, with the number of layers, and then with the position of each
        complete layer, from the last to the first. True means that the layer is too late: it does not count, and the
        pass ends. :attr:`Answer.after_this` ends the pass too, but the layer counts.
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
                # The loss does not depend on the parameters that are still missing.
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
            # An earlier layer is done first, so the loss may not depend on all parameters of the current one. The
            # search for these takes time, and is made only once, and only here.
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
    """Raise ConfigError if layers are not completed from the last to the first, or truncated gradients are wrong.

    The check is made on copies of the model.
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
    """Return the loss with the same dropout masks in every call, and restore torch's generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return loss(model)
