"""Groups of devices that are expected to arrive together: the scheduler of FedCompass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from adelfl.strategies.actions import Arrivals


@dataclass(eq=False)
class ArrivalGroup:
    """Devices that are expected to arrive together, the latest moment to wait for them, and the arrivals so far."""

    expected: float
    latest: float
    awaited: set[int] = field(default_factory=set)
    arrived: list[Arrivals] = field(default_factory=list)


class ArrivalGroups:
    """Assign steps to devices, from ``least`` to ``most``, so that they arrive in groups."""

    def __init__(self, least: int, most: int, latest: float) -> None:
        self.least, self.most, self.latest = least, most, latest
        self.pace: dict[int, float] = {}  # seconds per step of each device that has delivered, as a running mean
        self._open: list[ArrivalGroup] = []
        self._group_of: dict[int, ArrivalGroup] = {}

    def forget(self) -> None:
        """Forget all groups, but not how fast devices are."""
        self._open, self._group_of = [], {}

    def learn(self, u: int, seconds: float, steps: int) -> None:
        """Learn how fast a device is."""
        pace = seconds / steps
        self.pace[u] = (self.pace.get(u, pace) + pace) / 2

    def leave(self, u: int) -> tuple[ArrivalGroup | None, bool]:
        """Take a device out of its group; return the group, and whether it is still waiting to be merged."""
        group = self._group_of.pop(u, None)
        if group is not None:
            group.awaited.discard(u)
        return group, group in self._open

    def due(self, now: float) -> ArrivalGroup | None:
        """Close the first group that is complete, or overdue."""
        self._open = [g for g in self._open if g.awaited or g.arrived]
        due = next((g for g in self._open if g.arrived and (not g.awaited or now >= g.latest)), None)
        if due is not None:
            self._open.remove(due)
        return due

    @property
    def wake_at(self) -> float | None:
        """Moment at which the next group is overdue."""
        return min((g.latest for g in self._open if g.arrived), default=None)

    def assign(self, devices: Sequence[int], now: float) -> list[int]:
        """Return the steps of some devices; the fastest choose first."""
        steps = {u: self._assigned(u, now) for u in sorted(devices, key=lambda u: self.pace.get(u, 0.0))}
        return [steps[u] for u in devices]

    def _assigned(self, u: int, now: float) -> int:
        self.leave(u)
        if u not in self.pace:
            return self.least
        pace = self.pace[u]
        fits = {math.floor((g.expected - now) / pace + 1e-9): g for g in self._open}
        if joins := [q for q in fits if self.least <= q <= self.most]:
            steps, group = max(joins), fits[max(joins)]
        else:  # a new group, which meets another one after its next turn
            ends = [g.latest + self.most * min(self.pace[w] for w in g.awaited) for g in self._open if g.awaited]
            meets = [q for end in ends if (q := math.floor((end - now) / pace)) <= self.most]
            steps = max(self.least, *meets) if meets else self.most
            group = ArrivalGroup(now + steps * pace, now + self.latest * steps * pace)
            self._open.append(group)
        group.awaited.add(u)
        self._group_of[u] = group
        return steps
