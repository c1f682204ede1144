"""Costs of layers: multiplications, and bytes of an upload."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from torch import Tensor, nn

from adelfl.training.layers import Layer


def layer_costs(model: nn.Module, layers: tuple[Layer, ...], example: Tensor) -> list[float]:
    """Return the multiplications of one sample in the forward pass of each layer, input side first.

    A matrix or a kernel costs its size for each position of the output; a module with other parameters costs one
    multiplication for each number of its output. The cost of a backward pass is proportional.
    """
    model = deepcopy(model).eval()
    layer_of = {name: l for l, layer in enumerate(layers) for name in layer.parameters}
    costs = [0.0] * len(layers)
    for prefix, module in model.named_modules():
        own = [f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)]
        if not own or own[0] not in layer_of:
            continue

        def count(m: nn.Module, _: object, out: object, l: int = layer_of[own[0]]) -> None:
            if not isinstance(out, Tensor):
                out = next((o for o in out if isinstance(o, Tensor)), example) if isinstance(out, tuple) else example
            weight = getattr(m, "weight", None)
            each = math.prod(weight.shape[1:]) if isinstance(weight, Tensor) and weight.dim() >= 2 else 1
            costs[l] += out.numel() * each / max(1, example.shape[0])

        module.register_forward_hook(count)
    with torch.no_grad():
        model(example.clone())  # some models change their input
    return [max(cost, 1.0) for cost in costs]


def layer_sizes(model: nn.Module, layers: tuple[Layer, ...]) -> list[float]:
    """Return the bytes of each layer's parameters, input side first."""
    parameters = dict(model.named_parameters())
    return [float(sum(parameters[name].nbytes for name in layer.parameters)) for layer in layers]
