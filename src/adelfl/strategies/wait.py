"""Wait for everybody: synchronous FedAvg.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

    w ← w − η (1/K) Σ_u g_u          over the K devices that are there; a round lasts as long as the slowest of them
"""

from __future__ import annotations

import math

import numpy as np

from adelfl.strategies.base import Floats, Ints, Orders, Progress, Strategy
from adelfl.strategies.merge import finished_only


class Wait(Strategy):
    """FedAvg; a round that would end after T_max does not happen."""

    name = "wait"

    def orders(self, t: int, devices: Ints) -> Orders:
        """S for everybody, no deadline."""
        return Orders(math.inf, self.setting.within_data(np.full(devices.size, self.setting.batch), devices))

    def weights(self, t: int, progress: Progress) -> Floats:
        """A = 1/K for those who finished, which is everybody unless some dropped out."""
        return finished_only(progress)
