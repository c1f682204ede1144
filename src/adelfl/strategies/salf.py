"""SALF: use the layers that stragglers finished, at a fixed deadline and batch size.

Lang, Cohen, Shlezinger, "Stragglers-aware low-latency synchronous federated learning via layer-wise model updates",
IEEE Transactions on Communications 73(5), 2025.

    w^l ← w^l − η Σ_u A[u,l] g_u^l,     A[u,l] = 1[z_u ≥ L+1−l] / (|U_l| (1 − p_l)),     p_l = Π_u Q(L+1−l, λ_u)
"""

from __future__ import annotations

from adelfl.planner import Problem
from adelfl.strategies.base import check_choice
from adelfl.strategies.merge import AverageOver, Correction, layerwise
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, Weigh, fixed_batch


class Salf(RoundStrategy):
    """Layer-wise merge, T_max / R, one batch size.

    ``average_over="all"`` is the rule of SALF's released code: the mean over all U devices, one that did not reach a
    layer counting with the old weights. ``correction="none"`` leaves out 1/(1 − p).
    """

    name = "salf"

    def __init__(
        self,
        problem: Problem,
        *,
        average_over: AverageOver = "contributors",
        correction: Correction = "unbiased",
        weigh: Weigh = "data",
    ) -> None:
        super().__init__(problem, weigh=weigh)
        self.average_over = check_choice("average_over", average_over, AverageOver)
        self.correction = check_choice("correction", correction, Correction)

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, and the deadline T_max / R."""
        T = self.problem.uniform_deadline
        return Orders(T, fixed_batch(self.problem, devices, T))

    def weights(self, t: int, progress: Progress) -> Floats:
        """Eq. (5) with the exact p of the batch sizes in force."""
        return layerwise(progress, self.correction, self.average_over)
