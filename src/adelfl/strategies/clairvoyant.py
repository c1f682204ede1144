"""An upper reference for the given speeds: every layer time is known before the round begins.

S_u = the largest batch that device u finishes by T_max / R;     w^l ← w^l − η Σ_u A[u,l] g_u^l
"""

from __future__ import annotations

import numpy as np

from adelfl.strategies.merge import ByPrecision
from adelfl.strategies.rounds import Ints, Orders

_MOST = 1_000_000  # batch size if it is not known how many samples a device holds


class Clairvoyant(ByPrecision):
    """The largest batches that fit, merged by precision; no real method knows layer times beforehand.

    In contrast to the oracle, devices process no more samples than their time permits. A plan can be judged by the
    share of the gap between SALF and the clairvoyant that it closes.
    """

    name = "clairvoyant"
    server_step = "average"  # as adel, whose gap to it is reported
    clairvoyant = True
    simulated_only = "it knows every layer time beforehand"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return all samples of each device; the world of this method reduces them to those that fit into T_max / R."""
        T = self.problem.uniform_deadline
        most = np.where(self.problem.upload[devices] < T, _MOST, 0)
        return Orders(T, self.problem.within_data(most, devices))
