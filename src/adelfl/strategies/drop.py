"""Drop stragglers at a fixed deadline.

Chen et al., "Revisiting distributed synchronous SGD", 2016.

    w ← w − η (1/K) Σ_{u finished} g_u          K devices finished all layers by T_max / R
"""

from __future__ import annotations

from adelfl.strategies.base import Floats, Ints, Orders, Progress, Strategy, fixed_batch
from adelfl.strategies.merge import finished_only


class Drop(Strategy):
    """Average those who finished; the others' work is lost."""

    name = "drop"

    def orders(self, t: int, devices: Ints) -> Orders:
        """S for everybody, T_max / R."""
        T = self.setting.uniform_deadline
        return Orders(T, fixed_batch(self.setting, devices, T))

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = 1[finished]/K; nothing if nobody finished."""
        return finished_only(progress)
