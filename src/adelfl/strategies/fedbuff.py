"""FedBuff: asynchronous training with a buffer.

Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.

    w ← w + (1/K) Σ_{u in the buffer} s(τ_u) (w_u − w_start),     s(τ) = 1/√(1 + τ)

Devices work all the time: each starts again from the newest weights as soon as it has delivered. The server merges when
the buffer holds K updates. τ is the number of merges since a device started.
"""

from __future__ import annotations

from adelfl.planner import Problem
from adelfl.strategies.actions import Arrivals, Merge, View
from adelfl.strategies.asynchronous import Asynchronous, Decay, Staleness
from adelfl.strategies.base import at_least_one


class FedBuff(Asynchronous):
    """Merge every K updates (``buffer``), older ones with less weight.

    The options of s(τ) are those of :class:`~adelfl.strategies.asynchronous.Staleness`.
    """

    name = "fedbuff"

    def __init__(
        self,
        problem: Problem,
        *,
        buffer: int = 10,
        staleness: Decay = "polynomial",
        staleness_rate: float | None = None,
        staleness_free: float = 4.0,
    ) -> None:
        super().__init__(problem)
        self.buffer = min(at_least_one("buffer", buffer), problem.cohort or problem.devices)
        self.staleness = Staleness(staleness, staleness_rate, staleness_free)
        self._waiting: list[Arrivals] = []

    def forget(self) -> None:
        """Empty the buffer."""
        self._waiting = []

    def arrived(self, view: View, event: Arrivals) -> Merge | None:
        """Put what arrives into the buffer; merge the buffer when it is full."""
        self._waiting.append(event)
        if len(self._waiting) < self.buffer:
            return None
        full, self._waiting = tuple(self._waiting), []
        weights = [self.staleness.weight(view.version - a.version) / self.buffer for a in full]
        return Merge(full, tuple(self.row(s) for s in weights))
