"""The first round on devices that are not known beforehand: it trains and measures at once.

Every device does the work of the baselines. Its reply shows how fast it is, how long everything else takes, and how
noisy its gradients are. If too few devices finish a layer, the round is repeated with less work and more time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adelfl.strategies.actions import Actions, Arrivals, Ints, Merge, Tasks, View
from adelfl.strategies.merge import layerwise
from adelfl.strategies.rounds import Progress

POLL = 0.25
"""Seconds between two checks for idle devices."""
_STOP = 0.5  # share of the round after which devices stop computing


@dataclass(eq=False)
class Opening:
    """A running opening round."""

    layers: int
    steps: int
    rate: float
    """Learning rate."""
    batch: int
    share: float
    """Share of the budget that the round may take."""
    end: float = np.nan
    """Time at which the round closes at the latest."""
    _assigned: set[int] = field(default_factory=set)
    _arrivals: list[Arrivals] = field(default_factory=list)

    @property
    def useful(self) -> tuple[Arrivals, ...]:
        """Arrivals with at least one layer."""
        return tuple(a for a in self._arrivals if a.z.any())

    @property
    def complete(self) -> bool:
        """Whether every device with a task has delivered something."""
        return len(self.useful) >= len(self._assigned)

    def begin(self, view: View, devices: Ints) -> Actions:
        """Assign the work of the baselines, until a share of the budget has passed."""
        self.end = max(min(view.now + self.share * view.budget, view.budget - POLL), view.now + POLL)
        return self.ask(view, devices)

    def ask(self, view: View, devices: Ints) -> Actions:
        """Assign work to further devices: at least two steps, because the noise is estimated from two gradients."""
        self._assigned |= set(devices.tolist())
        if devices.size == 0:
            return Actions(wake_at=self.end)
        stop = np.full(devices.size, _STOP * self.share * view.budget)
        sizes = np.full(devices.size, self.batch)
        tasks = Tasks(devices, sizes, max(2, self.steps), self.rate, together=False, stop=stop)
        return Actions(dispatch=(tasks,), wake_at=self.end)

    def again(self, view: View, idle: Ints) -> Actions:
        """Assign less work, with more time, to idle devices that have not delivered anything."""
        answered = {int(a.tasks.devices[0]) for a in self.useful}
        idle = idle[~np.isin(idle, list(answered))]
        if idle.size == 0 or view.left <= POLL:
            return Actions(wake_at=min(view.budget, view.now + POLL))
        self.batch, self.share = max(1, self.batch // 4), min(1.0, 2 * self.share)
        self._assigned, self._arrivals = answered, list(self.useful)
        return self.begin(view, idle)

    def add(self, arrival: Arrivals, now: float) -> bool:
        """Add the reply of one device; return whether the round is over."""
        self._arrivals.append(arrival)
        return len(self._arrivals) >= len(self._assigned) or now >= self.end

    def merge(self, *, spread: bool) -> Merge:
        """Return the merge of what has arrived, each layer by its mean."""
        z = np.array([int(a.z[0]) for a in self.useful])
        A = layerwise(Progress(z, self.layers, self.useful[0].tasks.steps), "none", "contributors")
        return Merge(self.useful, tuple(A[:, None, :]), spread=spread)
