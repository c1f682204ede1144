"""Measured speed of this machine: the forward pass and each layer of the backward pass, at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from adelfl.array_types import Floats
from adelfl.clock import monotonic
from adelfl.errors import ConfigError
from adelfl.training.layers import Layer
from adelfl.training.truncated import Truncation


@dataclass(frozen=True, eq=False)
class Profile:
    """Measured times in seconds."""

    layers: tuple[str, ...]
    """Names, input side first."""
    batch_sizes: tuple[int, ...]
    forward: Floats
    """Loading the batch and the forward pass, shape (batch sizes, repeats)."""
    backward: Floats
    """Each layer of the backward pass, input side first, shape (batch sizes, repeats, L)."""

    @cached_property
    def _fit(self) -> tuple[float, float, bool]:
        """Start and slope of the line through the median times of a mean layer, and whether they grow with the batch.

        They grow if the slope is more than twice its standard error. Otherwise, all of the time at the largest batch is
        attributed to the samples.
        """
        sizes, steps = np.array(self.batch_sizes, dtype=np.float64), self.backward.mean(axis=2)
        medians = np.median(steps, axis=1)
        flat = 0.0, float(medians[-1] / sizes[-1])
        if sizes.size < 2:
            return *flat, True
        slope, start = np.polyfit(sizes, medians, 1)
        # The standard error of a median is 1.25 σ/√n, with σ estimated from the median absolute deviation.
        deviation = 1.4826 * np.median(np.abs(steps - medians[:, None]), axis=1)
        error = 1.2533 * deviation / np.sqrt(steps.shape[1])
        lever = (sizes - sizes.mean()) / ((sizes - sizes.mean()) ** 2).sum()
        grows = bool(slope > 0 and slope >= 2.0 * np.sqrt(((lever * error) ** 2).sum()))
        line = (float(start), float(slope)) if grows and start >= 0 else flat
        return *line, grows

    @property
    def line(self) -> tuple[float, float]:
        """Seconds per layer and step, and per sample and layer."""
        return self._fit[:2]

    @property
    def grows(self) -> bool:
        """Whether times grow with the batch size beyond their noise; true for a single size."""
        return self._fit[2]

    @property
    def compute(self) -> float:
        """P_u: layers of one sample per second."""
        return 1.0 / self.line[1]

    @property
    def overhead(self) -> float:
        """Seconds of a round that belong to B_u: the forward pass at the largest batch, and the start of each layer."""
        return float(np.median(self.forward[-1])) + len(self.layers) * self.line[0]

    @property
    def per_sample(self) -> Floats:
        """Seconds per sample of every layer in every step, which the paper assumes to be exponential."""
        seconds: Floats = (self.backward / np.array(self.batch_sizes, dtype=np.float64)[:, None, None]).ravel()
        return seconds

    @property
    def variation(self) -> float:
        """Standard deviation of a whole backward pass over its mean (1/√L in the paper), averaged over batch sizes."""
        whole = self.backward.sum(axis=2)
        return float(np.mean(whole.std(axis=1) / whole.mean(axis=1)))


def measure(
    model: nn.Module,
    layers: tuple[Layer, ...],
    loss: Callable[[int], Tensor],
    batch_sizes: Sequence[int],
    repeats: int,
    now: Callable[[], float] = monotonic,
) -> Profile:
    """Measure the times of training steps, without changing the model's weights and gradients.

    ``loss`` takes a batch size, loads a batch, and returns the mean loss. At each batch size, ``repeats`` steps are
    measured after a warm-up step. ``now`` returns seconds.
    """
    if repeats < 1 or not batch_sizes or min(batch_sizes) < 1:
        raise ConfigError("profiling needs at least one batch size and one repeat")
    sizes = sorted(set(batch_sizes))
    forward = np.empty((len(sizes), repeats))
    backward = np.empty((len(sizes), repeats, len(layers)))
    with Truncation(model, layers) as truncation:
        for i, size in enumerate(sizes):
            for r in range(-1, repeats):
                start = now()
                value = loss(size)
                moments: list[float] = []

                def tick(_: int, moments: list[float] = moments) -> bool:
                    moments.append(now())
                    return False

                truncation.backward(value, tick)
                if r >= 0:
                    forward[i, r] = moments[0] - start
                    backward[i, r] = np.diff(moments)[::-1]
    return Profile(tuple(layer.name for layer in layers), tuple(sizes), forward, backward)
