"""The ceiling that the devices' speeds allow: every layer time is known before the round begins.

S_u = the largest batch that device u finishes by T_max / R;     w^l ← w^l − η Σ_u A[u,l] g_u^l
"""

from __future__ import annotations

import numpy as np

from adelfl.strategies.merge import ByPrecision
from adelfl.strategies.rounds import Ints, Orders

_MOST = 1_000_000  # samples of a batch, where the device's own number is not known


class Clairvoyant(ByPrecision):
    """Batches that just fit, merged by precision. No real method knows layer times beforehand.

    In contrast to the oracle it is not given more samples than time permits: the share of the gap between SALF and the
    clairvoyant that a method closes is what its plan is worth.
    """

    name = "clairvoyant"
    server_step = "average"  # as adel, whose gap to it is reported
    clairvoyant = True
    simulated_only = "it knows every layer time beforehand"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return all samples of each device, which its world cuts to what fits into T_max / R."""
        T = self.problem.uniform_deadline
        most = np.where(self.problem.upload[devices] < T, _MOST, 0)
        return Orders(T, self.problem.within_data(most, devices))
