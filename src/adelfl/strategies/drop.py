"""Drop stragglers at a fixed deadline.

Chen et al., "Revisiting distributed synchronous SGD", 2016.

    w ← w − η (1/K) Σ_{u finished} g_u          K devices finished all layers by T_max / R
"""

from __future__ import annotations

from adelfl.strategies.merge import finished_only
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, fixed_batch


class Drop(RoundStrategy):
    """Average the devices that finished; the work of the others is lost."""

    name = "drop"

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, and the deadline T_max / R."""
        T = self.problem.uniform_deadline
        return Orders(T, fixed_batch(self.problem, devices, T))

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = |D_u| 1[finished] / Σ_w |D_w| 1[finished]."""
        return finished_only(progress)
