"""Wait for all devices: synchronous FedAvg.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017.

    w ← w − η Σ_u |D_u| g_u / Σ_u |D_u|      over the devices that take part; a round lasts as long as the slowest
"""

from __future__ import annotations

import math

from adelfl.strategies.merge import finished_only
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, fixed_batch


class Wait(RoundStrategy):
    """FedAvg; a round that would end after T_max is not merged."""

    name = "wait"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, and no deadline."""
        return Orders(math.inf, fixed_batch(self.problem, devices))

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = |D_u| 1[finished] / Σ_w |D_w| 1[finished]; all devices finish unless some drop out."""
        return finished_only(progress)
