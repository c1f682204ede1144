"""σ² and G² of the bound, estimated from a few gradients at the initial model."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from adelfl.learning.layers import Layer
from adelfl.learning.work import Ints, Samples


def estimate_constants(
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    chosen: list[Ints],
) -> tuple[float, tuple[float, ...]]:
    """Estimate the variance of one sample's gradient, and G² of each layer.

    Two gradients g, g′ of half a batch each, of the same device, differ only by batch noise:
    E‖g − g′‖² = 2σ²/(n/2) for n samples, so σ² = n/4 ‖g − g′‖². G²_l is the mean of ‖(g + g′)/2‖² over devices. Both
    cost two passes per device, whatever the model.

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

    Returns
    -------
    sigma2 : float
        Mean over devices, all layers together.
    G2 : tuple of float
        One per layer, input side first.
    """
    weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    names = [name for layer in layers for name in layer.parameters]
    sigma2, G2 = [], []
    for rows in chosen:
        halves = []
        for half in np.split(rows[: rows.size // 2 * 2], 2):
            x, y = samples.take(half)
            loss = functional.cross_entropy(functional_call(model, (weights, buffers), (x,)), y)
            halves.append(dict(zip(names, torch.autograd.grad(loss, [weights[n] for n in names]), strict=True)))
        one, other = halves
        difference = sum(float((one[n] - other[n]).square().sum()) for n in names)
        sigma2.append(rows.size / 4.0 * difference)
        G2.append([sum(float((one[n] + other[n]).square().sum()) / 4.0 for n in layer.parameters) for layer in layers])
    tiny = float(np.finfo(np.float32).tiny)
    mean_G2 = np.maximum(np.mean(G2, axis=0), tiny)
    return max(float(np.mean(sigma2)), tiny), tuple(float(v) for v in mean_G2)
