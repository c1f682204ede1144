"""FedNova: updates are divided by their number of steps, so that fast devices do not dominate the model.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020.

    w^l ← w^l + τ^l Σ_u p_u^l (w_u^l − w^l)/‖a_u^l‖,     τ^l = Σ_u p_u^l ‖a_u^l‖,     ‖a‖ = steps of plain SGD

p_u^l are the shares of the devices that delivered layer l. Steps are counted for each layer, because a device that is
interrupted has done one step more in its last layers.
"""

from __future__ import annotations

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.fedprox import FedProx
from adelfl.strategies.merge import normalised, weighed
from adelfl.strategies.rounds import Floats, Progress, Weigh


class FedNova(FedProx):
    """Partial work of stragglers, normalised by completed steps.

    ``momentum`` is ρ of the devices' own steps (``training.momentum``), with which k steps weigh
    ‖a‖ = (k − ρ (1 − ρ^k)/(1 − ρ))/(1 − ρ). ``deadline`` is as for FedProx.
    """

    name = "fednova"

    def __init__(
        self, problem: Problem, *, momentum: float = 0.0, deadline: float | None = None, weigh: Weigh = "data"
    ) -> None:
        super().__init__(problem, proximal=0.0, deadline=deadline, weigh=weigh)
        if not 0 <= momentum < 1:
            raise ConfigError(f"strategy option momentum must be at least 0 and below 1, not {momentum!r}")
        self.momentum = float(momentum)

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = p_u^l τ^l / ‖a_u^l‖."""
        k, rho = progress.steps_done.astype(np.float64), self.momentum
        norm = (k - rho * (1.0 - rho**k) / (1.0 - rho)) / (1.0 - rho)
        p = normalised(weighed(progress.delivered, progress))
        effective = (p * norm).sum(axis=0)
        A: Floats = p * effective / np.where(norm > 0, norm, 1.0)
        return A
