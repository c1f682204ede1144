"""Wait for all devices: synchronous FedAvg.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

    w ← w − η Σ_u |D_u| g_u / Σ_u |D_u|      over the devices that take part; a round lasts as long as the slowest
"""

from __future__ import annotations

import math

import numpy as np

from adelfl.strategies.merge import finished_only
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy


class Wait(RoundStrategy):
    """FedAvg; a round that would end after T_max does not happen."""

    name = "wait"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, and no deadline."""
        return Orders(math.inf, self.problem.within_data(np.full(devices.size, self.problem.batch), devices))

    def weights(self, t: int, progress: Progress) -> Floats:
        """A = |D_u| / Σ |D_w| for the devices that finished: all of them unless some dropped out."""
        return finished_only(progress)
