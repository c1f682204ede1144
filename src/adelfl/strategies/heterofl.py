"""HeteroFL: slow devices train narrower submodels.

Diao, Ding, Tarokh, "HeteroFL: Computation and communication efficient federated learning for heterogeneous clients",
ICLR 2021.

    width r ∈ {1, 1/2, 1/4, 1/8, 1/16}: layers and uploads take r² as long; device u takes the widest that it is
    expected to finish and send in time
    each coordinate of w is averaged over the devices that hold and delivered it
"""

from __future__ import annotations

import numpy as np

from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, fixed_batch

WIDTHS = np.array([1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16])


class HeteroFL(RoundStrategy):
    """Submodels of reduced width, T_max / R, one batch size; unfinished submodels are not used."""

    name = "heterofl"
    submodels = tuple(WIDTHS)
    simulated_only = "nodes train the whole model"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return the widest submodels whose E·L layers and upload are expected to take no longer than T."""
        s = self.problem
        T = s.uniform_deadline
        S = fixed_batch(s, devices)
        full = s.local_iterations * s.layers * (S + s.overhead[devices]) / s.compute[devices] + s.upload[devices]
        fits = full[:, None] * WIDTHS**2 <= T
        # A device that is expected to be late even with the narrowest submodel tries that one.
        width = WIDTHS[np.where(fits.any(axis=1), fits.argmax(axis=1), WIDTHS.size - 1)]
        return Orders(T, fixed_batch(s, devices, T, width), width=width)

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = 1[finished]: with widths, the merge averages each coordinate over the devices that hold it."""
        return np.repeat(progress.finished[:, None].astype(np.float64), progress.layers, axis=1)
