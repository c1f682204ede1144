"""How long a layer and an upload take: exponential and constant as in the paper, and an interface for others."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adelfl.theory import participation

Floats = NDArray[np.float64]


class LatencyModel(Protocol):
    """Draws durations. The number and order of draws must not depend on the means, so that luck can be shared."""

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int) -> Floats:
        """Durations of each device's next backprop steps, one layer each.

        Parameters
        ----------
        rng : numpy.random.Generator
            The round's own generator.
        mean : ndarray, shape (U,)
            S_u / P_u, seconds per layer.
        steps : int
            Layers to draw for each device: E·L.

        Returns
        -------
        ndarray, shape (U, steps)
        """
        ...

    def upload_times(self, rng: np.random.Generator, upload: Floats) -> Floats:
        """Seconds of each device's upload, shape (U,)."""
        ...

    def delivery(self, mean: Floats, time: Floats, layers: int) -> Floats:
        """P(device u finishes layer l within ``time``), shape (U, L), l = 1..L: eq. (5) corrects with it.

        A model without a closed form may estimate it by simulation.
        """
        ...


class Exponential:
    """The paper's model (B1, B2): exponential layer times of mean S_u/P_u, uploads that take exactly B_u."""

    def layer_times(self, rng: np.random.Generator, mean: Floats, steps: int) -> Floats:
        """Independent exponential durations."""
        return mean[:, None] * rng.standard_exponential((mean.size, steps))

    def upload_times(self, rng: np.random.Generator, upload: Floats) -> Floats:
        """B_u, whatever the luck."""
        return upload

    def delivery(self, mean: Floats, time: Floats, layers: int) -> Floats:
        """1 − Q(L+1−l, time/mean)."""
        return participation.delivery(layers, time / mean)
