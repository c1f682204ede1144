"""A module that is written as a class, as a chain of operations, read off a symbolic trace.

Functions and methods are replaced by modules that do the same, which :data:`~adelfl.training.operations.STEPS` has.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

_RELU = {functional.relu, torch.relu, torch.relu_, "relu", "relu_"}
_POOL = {functional.max_pool2d, torch.max_pool2d}
_RESHAPE = {torch.flatten, torch.reshape, "flatten", "reshape", "view"}
_LOG_SOFTMAX = {functional.log_softmax, torch.log_softmax, "log_softmax"}


class _NoChain(Exception):
    """The module is not a chain of known operations."""


class _Reader(fx.Interpreter):
    """Runs a trace on some samples, and lists its operations as modules."""

    def __init__(self, traced: fx.GraphModule, model: nn.Module, samples: int) -> None:
        super().__init__(traced)
        self.model, self.samples = model, samples
        self.chain: list[nn.Module] = []
        self.last: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401 - as in torch
        value = super().run_node(n)
        if n.op == "placeholder":
            self.last = self.last or n
        elif n.op == "output":
            if n.args[0] is not self.last:
                raise _NoChain
        elif isinstance(value, Tensor):
            self._follow(n, value)
        return value

    def _follow(self, n: fx.Node, value: Tensor) -> None:
        before = self.env[self.last] if self.last is not None else None
        if n.op == "get_attr" or not n.args or n.args[0] is not self.last or not isinstance(before, Tensor):
            raise _NoChain
        if sum(isinstance(self.env.get(node), Tensor) for node in n.all_input_nodes) != 1:
            raise _NoChain
        self.last = n
        if n.op == "call_module":
            self.chain.append(self.model.get_submodule(str(n.target)))
        elif n.target in _RELU:
            self.chain.append(nn.ReLU())
        elif n.target in _POOL and len(n.args) <= 5:  # further arguments have another order in the module
            self.chain.append(nn.MaxPool2d(*n.args[1:], **n.kwargs))  # type: ignore[arg-type]
        elif n.target in _RESHAPE and value.shape == (self.samples, before[0].numel()):
            self.chain.append(nn.Flatten())
        elif n.target in _LOG_SOFTMAX and value.dim() == 2 and {*n.args[1:2], n.kwargs.get("dim")} <= {1, -1, None}:
            self.chain.append(_LogSoftmax())
        else:
            raise _NoChain


class _LogSoftmax(nn.Module):
    """A log-softmax before the loss, whose own log-softmax makes it redundant; elsewhere it is not supported."""


def traced_chain(model: nn.Module, example: Tensor) -> list[nn.Module] | None:
    """Return the operations of a module, one after another; None if it is not a chain of known ones.

    The example has at least one sample. The model is not changed.
    """
    samples = example[torch.zeros(3, dtype=torch.int64)]  # a copy, since some models work in place
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A copy, since what forward keeps in attributes would be left there as a symbol.
            reader = _Reader(fx.symbolic_trace(deepcopy(model)), model, len(samples))
            reader.run(samples)
    except Exception:  # anything that tracing may raise in a user's model
        return None
    chain = reader.chain
    if chain and isinstance(chain[-1], _LogSoftmax):  # the loss has one of its own
        chain.pop()
    return chain
