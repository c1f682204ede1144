"""FedCompass: steps are assigned to devices such that groups of them arrive together.

Li et al., "FedCompass: Efficient cross-silo federated learning on heterogeneous client devices using a computing power
aware scheduler", ICLR 2024.

    w ← w + Σ_{u in group} s(τ_u) (w_u − w_start) / N,     s(τ) = 1/√(1 + τ),     N devices

A device that takes d_u seconds per step joins the group with the most steps q = ⌊(T_g − now)/d_u⌋ from Q_min to Q_max,
where T_g is the expected arrival of group g. If there is none, it opens a group, timed to meet the next round of
another. A group is merged when all have arrived, or λ times its expected duration after it was opened; updates that are
late wait for the next merge. First, all devices do Q_min steps, from which d_u is measured.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.actions import Actions, Arrivals, Event, Ints, Merge, Tasks, View
from adelfl.strategies.arrival_groups import ArrivalGroups
from adelfl.strategies.asynchronous import Asynchronous, Staleness
from adelfl.strategies.base import at_least_one, not_negative


class FedCompass(Asynchronous):
    """Groups of devices that arrive together.

    ``least`` and ``most`` are Q_min and Q_max, by default E and 5 Q_min; ``latest`` is λ, at least 1.
    """

    name = "fedcompass"

    def __init__(
        self, problem: Problem, *, least: int | None = None, most: int | None = None, latest: float = 1.2
    ) -> None:
        super().__init__(problem)
        low = problem.local_iterations if least is None else at_least_one("least", least)
        high = 5 * low if most is None else at_least_one("most", most)
        if not (low <= high and not_negative("latest", latest) >= 1):
            raise ConfigError(f"fedcompass needs 1 ≤ least ≤ most and latest ≥ 1, not {low!r}, {high!r}, {latest!r}")
        self.groups, self.staleness = ArrivalGroups(low, high, float(latest)), Staleness()
        self._late: list[Arrivals] = []
        self._waits = False  # whether the device that arrived last waits for its group

    @property
    def most_steps(self) -> int:
        """Q_max."""
        return self.groups.most

    def react(self, view: View, event: Event) -> Actions:
        """React to single updates; if none is merged, merge a group that is complete or overdue."""
        if isinstance(event, Arrivals):
            steps = int(event.tasks.each_steps[0])
            self.groups.learn(int(event.tasks.devices[0]), view.now - event.began, steps)
        actions = super().react(view, event)
        if actions.merge is None and (group := self.groups.due(view.now)) is not None:
            free = np.sort([int(a.tasks.devices[0]) for a in group.arrived])
            actions = Actions(self._merged(view, group.arrived), (*actions.dispatch, self.tasks(view, free)))
        return replace(actions, wake_at=self.groups.wake_at)

    def forget(self) -> None:
        """Forget all groups, and late updates."""
        self.groups.forget()
        self._late = []

    def again(self, view: View, event: Arrivals) -> tuple[Tasks, ...]:
        """Let a device start again, unless it waits for its group."""
        return () if self._waits and event.z.any() else super().again(view, event)

    def arrived(self, view: View, event: Arrivals) -> Merge | None:
        """Merge the first update of a device at once; keep others for their group, or for the next one."""
        group, self._waits = self.groups.leave(int(event.tasks.devices[0]))
        if group is None:
            return self._merged(view, [event])
        (group.arrived if self._waits else self._late).append(event)
        return None

    def tasks(self, view: View, devices: Ints, steps: int | Ints | None = None) -> Tasks:
        """Assign steps to devices."""
        return super().tasks(view, devices, np.array(self.groups.assign(devices.tolist(), view.now), dtype=np.int64))

    def _merged(self, view: View, arrivals: list[Arrivals]) -> Merge:
        ready, self._late = (*self._late, *arrivals), []
        weights = [self.staleness.weight(view.version - a.version) / len(self.groups.pace) for a in ready]
        return Merge(ready, tuple(self.row(weight) for weight in weights))
