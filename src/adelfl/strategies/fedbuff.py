"""FedBuff: asynchronous training with a buffer.

Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.

    w ← w + (1/K) Σ_{u in the buffer} s(τ_u) (w_u − w_start),     s(τ) = 1/√(1 + τ)

Devices work all the time: each starts again from the newest weights as soon as it has delivered. The server merges when
the buffer holds K updates. τ is the number of merges since a device started.
"""

from __future__ import annotations

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.actions import Actions, Arrivals, Event, Ints, Joined, Merge, Started, Tasks, View
from adelfl.strategies.base import Strategy


class FedBuff(Strategy):
    """Merge every K updates, older ones with less weight.

    Parameters
    ----------
    problem : Problem
    buffer : int
        K.
    """

    name = "fedbuff"

    def __init__(self, problem: Problem, *, buffer: int = 10) -> None:
        super().__init__(problem)
        if not isinstance(buffer, int) or isinstance(buffer, bool) or buffer < 1:
            raise ConfigError(f"strategy option buffer must be a whole number of at least 1, not {buffer!r}")
        self.buffer = min(buffer, problem.cohort or problem.devices)
        self._waiting: list[Arrivals] = []

    def react(self, view: View, event: Event) -> Actions:
        """Put what arrives into the buffer, and let its device start again."""
        if isinstance(event, Started | Joined):
            devices = event.devices if isinstance(event, Joined) else view.cohort(0, self.problem.cohort)
            return Actions(dispatch=(self._tasks(view, devices),) if devices.size else ())
        if not isinstance(event, Arrivals):
            return Actions()
        if event.z.any():
            self._waiting.append(event)
        again = (self._tasks(view, event.tasks.devices),)
        if len(self._waiting) < self.buffer:
            return Actions(dispatch=again)
        full, self._waiting = tuple(self._waiting), []
        weights = [(1.0 + view.version - a.version) ** -0.5 / self.buffer for a in full]
        return Actions(Merge(full, tuple(np.full((1, self.problem.layers), s) for s in weights)), again)

    def _tasks(self, view: View, devices: Ints) -> Tasks:
        s = self.problem
        batch = s.within_data(np.full(devices.size, s.batch), devices)
        rate = float(s.eta[min(view.version, s.rounds - 1)])
        return Tasks(devices, batch, s.local_iterations, rate, together=False)
