"""A world that follows measured bandwidths and availabilities."""

from __future__ import annotations

from dataclasses import dataclass

from adelfl.simulation.world import Bools, Floats, Ints, World
from adelfl.traces.playback import Availability, Links


@dataclass(frozen=True, eq=False)
class TracedWorld(World):
    """A world whose uploads take as long as a bandwidth trace says, and whose devices are available at times.

    Attributes
    ----------
    links : Links, optional
        Uplinks; the fleet's upload times are their means.
    availability : Availability, optional
        A device that is not available when a task begins or when it is done does not answer. It is no part of a cohort
        as long as enough others are available.
    """

    links: Links | None = None
    availability: Availability | None = None

    def sending(self, devices: Ints, moments: Floats, amounts: Floats) -> Floats:
        """Seconds of uploads that begin at some moments."""
        return amounts if self.links is None else self.links.seconds(devices, moments, amounts)

    def lead(self, devices: Ints, moment: float, amounts: Floats) -> Floats:
        """Seconds before a moment at which uploads must begin to be in by then."""
        return amounts if self.links is None else self.links.lead(devices, moment, amounts)

    def available(self, devices: Ints, now: float | Floats) -> Bools | None:
        """Return which devices are available at a time, common or one per device."""
        return None if self.availability is None else self.availability.at(devices, now)

    def there(self, devices: Ints, t: int, now: float) -> Bools:
        """Who of a round's cohort takes part in it."""
        there, available = super().there(devices, t, now), self.available(devices, now)
        return there if available is None else there & available
