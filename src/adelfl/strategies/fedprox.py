"""FedProx: devices do as many steps as they can, with a proximal term that keeps them close to the global model.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020.

    each step:  g + μ (w_u − w),     w ← w + Σ_u |D_u| (w_u − w) / Σ_u |D_u|      over devices with at least one step

The first step starts at w, where the proximal gradient is zero: with E = 1 this is ``drop``. The layers that
a device finished in its last, unfinished step count too.
"""

from __future__ import annotations

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.base import not_negative
from adelfl.strategies.merge import average_of
from adelfl.strategies.rounds import Floats, Ints, Orders, Progress, RoundStrategy, Weigh, fixed_batch


class FedProx(RoundStrategy):
    """Partial work of stragglers, with a proximal term.

    ``proximal`` is μ. A round lasts ``deadline`` seconds, T_max / R by default; infinite waits for all devices.
    """

    name = "fedprox"

    def __init__(
        self, problem: Problem, *, proximal: float = 0.1, deadline: float | None = None, weigh: Weigh = "data"
    ) -> None:
        super().__init__(problem, weigh=weigh)
        if deadline is not None and not deadline > 0:
            raise ConfigError(f"strategy option deadline must be a positive number of seconds, not {deadline!r}")
        self.proximal = not_negative("proximal", proximal)
        self.given_deadlines = deadline is not None
        self.deadline = problem.uniform_deadline if deadline is None else float(deadline)

    def orders(self, t: int, devices: Ints) -> Orders:
        """Return E steps of batch size S, of which devices do as many as fit into the deadline."""
        batch = fixed_batch(self.problem, devices, self.deadline)
        return Orders(self.deadline, batch, proximal=self.proximal)

    def weights(self, t: int, progress: Progress) -> Floats:
        """A[u,l] = |D_u| 1[one step or more] / Σ_w |D_w| 1[one step or more]."""
        return average_of(progress.z >= progress.layers, progress)
