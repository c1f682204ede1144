"""Asynchronous methods: a device that has delivered starts again at once, from the newest weights.

    constant      s(τ) = 1
    hinge         s(τ) = 1 for τ ≤ b,  1/(a (τ − b) + 1) above        (Xie et al. 2019)
    polynomial    s(τ) = (1 + τ)^−a

τ is the staleness of an update: the number of merges since its device started.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adelfl.strategies.actions import Actions, Arrivals, Event, Floats, Ints, Joined, Merge, Started, Tasks, View
from adelfl.strategies.base import Strategy, check_choice, not_negative
from adelfl.strategies.rounds import fixed_batch

Decay = Literal["constant", "hinge", "polynomial"]

_RATES: dict[str, float] = {"constant": 0.0, "hinge": 10.0, "polynomial": 0.5}


@dataclass(frozen=True)
class Staleness:
    """Weight of an update as a function of its staleness."""

    name: Decay = "polynomial"
    a: float | None = None
    """Rate at which the weight falls; None for 10 (hinge) or 0.5 (polynomial)."""
    b: float = 4.0
    """Staleness up to which a hinge does not fall."""

    def __post_init__(self) -> None:
        check_choice("staleness", self.name, Decay)
        not_negative("staleness_rate", 0.0 if self.a is None else self.a)
        not_negative("staleness_free", self.b)

    def weight(self, tau: float) -> float:
        """Return s(τ)."""
        a = _RATES[self.name] if self.a is None else self.a
        if self.name == "hinge":
            return 1.0 / (a * max(0.0, tau - self.b) + 1.0)
        return float((1.0 + tau) ** -a) if self.name == "polynomial" else 1.0


class Asynchronous(Strategy):
    """An asynchronous method; a subclass defines what is merged when an update arrives."""

    proximal = 0.0

    @abstractmethod
    def arrived(self, view: View, event: Arrivals) -> Merge | None:
        """Return the merge that follows the update of one device; None to wait for more updates."""

    def react(self, view: View, event: Event) -> Actions:
        """Start devices, and start them again when they have delivered."""
        if isinstance(event, Started):
            self.forget()
        if isinstance(event, Started | Joined):
            devices = event.devices if isinstance(event, Joined) else view.cohort(0, self.problem.cohort)
            return Actions(dispatch=(self.tasks(view, devices),) if devices.size else ())
        if not isinstance(event, Arrivals):
            return Actions()
        merge = self.arrived(view, event) if event.z.any() else None
        return Actions(merge, self.again(view, event))

    def forget(self) -> None:
        """Forget updates that wait for a merge: when a deployment is resumed, their content is lost."""

    def again(self, view: View, event: Arrivals) -> tuple[Tasks, ...]:
        """Return the next task of a device that has delivered, or failed to."""
        return (self.tasks(view, event.tasks.devices),)

    def tasks(self, view: View, devices: Ints, steps: int | Ints | None = None) -> Tasks:
        """Return tasks of the baselines' batch size, with E steps unless other numbers are given."""
        s = self.problem
        rate = float(s.eta[min(view.version, s.rounds - 1)])
        E = s.local_iterations if steps is None else steps
        return Tasks(devices, fixed_batch(s, devices), E, rate, together=False, proximal=self.proximal)

    def row(self, weight: float) -> Floats:
        """Return the row of A of a device whose layers all have the same weight."""
        return np.full((1, self.problem.layers), weight)
