"""SCAFFOLD: control variates remove the drift of local steps.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020, option II.

    each step:  g − c_u + c,     c_u⁺ = c_u − c + (w − w_u)/(E η),     c ← c + Σ_u p_u (c_u⁺ − c_u)
    w ← w + Σ_u |D_u| (w_u − w) / Σ_u |D_u|          over the devices of the round, which waits for the slowest

p_u is device u's share of all samples. A server that knows w, E and η computes c_u⁺ from the update itself, so uploads
are no larger than those of FedAvg.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adelfl.strategies.rounds import Ints, Orders
from adelfl.strategies.wait import Wait


class Scaffold(Wait):
    """FedAvg with control variates, which :class:`adelfl.runtime.controls.Controls` holds."""

    name = "scaffold"
    control_variates = True
    simulated_only = "nodes keep no control variates from one round to the next"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return FedAvg's tasks; a change of c_u moves c by the device's share of the data."""
        s = self.problem
        amounts = np.ones(s.devices) if self.weigh == "equally" or s.amounts is None else s.amounts
        return replace(super().orders(t, devices), controls=amounts[devices] / amounts.sum())
