"""The operations of a module that is written as a class, if it does one after the other: read off a symbolic trace.

Only what is in :data:`~adelfl.training.operations.STEPS` is of use to the quick pass, so functions and methods are put
back as the modules that do the same.
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
    """The module does something else."""


class _Reader(fx.Interpreter):
    """Runs a trace on some samples, and lists what each operation is as a module."""

    def __init__(self, traced: fx.GraphModule, model: nn.Module, samples: int) -> None:
        super().__init__(traced)
        self.model, self.samples = model, samples
        self.chain: list[nn.Module] = []
        self.last: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401 - as in torch
        found = super().run_node(n)
        if n.op == "placeholder":
            self.last = self.last or n
        elif n.op == "output":
            if n.args[0] is not self.last:
                raise _NoChain
        elif isinstance(found, Tensor):
            self._follow(n, found)
        return found

    def _follow(self, n: fx.Node, found: Tensor) -> None:
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
        elif n.target in _POOL and len(n.args) <= 5:  # the order of what follows is another one in the module
            self.chain.append(nn.MaxPool2d(*n.args[1:], **n.kwargs))  # type: ignore[arg-type]
        elif n.target in _RESHAPE and found.shape == (self.samples, before[0].numel()):
            self.chain.append(nn.Flatten())
        elif n.target in _LOG_SOFTMAX and found.dim() == 2 and {*n.args[1:2], n.kwargs.get("dim")} <= {1, -1, None}:
            self.chain.append(_LogSoftmax())
        else:
            raise _NoChain


class _LogSoftmax(nn.Module):
    """Of scores that are about to go through another one: there it does nothing, and elsewhere it is not known."""


def traced_chain(model: nn.Module, example: Tensor) -> list[nn.Module] | None:
    """What the module does to a batch, one operation after the other; None if it is not of that kind.

    Parameters
    ----------
    model : nn.Module
        Unchanged.
    example : Tensor
        At least one sample.
    """
    samples = example[torch.zeros(3, dtype=torch.int64)]  # a copy, since some models work in place
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Of a copy: what forward keeps in attributes would otherwise be left there as a symbol.
            reader = _Reader(fx.symbolic_trace(deepcopy(model)), model, len(samples))
            reader.run(samples)
    except Exception:  # whatever tracing meets in a user's model
        return None
    chain = reader.chain
    if chain and isinstance(chain[-1], _LogSoftmax):  # the loss has one of its own
        chain.pop()
    return chain
