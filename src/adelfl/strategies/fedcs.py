"""FedCS: select as many devices as are expected to deliver in time.

Nishio, Yonetani, "Client selection for federated learning with heterogeneous resources in mobile edge", ICC 2019.

    start with Θ = 0; take the device with the smallest  Θ_u = max(Θ, t_u) + B_u;  stop when it exceeds T_max / R

t_u = E L S/P_u is the expected time of computing. In the paper uploads share one channel, one after another: Θ is the
time at which the last of those chosen so far has sent. With uploads side by side, Θ_u = t_u + B_u, and all devices that
fit by themselves are chosen. The round closes when all of them have delivered, at the latest at T_max / R.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from adelfl.planner import Problem
from adelfl.strategies.base import check_choice
from adelfl.strategies.rounds import Bools, Floats, Ints, Orders, Weigh, fixed_batch
from adelfl.strategies.wait import Wait

Uploads = Literal["parallel", "in-turn"]


class FedCS(Wait):
    """Greedy choice among the devices of the cohort.

    ``uploads`` are parallel, as in the simulator, or in turn on one channel, as in the paper.
    """

    name = "fedcs"
    self_paced = True

    def __init__(self, problem: Problem, *, uploads: Uploads = "parallel", weigh: Weigh = "data") -> None:
        super().__init__(problem, weigh=weigh)
        self.uploads = check_choice("uploads", uploads, Uploads)

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return batch size S for the chosen devices; the others sit out."""
        s = self.problem
        P, B = self.believed(devices)
        batch = fixed_batch(s, devices)
        compute = s.local_iterations * s.layers * (batch + s.overhead[devices]) / P
        chosen = self.chosen(compute, B, s.uniform_deadline)
        return Orders(s.uniform_deadline, np.where(chosen, batch, 0), early=True)

    def chosen(self, compute: Floats, upload: Floats, T: float) -> Bools:
        """Return which devices are chosen: at least the fastest, even if it is expected to be late."""
        if self.uploads == "parallel":
            chosen = compute + upload <= T
        else:
            chosen, theta = np.zeros(compute.size, dtype=np.bool_), 0.0
            for _ in range(compute.size):
                ends = np.where(chosen, np.inf, np.maximum(theta, compute) + upload)
                if (theta := float(ends.min())) > T:
                    break
                chosen[int(ends.argmin())] = True
        if not chosen.any():
            chosen[int((compute + upload).argmin())] = True
        return chosen
