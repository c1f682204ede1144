"""Events that a strategy reacts to, and the actions that it answers with.

    Started, Arrivals, Late, Joined, Merged, Timer  ──►  Strategy.react(view, event)  ──►  merge, dispatch, wake, stop

Devices that start at the same moment from the same weights share one :class:`Tasks`. A synchronous method gets one
event for all of them (``together``); an asynchronous method gets one event per device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adelfl.planner.beliefs import Timing
from adelfl.theory.gradient_stats import GradientStats

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tasks:
    """Work for some devices, which start from the same weights at the same moment.

    Attributes
    ----------
    devices : ndarray of int, shape (U,)
        Device numbers, ascending.
    batch : ndarray of int, shape (U,)
        Samples per step; 0 lets a device sit out.
    steps : int or ndarray of int, shape (U,)
        Local iterations E, of all devices or of each.
    rate : float
        Learning rate of the local steps.
    cutoff : float
        Seconds after dispatch by which an upload must be in; infinite for none.
    width : ndarray, shape (U,), or None
        Share of the hidden units that each device trains; None for the whole model.
    together : bool
        Whether the devices are reported in one event, at the cutoff; otherwise each in its own, when it is done.
    early : bool
        Whether that event comes as soon as every device has delivered everything.
    stop : ndarray, shape (U,), or None
        Seconds after the arrival of its task at which each device stops computing; None for no limit. Simulated devices
        know their upload times and stop in time by themselves.
    pace : ndarray, shape (U, L), or None
        Expected seconds per sample of each layer, last layer first; NaN if unknown. A real device does not begin a
        layer that it cannot finish.
    enough : int or None
        The event of all devices comes as soon as so many have delivered everything; the others count with what they
        have delivered by then. None for no such number.
    chunk : int or None
        Devices go through their batch in pieces of so many samples, all from the same weights, until time is up; the
        batch is then what they have finished. None to compute the batch at once. Real devices do the latter.
    proximal : float
        μ: devices add μ (w_u − w_start) to their gradients.
    controls : ndarray, shape (U,), or None
        Devices correct their gradients by control variates, g − c_u + c, and then move them: how much a change of c_u
        moves c. None for no control variates.
    """

    devices: Ints
    batch: Ints
    steps: int | Ints
    rate: float
    cutoff: float = np.inf
    width: Floats | None = None
    together: bool = True
    early: bool = False
    stop: Floats | None = None
    pace: Floats | None = None
    enough: int | None = None
    chunk: int | None = None
    proximal: float = 0.0
    controls: Floats | None = None

    @property
    def each_steps(self) -> Ints:
        """Local iterations of each device, shape (U,)."""
        return np.broadcast_to(np.asarray(self.steps), self.devices.shape)

    @property
    def most_steps(self) -> int:
        """Local iterations of the device that is asked for most."""
        return self.steps if isinstance(self.steps, int) else int(self.steps.max(initial=1))

    def only(self, some: Ints) -> Tasks:
        """Return the part of the tasks that concerns the devices at some positions."""
        per_device = ("devices", "batch", "steps", "width", "stop", "pace", "controls")
        parts: dict[str, Any] = {
            key: values[some] for key in per_device if isinstance(values := getattr(self, key), np.ndarray)
        }
        return replace(self, **parts)


@dataclass(frozen=True)
class Started:
    """The run begins, or goes on in a new process; no task is under way."""


@dataclass(frozen=True, eq=False)
class Joined:
    """Devices that can be given tasks: they connected, came back, or failed to answer an earlier task.

    Attributes
    ----------
    devices : ndarray of int
        Device numbers, ascending.
    """

    devices: Ints


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What came back of :class:`Tasks`, or of one of its devices.

    Attributes
    ----------
    tasks : Tasks
        Tasks of the devices that this event is about.
    number : int
        Which tasks of the run they are, from 0.
    version : int
        Version of the weights that they started from.
    began : float
        When they were dispatched.
    z : ndarray of int, shape (U,)
        Layers that were finished in time over all steps, from the last layer of the first step on.
    seconds : ndarray, shape (U,)
        How long each device computed; NaN for one from which nothing came.
    upload : ndarray, shape (U,)
        How long a whole upload took; NaN where nothing came.
    timings : tuple of Timing or None
        What real devices report of their durations, one entry per device; empty in a simulation.
    """

    tasks: Tasks
    number: int
    version: int
    began: float
    z: Ints
    seconds: Floats
    upload: Floats
    timings: tuple[Timing | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Late:
    """An update that arrived after its cutoff. It is not merged, but its durations are known.

    Attributes
    ----------
    device : int
        Device number.
    batch, z : int
        Samples per step, and layers that were finished over all steps.
    seconds : float
        How long the device computed.
    timing : Timing
        Durations that the device reports.
    """

    device: int
    batch: int
    z: int
    seconds: float
    timing: Timing


@dataclass(frozen=True, eq=False)
class Merged:
    """A merge was done.

    Attributes
    ----------
    version : int
        Version of the weights after it.
    spread : GradientStats or None
        Statistics of the gradients that were merged, if the merge requested them.
    losses : ndarray or None
        Loss of each device of the merge on its first batch, before it trained, if the merge requested it: the root of
        the mean square over samples, or the mean that a real device reports. NaN where nothing was delivered.
    """

    version: int
    spread: GradientStats | None = None
    losses: Floats | None = None


@dataclass(frozen=True)
class Timer:
    """The moment that ``wake_at`` named."""


Event = Started | Joined | Arrivals | Late | Merged | Timer


@dataclass(frozen=True, eq=False)
class Merge:
    """Move the weights by what was delivered.

        w^l ← w^l + Σ_u A[u,l] (w_u^l − w_start^l)          of = "changes": eq. (5), FedAvg, FedBuff
        w^l ← w^l + Σ_u A[u,l] (w_u^l − w^l)                of = "models": FedAsync

    Attributes
    ----------
    arrivals : tuple of Arrivals
        Whose work.
    A : tuple of ndarray, each of shape (U, L)
        How much each device's layer counts.
    of : {"changes", "models"}
        What is averaged.
    spread : bool
        Whether the strategy wants to know the statistics of the gradients before it goes on.
    losses : bool
        Whether it wants to know the losses of the devices before it goes on.
    """

    arrivals: tuple[Arrivals, ...]
    A: tuple[Floats, ...]
    of: Literal["changes", "models"] = "changes"
    spread: bool = False
    losses: bool = False


@dataclass(frozen=True, eq=False)
class Actions:
    """What a strategy wants done, in this order: merge, dispatch, wake, stop."""

    merge: Merge | None = None
    dispatch: tuple[Tasks, ...] = ()
    wake_at: float | None = None
    stop: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """What a strategy may look at when it reacts.

    Attributes
    ----------
    now : float
        Seconds since the run began.
    budget : float
        Seconds that the run may take.
    version : int
        Number of merges so far.
    cohort : callable
        ``cohort(k, size)`` gives the devices of the k-th draw of a random cohort, or every device that is idle if
        ``size`` is None.
    """

    now: float
    budget: float
    version: int
    cohort: Callable[[int, int | None], Ints] = field(repr=False)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.budget - self.now)
