"""Drop stragglers at a fixed deadline.

Chen et al., "Revisiting distributed synchronous SGD", 2016.

    w ← w − η (1/K) Σ_{u finished} g_u          K devices finished all layers by T_max / R
"""

from __future__ import annotations

from adelfl.strategies.rounds import Ints, Orders, fixed_batch
from adelfl.strategies.wait import Wait


class Drop(Wait):
    """Average the devices that finished; the work of the others is lost."""

    name = "drop"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, and the deadline T_max / R."""
        T = self.problem.uniform_deadline
        return Orders(T, fixed_batch(self.problem, devices, T))
