"""Events that a strategy reacts to, and the actions that it answers with.

    Started, Arrivals, Late, Joined, Merged, Timer  ──►  Strategy.react(view, event)  ──►  merge, dispatch, wake, stop

Devices that start at the same moment from the same weights share one :class:`Tasks`. A synchronous method gets one
event for all of them (``together``); an asynchronous method gets one event per device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from adelfl.array_types import Floats as Floats
from adelfl.array_types import Ints as Ints
from adelfl.array_types import select
from adelfl.planner.beliefs import Timing
from adelfl.theory.gradient_stats import GradientStats


@dataclass(frozen=True, eq=False)
class Tasks:
    """Work for U devices, which start from the same weights at the same moment."""

    devices: Ints
    """Device numbers, ascending, shape (U,)."""
    batch: Ints
    """Samples per step, shape (U,); 0 lets a device sit out."""
    steps: int | Ints
    """Local iterations E, of all devices or of each, shape (U,)."""
    rate: float
    """Learning rate of the local steps."""
    cutoff: float = np.inf
    """Seconds after dispatch by which an upload must have arrived; infinite for no limit."""
    width: Floats | None = None
    """Share of the hidden units that each device trains, shape (U,); None for the whole model."""
    together: bool = True
    """Whether the devices are reported in one event, at the cutoff; otherwise each in its own, when it is done."""
    early: bool = False
    """Whether that event comes as soon as every device has delivered everything."""
    stop: Floats | None = None
    """Seconds after the arrival of its task at which each device stops computing, shape (U,); None for no limit.
    Simulated devices know their upload times and stop in time by themselves."""
    pace: Floats | None = None
    """Expected seconds per sample of each layer, last layer first, shape (U, L); NaN if unknown. A real device does not
    begin a layer that it cannot finish."""
    enough: int | None = None
    """Number of complete deliveries at which the event of all devices comes; the other devices count with what they
    have delivered by then."""
    chunk: int | None = None
    """Samples in each piece of a batch: devices process piece after piece from the same weights until time is up. None
    to process the batch at once, as real devices always do."""
    proximal: float = 0.0
    """μ: devices add μ (w_u − w_start) to their gradients."""
    controls: Floats | None = None
    """Factor with which a change of each control variate c_u is added to c, shape (U,): devices use g − c_u + c as
    their gradient. None for no control variates."""

    @property
    def each_steps(self) -> Ints:
        """Local iterations of each device, shape (U,)."""
        return np.broadcast_to(np.asarray(self.steps), self.devices.shape)

    @property
    def most_steps(self) -> int:
        """Largest number of local iterations of a device."""
        return self.steps if isinstance(self.steps, int) else int(self.steps.max(initial=1))

    def only(self, some: Ints) -> Tasks:
        """Return the tasks of the devices at some positions."""
        return select(self, some)


@dataclass(frozen=True)
class Started:
    """The run begins, or continues in a new process; no task is under way."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Devices are available for tasks: they connected, returned, or failed to answer an earlier task."""

    devices: Ints
    """Device numbers, ascending."""


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Results of :class:`Tasks`, or of one of its devices."""

    tasks: Tasks
    """Tasks of the U devices that this event is about."""
    number: int
    """Number of these tasks in the run, from 0."""
    version: int
    """Version of the weights that they started from."""
    began: float
    """Time of their dispatch."""
    z: Ints
    """Layers finished in time over all steps, counted from the last layer of the first step, shape (U,)."""
    seconds: Floats
    """Computing time of each device, shape (U,); NaN if nothing arrived."""
    upload: Floats
    """Duration of a whole upload, shape (U,); NaN if nothing arrived."""
    timings: tuple[Timing | None, ...] = ()
    """Durations that real devices report, one entry per device; empty in a simulation."""


@dataclass(frozen=True, eq=False)
class Late:
    """An update that arrived after its cutoff. It is not merged, but its durations are known."""

    device: int
    batch: int
    """Samples per step."""
    z: int
    """Layers that were finished over all steps."""
    seconds: float
    """Computing time."""
    timing: Timing
    """Durations that the device reports."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A merge was computed."""

    version: int
    """Version of the weights after it."""
    spread: GradientStats | None = None
    """Statistics of the gradients that were merged, if the merge requested them."""
    losses: Floats | None = None
    """Loss of each device on its first batch, before training, if the merge requested it: the root mean square over
    samples, or the mean that a real device reports. NaN if nothing was delivered."""


@dataclass(frozen=True)
class Timer:
    """The time requested by ``wake_at`` has come."""


Event = Started | Joined | Arrivals | Late | Merged | Timer


@dataclass(frozen=True, eq=False)
class Merge:
    """Move the weights by the delivered changes.

    w^l ← w^l + Σ_u A[u,l] (w_u^l − w_start^l)          of = "changes": eq. (5), FedAvg, FedBuff
    w^l ← w^l + Σ_u A[u,l] (w_u^l − w^l)                of = "models": FedAsync
    """

    arrivals: tuple[Arrivals, ...]
    A: tuple[Floats, ...]
    """Weight of each device's layers, shape (U, L) for each of the arrivals."""
    of: Literal["changes", "models"] = "changes"
    spread: bool = False
    """Whether the strategy needs gradient statistics before it continues."""
    losses: bool = False
    """Whether the strategy needs the losses of the devices before it continues."""


@dataclass(frozen=True, eq=False)
class Actions:
    """Actions of a strategy, in the order of their execution: merge, dispatch, wake, stop."""

    merge: Merge | None = None
    dispatch: tuple[Tasks, ...] = ()
    wake_at: float | None = None
    stop: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """State of the run that a strategy may use when it reacts."""

    now: float
    """Seconds since the run began."""
    budget: float
    """Seconds that the run may take."""
    version: int
    """Number of merges so far."""
    cohort: Callable[[int, int | None], Ints] = field(repr=False)
    """``cohort(k, size)`` returns the devices of the k-th draw of a random cohort, or every idle device if ``size`` is
    None."""

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.budget - self.now)
