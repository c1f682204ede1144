"""σ² and G² of the bound, estimated from a few gradients at the initial model."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from adelfl.learning.layers import Layer
from adelfl.learning.work import Ints, Samples
from adelfl.planner import Constants


def estimate_constants(
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    chosen: list[Ints],
) -> Constants:
    """Estimate the variance of one sample's gradient, and G² of each layer, from two half batches of some devices.

    Costs two passes per device, whatever the model.

    Parameters
    ----------
    model : nn.Module
        At its initial weights; unchanged.
    layers : tuple of Layer
        Its layers.
    samples : Samples
        All training samples.
    chosen : list of ndarray of int
        For each of some devices, an even number of its samples.
    """
    weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    names = [name for layer in layers for name in layer.parameters]
    differences, sizes = [], []
    for rows in chosen:
        halves = []
        for half in np.split(rows[: rows.size // 2 * 2], 2):
            x, y = samples.take(half)
            loss = functional.cross_entropy(functional_call(model, (weights, buffers), (x,)), y)
            halves.append(dict(zip(names, torch.autograd.grad(loss, [weights[n] for n in names]), strict=True)))
        one, other = halves
        differences.append(rows.size // 2 * sum(float((one[n] - other[n]).square().sum()) for n in names))
        sizes.append(
            [sum(float((one[n] + other[n]).square().sum()) / 4.0 for n in layer.parameters) for layer in layers]
        )
    return Constants.from_pairs(differences, sizes, samples=1)
