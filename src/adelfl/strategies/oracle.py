"""An upper reference for a batch size: every device delivers everything in time.

w ← w − η Σ_u |D_u| g_u / Σ_u |D_u|          a round lasts T_max / R
"""

from __future__ import annotations

import numpy as np

from adelfl.strategies.merge import average_of
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, fixed_batch


class Oracle(RoundStrategy):
    """FedAvg on devices that are never late. Methods with larger batches can exceed it."""

    name = "oracle"
    unhurried = True
    simulated_only = "its devices always finish in time"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, finished by T_max / R in the world of this method."""
        return Orders(self.problem.uniform_deadline, fixed_batch(self.problem, devices))

    def weights(self, t: int, progress: Progress) -> Floats:
        """A = |D_u| / Σ |D_w| over all devices."""
        return average_of(np.ones(progress.z.size, dtype=np.bool_), progress)
