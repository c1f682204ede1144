"""FedAsync: every update is mixed into the model as soon as it arrives.

Xie, Koyejo, Gupta, "Asynchronous federated optimization", 2019.

    w ← (1 − α_τ) w + α_τ w_u,     α_τ = α s(τ)          s(τ) constant, hinge or polynomial

τ is the number of merges since the device started. Devices may add ρ (w_u − w_start) to their gradients.
"""

from __future__ import annotations

from typing import Literal

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.strategies.actions import Arrivals, Merge, View
from adelfl.strategies.asynchronous import Asynchronous, Decay, Staleness
from adelfl.strategies.base import check_choice, not_negative

Of = Literal["models", "changes"]


class FedAsync(Asynchronous):
    """Mix models one by one, older ones with less weight.

    ``mixing`` is α, above 0 and at most 1; the three options of s(τ) are those of
    :class:`~adelfl.strategies.asynchronous.Staleness`; ``proximal`` is ρ. ``of="changes"`` adds changes in place of
    mixing models: w ← w + α_τ (w_u − w_start).
    """

    name = "fedasync"

    def __init__(
        self,
        problem: Problem,
        *,
        mixing: float = 0.6,
        staleness: Decay = "polynomial",
        staleness_rate: float | None = None,
        staleness_free: float = 4.0,
        proximal: float = 0.0,
        of: Of = "models",
    ) -> None:
        super().__init__(problem)
        if not 0 < mixing <= 1:
            raise ConfigError(f"strategy option mixing must be above 0 and at most 1, not {mixing!r}")
        self.mixing, self.proximal = float(mixing), not_negative("proximal", proximal)
        self.of = check_choice("of", of, Of)
        self.staleness = Staleness(staleness, staleness_rate, staleness_free)

    def arrived(self, view: View, event: Arrivals) -> Merge:
        """Mix the model in at once."""
        weight = self.mixing * self.staleness.weight(view.version - event.version)
        return Merge((event,), (self.row(weight),), of=self.of)
