"""Estimates of gradient statistics from half batches: σ² and G² of the bound, and the spread of each layer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.planner import Constants
from adelfl.theory.gradient_stats import GradientStats
from adelfl.training.layers import Layer, is_per_sample
from adelfl.training.masks import seeded
from adelfl.training.work import Ints, RoundWork, Samples, Stateless

_OBSERVED = 16  # devices of a round that are observed


class _Sums:
    """Sums over devices for each layer, as :meth:`GradientStats.from_pairs` needs them."""

    def __init__(self, layers: int) -> None:
        self.devices, self.one_sample, self.noise, self.squares = np.zeros((4, layers))
        self.total: dict[str, Tensor] = {}

    def add(self, l: int, pairs: dict[str, tuple[Tensor, Tensor]], half: int) -> tuple[float, float]:
        """Add a device's two gradients of a layer, from ``half`` samples each; return ‖g − g′‖² and ‖(g + g′)/2‖²."""
        difference = square = 0.0
        for name, (one, other) in pairs.items():
            middle = (one + other) / 2.0
            difference += float((one - other).square().sum())
            square += float(middle.square().sum())
            self.total[name] = self.total[name] + middle if name in self.total else middle
        self.devices[l] += 1
        self.one_sample[l] += half / 2.0 * difference
        self.noise[l] += 1.0 / (2.0 * half)
        self.squares[l] += square
        return difference, square

    def spread(self, layers: tuple[Layer, ...]) -> GradientStats:
        norms = [
            sum(float(self.total[n].square().sum()) for n in layer.parameters if n in self.total) for layer in layers
        ]
        return GradientStats.from_pairs(self.devices, self.one_sample, self.noise, self.squares, norms)


class _Gradients:
    """Gradients of a model, whose weights and buffers stay as they are."""

    def __init__(self, model: nn.Module, samples: Samples) -> None:
        self.call, self.samples = Stateless(model), samples
        self.weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
        self.buffers = {name: b.clone() for name, b in model.named_buffers()}
        self.loss = 0.0

    def of(self, rows: Ints, layers: tuple[Layer, ...]) -> dict[str, Tensor]:
        """Return the gradients of the mean loss of some rows, for the parameters of some layers."""
        names = [name for layer in layers for name in layer.parameters]
        x, y = self.samples.take(rows)
        loss = functional.cross_entropy(self.call(self.weights | self.buffers, x), y)
        self.loss += float(loss.detach())
        wanted = [self.weights[name] for name in names]
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        return dict(zip(names, gradients, strict=True))


def estimate_constants(
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    chosen: list[Ints],
    rho_c: float = Constants.rho_c,
) -> Constants:
    """Estimate the constants of a plan from two half batches of some devices.

    Takes two passes per device. Δ_1 is 2 F(w_1)/ρ_c, an upper bound under strong convexity.

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
    rho_c : float
        Strong convexity; it is not estimated.
    """
    # A copy: some modules, as those of spectral_norm, keep results of a pass and cannot be copied after it.
    gradients, sums = _Gradients(deepcopy(model), samples), _Sums(len(layers))
    differences, sizes = [], []
    for number, rows in enumerate(chosen):
        half = rows.size // 2
        with seeded(number, samples.device):
            one, other = (gradients.of(part, layers) for part in np.split(rows[: 2 * half], 2))
        added = [sums.add(l, {n: (one[n], other[n]) for n in layer.parameters}, half) for l, layer in enumerate(layers)]
        differences.append(half * sum(difference for difference, _ in added))
        sizes.append([size for _, size in added])
    loss = gradients.loss / (2 * len(chosen))
    constants = Constants.from_pairs(differences, sizes, samples=1)
    return replace(constants, spread=sums.spread(layers), Delta1=2.0 * loss / rho_c)


def look_at(model: nn.Module, layers: tuple[Layer, ...], samples: Samples, work: RoundWork) -> GradientStats:
    """Return gradient statistics from the devices of a round, with the layers and samples that they have.

    A real device would get them without further work, by splitting its batch in two.
    """
    gradients, sums = _Gradients(model, samples), _Sums(len(layers))
    starts, z, L = work.starts, work.progress.z, len(layers)
    # Batch norm has no statistics of a single sample.
    able = np.flatnonzero((z > 0) & (work.sizes >= (2 if is_per_sample(model) else 4)))
    for u in able[np.argsort(-z[able], kind="stable")][:_OBSERVED]:
        half = int(work.sizes[u]) // 2
        rows = work.rows[0][starts[u] : starts[u] + 2 * half]
        done = layers[L - min(L, int(z[u])) :]
        with seeded(None if work.mask_seeds is None else int(work.mask_seeds[u]), samples.device):
            one, other = (gradients.of(part, done) for part in np.split(rows, 2))
        for l, layer in enumerate(done, start=L - len(done)):
            sums.add(l, {n: (one[n], other[n]) for n in layer.parameters}, half)
    return sums.spread(layers).rounded()
