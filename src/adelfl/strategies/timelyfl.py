"""TimelyFL: a round lasts as long as its k-th fastest device needs, and every device does the work that fits.

Zhang et al., "TimelyFL: Heterogeneity-aware asynchronous federated learning with adaptive partial training", CVPR
workshops 2023.

    t_u = E L S/P_u + B_u,     T = k-th smallest t_u,     E_u = max(1, ⌊(T − B_u)/(L S/P_u)⌋)
    w^l ← w^l + Σ_{u delivered l} |D_u| (w_u^l − w^l) / Σ_{u delivered l} |D_u|

Fast devices do more steps; slow ones deliver the layers next to the output that they finish by T.
"""

from __future__ import annotations

import math

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.base import at_least_one
from adelfl.strategies.merge import layerwise
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, Weigh, fixed_batch


class TimelyFL(RoundStrategy):
    """Steps or layers that fit into the time of the k-th fastest device.

    ``share`` is k over the number of devices in a round, and a fast device does at most ``most`` times E steps.
    """

    name = "timelyfl"
    self_paced = True

    def __init__(self, problem: Problem, *, share: float = 0.5, most: int = 10, weigh: Weigh = "data") -> None:
        super().__init__(problem, weigh=weigh)
        if not 0 < share <= 1:
            raise ConfigError(f"strategy option share must be above 0 and at most 1, not {share!r}")
        self.share, self.most = float(share), at_least_one("most", most)

    @property
    def most_steps(self) -> int:
        """E times ``most``."""
        return self.problem.local_iterations * self.most

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for all devices, and the steps expected to fit into the time of the k-th fastest."""
        s = self.problem
        P, B = self.believed(devices)
        batch = fixed_batch(s, devices)
        step = s.layers * (batch + s.overhead[devices]) / P
        T = float(np.sort(s.local_iterations * step + B)[math.ceil(self.share * devices.size) - 1])
        # The factor 1 + 10⁻⁹ prevents that the k-th device loses a step by rounding.
        steps = np.clip((T - B) / step * (1 + 1e-9), 1, self.most_steps).astype(np.int64)
        return Orders(T * (1 + 1e-9), np.where(B < T, batch, 0), steps=steps)

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = |D_u| 1[delivered l] / Σ_w |D_w| 1[delivered l]."""
        return layerwise(progress, "none", "contributors")
