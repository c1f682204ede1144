"""Estimates of gradient statistics from half batches: σ² and G² of the bound, and the spread of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.array_types import Floats, Ints
from adelfl.planner import Constants
from adelfl.theory.gradient_stats import TINY, GradientStats
from adelfl.training.layers import Layer, is_per_sample
from adelfl.training.masks import seeded
from adelfl.training.work import RoundWork, Samples, Stateless

_OBSERVED = 16  # devices of a round that are observed


class _Halves:
    """Gradients of two half batches on each of several devices, accumulated per layer."""

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], samples: Samples) -> None:
        self.call, self.layers, self.samples = Stateless(model), layers, samples
        self.weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
        self.buffers = {name: b.clone() for name, b in model.named_buffers()}
        self.loss = 0.0
        self.devices, self.one_sample, self.noise, self.squares = np.zeros((4, len(layers)))
        self.total: dict[str, Tensor] = {}

    def add(self, rows: Ints, mask_seed: int | None, depth: int) -> list[tuple[float, float]]:
        """Add a device that reached ``depth`` layers; return ‖g − g′‖² and ‖(g + g′)/2‖² of each of these layers."""
        half, lowest = rows.size // 2, len(self.layers) - depth
        with seeded(mask_seed, self.samples.device):
            one, other = (self._gradients(part, self.layers[lowest:]) for part in np.split(rows[: 2 * half], 2))
        added = []
        for l in range(lowest, len(self.layers)):
            names = self.layers[l].parameters
            difference = float(torch.cat([(one[name] - other[name]).flatten() for name in names]).square().sum())
            square = 0.0
            for name in names:
                middle = (one[name] + other[name]) / 2.0
                square += float(middle.square().sum())
                self.total[name] = self.total[name] + middle if name in self.total else middle
            self.devices[l] += 1
            self.one_sample[l] += half / 2.0 * difference
            self.noise[l] += 1.0 / (2.0 * half)
            self.squares[l] += square
            added.append((difference, square))
        return added

    def _gradients(self, rows: Ints, layers: tuple[Layer, ...]) -> dict[str, Tensor]:
        wanted = {name: self.weights[name] for layer in layers for name in layer.parameters}
        x, y = self.samples.take(rows)
        loss = functional.cross_entropy(self.call(self.weights | self.buffers, x), y)
        self.loss += float(loss.detach())
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(wanted, gradients, strict=True))

    def spread(self) -> GradientStats:
        """Return the statistics of each layer."""
        norms = [
            sum(float(self.total[n].square().sum()) for n in layer.parameters if n in self.total)
            for layer in self.layers
        ]
        # Two gradients of n samples each have E‖g − g′‖² = 2σ²/n, and their mean has variance σ²/(2n).
        sigma2 = np.maximum(self.one_sample / np.maximum(self.devices, 1.0), TINY)
        return GradientStats.from_sums(self.devices, sigma2, self.noise, self.squares, norms)


def estimate_constants(
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    chosen: list[Ints],
    rho_c: float = Constants.rho_c,
) -> Constants:
    """Estimate the constants of a plan from two half batches on several devices, at the initial weights.

    ``chosen`` contains an even number of samples for each of these devices. Δ_1 is 2 F(w_1)/ρ_c, an upper bound under
    strong convexity; ρ_c is not estimated.
    """
    # On a copy: after a pass, some modules, such as those of spectral_norm, cannot be copied any more.
    halves = _Halves(deepcopy(model), layers, samples)
    differences, squares = [], []
    for number, rows in enumerate(chosen):
        added = halves.add(rows, number, len(layers))
        differences.append(rows.size // 2 * sum(difference for difference, _ in added))
        squares.append([square for _, square in added])
    sigma2 = max(float(np.mean(differences)) / 2.0, TINY)
    G2 = tuple(np.maximum(np.mean(squares, axis=0), TINY).tolist())
    return Constants(sigma2, G2, spread=halves.spread(), Delta1=halves.loss / len(chosen) / rho_c)


def look_at(model: nn.Module, layers: tuple[Layer, ...], samples: Samples, work: RoundWork) -> GradientStats:
    """Return gradient statistics from the devices of a round, with their layers and samples.

    A real device would compute them without further work, by splitting its batch in two.
    """
    halves = _Halves(model, layers, samples)
    starts, z = work.starts, work.progress.z
    # Batch norm needs two samples in each half.
    usable = np.flatnonzero((z > 0) & (work.sizes >= (2 if is_per_sample(model) else 4)))
    for u in usable[np.argsort(-z[usable], kind="stable")][:_OBSERVED]:
        mask_seed = None if work.mask_seeds is None else int(work.mask_seeds[u])
        halves.add(work.rows[0][starts[u] : starts[u + 1]], mask_seed, min(len(layers), int(z[u])))
    return halves.spread().rounded()


@torch.no_grad()
def losses_of(model: nn.Module, samples: Samples, work: RoundWork, start: Mapping[str, Tensor] | None = None) -> Floats:
    """Return √(mean square loss) of each device over its first batch, before it trains; NaN where z is 0.

    ``start`` replaces the model's weights.
    """
    call, starts = Stateless(model), work.starts
    weights = {name: p.detach() for name, p in model.named_parameters()} | dict(start or {})
    losses = np.full(work.sizes.size, np.nan)
    for u in np.flatnonzero(work.progress.z > 0).tolist():
        x, y = samples.take(work.rows[0][starts[u] : starts[u + 1]])
        with seeded(None if work.mask_seeds is None else int(work.mask_seeds[u]), samples.device):
            output = call(weights | {name: b.clone() for name, b in model.named_buffers()}, x)
        losses[u] = float(functional.cross_entropy(output, y, reduction="none").square().mean().sqrt())
    return losses
