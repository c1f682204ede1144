"""What the gradients are like: σ² and G² of the bound, and the spread of each layer, from a few half batches."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adelfl.planner import Constants
from adelfl.theory.gradient_stats import GradientStats, curvature_of
from adelfl.training.layers import Layer, is_per_sample
from adelfl.training.masks import seeded
from adelfl.training.stateless import Stateless
from adelfl.training.work import Ints, RoundWork, Samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOOKED_AT = 16  # devices of a round
_PAIRED = 6  # devices whose noise is compared, two by two


@dataclass(eq=False)
class _Sums:
    """Over devices, of each layer: what :meth:`GradientStats.from_pairs` needs."""

    layers: int
    devices: NDArray[np.float64] = field(init=False)
    one_sample: NDArray[np.float64] = field(init=False)
    noise: NDArray[np.float64] = field(init=False)
    squares: NDArray[np.float64] = field(init=False)
    total: dict[str, Tensor] = field(default_factory=dict)
    luck: list[list[Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for key in ("devices", "one_sample", "noise", "squares"):
            setattr(self, key, np.zeros(self.layers))
        self.luck = [[] for _ in range(self.layers)]

    def add(self, l: int, pairs: dict[str, tuple[Tensor, Tensor]], half: int) -> tuple[float, float]:
        """One device's two gradients of a layer, of ``half`` samples each; ‖g − g′‖² and ‖(g + g′)/2‖²."""
        difference = square = 0.0
        for name, (one, other) in pairs.items():
            middle = (one + other) / 2.0
            difference += float((one - other).square().sum())
            square += float(middle.square().sum())
            self.total[name] = self.total[name] + middle if name in self.total else middle
        if len(self.luck[l]) < _PAIRED:
            apart = torch.cat([(one - other).flatten() for one, other in pairs.values()])
            self.luck[l].append(apart * (half / 2.0) ** 0.5)  # of one sample
        self.devices[l] += 1
        self.one_sample[l] += half / 2.0 * difference
        self.noise[l] += 1.0 / (2.0 * half)
        self.squares[l] += square
        return difference, square

    def spread(self, layers: tuple[Layer, ...]) -> GradientStats:
        norms = [
            sum(float(self.total[n].square().sum()) for n in layer.parameters if n in self.total) for layer in layers
        ]
        found = GradientStats.from_pairs(self.devices, self.one_sample, self.noise, self.squares, norms)
        return replace(found, curvature=np.array([self._curvature(l) for l in range(self.layers)]))

    def _curvature(self, l: int) -> float:
        """tr(Σ²)/tr(Σ) of the covariance Σ of a layer's noise, from the noise of some devices, two by two."""
        if not self.luck[l]:
            return math.nan
        noise = torch.stack(self.luck[l])
        return curvature_of((noise @ noise.T).cpu().numpy())


class _Gradients:
    """Gradients of a model at given weights, which stay as they are."""

    def __init__(self, model: nn.Module, layers: tuple[Layer, ...], samples: Samples) -> None:
        self.call, self.samples = Stateless(model), samples
        self.weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
        self.buffers = {name: b.clone() for name, b in model.named_buffers()}
        self.names = [name for layer in layers for name in layer.parameters]
        self.loss = 0.0

    def of(
        self, rows: Ints, names: list[str] | None = None, shift: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Of the mean loss of some rows, for some parameters, at the weights or a little beside them."""
        names = self.names if names is None else names
        weights = self.weights
        if shift is not None:
            weights = {n: (w + shift[n] if n in shift else w).detach().requires_grad_() for n, w in weights.items()}
        x, y = self.samples.take(rows)
        loss = functional.cross_entropy(self.call(weights | self.buffers, x), y)
        self.loss += float(loss.detach())
        wanted = [weights[n] for n in names]
        found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        return dict(zip(names, found, strict=True))


def estimate_constants(
    model: nn.Module,
    layers: tuple[Layer, ...],
    samples: Samples,
    chosen: list[Ints],
    rho_c: float = Constants.rho_c,
) -> Constants:
    """Estimate what a plan needs to know of the gradients, from two half batches of some devices.

    Costs two passes per device, whatever the model. Δ_1 is 2 F(w_1)/ρ_c, which strong convexity allows it to be.

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
        Strong convexity, which is not estimated.
    """
    # Some modules, as those of spectral_norm, keep what a pass made of their weights, and can then not be copied.
    gradients, sums = _Gradients(deepcopy(model), layers, samples), _Sums(len(layers))
    differences, sizes = [], []
    for number, rows in enumerate(chosen):
        half = rows.size // 2
        with seeded(number, samples.device):
            one, other = (gradients.of(part) for part in np.split(rows[: 2 * half], 2))
        found = [sums.add(l, {n: (one[n], other[n]) for n in layer.parameters}, half) for l, layer in enumerate(layers)]
        differences.append(half * sum(difference for difference, _ in found))
        sizes.append([size for _, size in found])
    loss = gradients.loss / (2 * len(chosen))
    constants = Constants.from_pairs(differences, sizes, samples=1)
    return replace(constants, spread=sums.spread(layers), Delta1=2.0 * loss / rho_c)


def look_at(model: nn.Module, layers: tuple[Layer, ...], samples: Samples, work: RoundWork) -> GradientStats:
    """The spread of the gradients as the devices of a round saw it: of those layers, and those samples, that they had.

    A device that splits its batch in two and tells how far the halves' gradients differ does no more work for it.
    """
    gradients, sums = _Gradients(model, layers, samples), _Sums(len(layers))
    starts, z, L = work.starts, work.progress.z, len(layers)
    # Batch norm has no statistics of a single sample.
    able = np.flatnonzero((z > 0) & (work.sizes >= (2 if is_per_sample(model) else 4)))
    for u in able[np.argsort(-z[able], kind="stable")][:_LOOKED_AT]:
        half = int(work.sizes[u]) // 2
        rows = work.rows[0][starts[u] : starts[u] + 2 * half]
        done = layers[L - min(L, int(z[u])) :]
        names = [n for layer in done for n in layer.parameters]
        with seeded(None if work.mask_seeds is None else int(work.mask_seeds[u]), samples.device):
            one, other = (gradients.of(part, names) for part in np.split(rows, 2))
        for l, layer in enumerate(done, start=L - len(done)):
            sums.add(l, {n: (one[n], other[n]) for n in layer.parameters}, half)
    return sums.spread(layers).rounded()
