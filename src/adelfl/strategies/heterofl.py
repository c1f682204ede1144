"""HeteroFL: slow devices train narrower submodels.

Diao, Ding, Tarokh, "HeteroFL: Computation and communication efficient federated learning for heterogeneous clients",
ICLR 2021.

    width r ∈ {1, 1/2, 1/4, 1/8, 1/16}, a layer costs r² as much; device u takes the widest it is expected to finish
    each coordinate of w is averaged over the devices that hold it and delivered
"""

from __future__ import annotations

import numpy as np

from adelfl.strategies.base import Floats, Ints, Orders, Progress, Strategy, fixed_batch

WIDTHS = np.array([1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16])


class HeteroFL(Strategy):
    """Width-scaled submodels, T_max / R, one batch size; a submodel counts only when it is finished."""

    name = "heterofl"

    def orders(self, t: int, devices: Ints) -> Orders:
        """The widest submodel whose E·L layers are expected to take no longer than T − B_u."""
        s = self.setting
        T = s.uniform_deadline
        batch = fixed_batch(s, devices, T)
        full = s.local_iterations * s.layers * s.batch / s.compute[devices]
        fits = full[:, None] * WIDTHS**2 <= (T - s.upload[devices])[:, None]
        # Where even the narrowest is expected to be late, it is what the device tries.
        widest = np.where(fits.any(axis=1), fits.argmax(axis=1), WIDTHS.size - 1)
        return Orders(T, batch, width=WIDTHS[widest])

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = 1[finished]: with widths, the merge divides each coordinate by how many hold it."""
        return np.repeat(progress.finished[:, None].astype(np.float64), progress.layers, axis=1)
