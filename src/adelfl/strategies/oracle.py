"""The ceiling at a batch size: everybody delivers everything in time.

w ← w − η (1/U) Σ_u g_u          a round lasts T_max / R
"""

from __future__ import annotations

import numpy as np

from adelfl.strategies.base import Floats, Ints, Orders, Progress, Strategy


class Oracle(Strategy):
    """FedAvg on devices that are never late. No real method can promise this; larger batches can pass it."""

    name = "oracle"

    def orders(self, t: int, devices: Ints) -> Orders:
        """S for everybody, done by T_max / R whatever it takes."""
        batch = self.setting.within_data(np.full(devices.size, self.setting.batch), devices)
        return Orders(self.setting.uniform_deadline, batch, guaranteed=True)

    def weights(self, t: int, progress: Progress) -> Floats:
        """A = 1/U."""
        return np.full((progress.z.size, progress.layers), 1.0 / progress.z.size)
