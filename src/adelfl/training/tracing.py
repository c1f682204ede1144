"""Conversion of modules that are written as classes to chains of operations, by a symbolic trace.

Functions and methods are replaced by equivalent modules of :data:`~adelfl.training.operations.STEPS`.
"""

from __future__ import annotations

import warnings
from copy import deepcopy

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

_RELU = {functional.relu, torch.relu, torch.relu_, "relu", "relu_"}
_POOL = {functional.max_pool2d, torch.max_pool2d}
_RESHAPE = {torch.flatten, torch.reshape, "flatten", "reshape", "view"}
_LOG_SOFTMAX = {functional.log_softmax, torch.log_softmax, "log_softmax"}


def traced_chain(model: nn.Module, example: Tensor) -> list[nn.Module] | None:
    """Return the operations of a module in order; None if it is not a chain. ``example`` has at least one sample."""
    samples = example[torch.zeros(3, dtype=torch.int64)]  # a copy, since some models change their input
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A copy, since forward may store symbols in attributes.
            traced = fx.symbolic_trace(deepcopy(model))
            run = fx.Interpreter(traced, garbage_collect_values=False)
            run.run(samples)
            return _modules_of(traced, run, model)
    except Exception:  # a user's model may raise anything when it is traced
        return None


def _modules_of(traced: fx.GraphModule, run: fx.Interpreter, model: nn.Module) -> list[nn.Module] | None:
    tensors = {node: value for node, value in run.env.items() if isinstance(value, Tensor)}
    chain: list[nn.Module] = []
    last: fx.Node | None = None
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            last = last or node
        elif node.op == "output":
            if node.args[0] is not last:
                return None
        elif node in tensors:
            # The result of the operation before must be the first argument, and the only tensor.
            if last not in tensors or node.args[:1] != (last,) or {*node.all_input_nodes} & tensors.keys() != {last}:
                return None
            module = _module_of(node, model, tensors[last], tensors[node])
            if module is None:
                return None
            chain.append(module)
            last = node
    if chain and isinstance(chain[-1], _LogSoftmax):  # redundant, since the loss contains it
        chain.pop()
    return chain


def _module_of(node: fx.Node, model: nn.Module, before: Tensor, value: Tensor) -> nn.Module | None:
    """Return the module that is equivalent to a node; None if there is none."""
    if node.op == "call_module":
        return model.get_submodule(str(node.target))
    if node.target in _RELU:
        return nn.ReLU()
    if node.target in _POOL and len(node.args) <= 5:  # further arguments are in another order in the module
        return nn.MaxPool2d(*node.args[1:], **node.kwargs)  # type: ignore[arg-type]
    if node.target in _RESHAPE and value.shape == (before.shape[0], before[0].numel()):
        return nn.Flatten()
    if node.target in _LOG_SOFTMAX and value.dim() == 2 and {*node.args[1:2], node.kwargs.get("dim")} <= {1, -1, None}:
        return _LogSoftmax()
    return None


class _LogSoftmax(nn.Module):
    """A log-softmax, which is supported only as the last operation."""
