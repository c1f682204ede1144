"""Synchronous methods: rounds with one deadline each, whose devices all start from the same weights.

A synchronous method is a deadline rule, a batch rule and a U×L matrix A:

    w^l ← w^l − η_t Σ_u A[u,l] g_u^l
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np

from adelfl.array_types import Bools as Bools
from adelfl.array_types import Floats as Floats
from adelfl.array_types import Ints as Ints
from adelfl.errors import ConfigError
from adelfl.latency import Exponential, delivery_of, of_devices, work_of
from adelfl.planner import Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.schedule import Schedule
from adelfl.strategies.actions import Actions, Arrivals, Event, Merge, Merged, Tasks, View
from adelfl.strategies.base import Strategy, check_choice
from adelfl.theory.gradient_stats import GradientStats
from adelfl.theory.participation import delivery, log_p_empty

Weigh = Literal["data", "equally"]


@dataclass(frozen=True, eq=False)
class Orders:
    """Tasks of the U devices of one round; fields without description are as in ``adelfl.strategies.actions.Tasks``."""

    deadline: float
    """Seconds until the round closes; infinite to wait for all devices."""
    batch: Ints
    """S_u, shape (U,); 0 lets a device sit out."""
    width: Floats | None = None
    """Share of the hidden units that each device trains, shape (U,): layers and uploads take width² as long."""
    early: bool = False
    """Whether the round closes before its deadline when all devices have delivered everything."""
    steps: int | Ints | None = None
    """Local iterations of all devices, or of each, shape (U,); None for those of the problem."""
    enough: int | None = None
    """Number of complete deliveries at which the round closes before its deadline."""
    chunk: int | None = None
    proximal: float = 0.0
    controls: Floats | None = None


@dataclass(frozen=True, eq=False)
class Progress:
    """Layers that the U devices of one round finished."""

    z: Ints
    """Layers finished in time, over all local iterations, from the last layer of the first iteration on, shape (U,)."""
    layers: int
    """L."""
    local_iterations: int | Ints
    """E, of all devices or of each, shape (U,)."""
    rates: Floats | Callable[[], Floats] | None = None
    """:attr:`rate`, or a function that computes it; None if no merge rule needs it."""
    chances: Callable[[], Floats] | None = None
    """Returns P(device u delivers layer l), shape (U, L), if layer times are not the paper's exponential ones."""
    batch: Ints | None = None
    """S_u as requested, shape (U,); None if no merge rule needs it."""
    amounts: Floats | None = None
    """|D_u|, by which devices are weighed, shape (U,); None to weigh them equally."""

    @cached_property
    def rate(self) -> Floats:
        """λ_u = P_u (T − B_u)/S_u, shape (U,); 0 for a device that sits out."""
        assert self.rates is not None
        return self.rates() if callable(self.rates) else self.rates

    @cached_property
    def pi(self) -> Floats:
        """P(device u delivers layer l), shape (U, L)."""
        return delivery(self.layers, self.rate) if self.chances is None else self.chances()

    @cached_property
    def log_p_empty(self) -> Floats:
        """log p_l, the probability that no device delivers layer l, shape (L,)."""
        if self.chances is None:
            return log_p_empty(self.layers, self.rate)
        with np.errstate(divide="ignore"):
            log_p: Floats = np.log1p(-self.pi).sum(axis=0)
        return log_p

    @cached_property
    def delivered(self) -> Bools:
        """Whether device u delivers layer l, shape (U, L): z_u ≥ L+1−l, in its first iteration or a later one."""
        return self.z[:, None] >= np.arange(self.layers, 0, -1)

    @cached_property
    def steps_done(self) -> Ints:
        """Iterations in which device u finished layer l, shape (U, L)."""
        return (self.z[:, None] + np.arange(self.layers)) // self.layers

    @cached_property
    def finished(self) -> Bools:
        """Whether device u finished all layers of all its iterations, shape (U,)."""
        return self.z >= self.layers * self.local_iterations


@dataclass(frozen=True, eq=False)
class Outcome:
    """Observations of the server in one round, with arrays of shape (U,)."""

    t: int
    """Round, from 0."""
    devices: Ints
    batch: Ints
    """S_u."""
    z: Ints
    """Layers that arrived."""
    seconds: Floats
    """Computing time of each device; if nothing arrived, the time that it had."""
    upload: Floats
    """Duration of each upload; NaN if nothing arrived."""
    left: float
    """Seconds of the budget that are left."""
    steps: int | Ints | None = None
    """Local iterations that were assigned; None for those of the problem."""


class RoundStrategy(Strategy):
    """A synchronous method. A subclass defines :meth:`orders` and :meth:`weights`.

    ``weigh="data"`` weighs devices by the samples that they hold, as FedAvg does; ``"equally"`` is for equal weights.
    """

    beliefs: Beliefs | None = None
    """Estimates of the devices, updated after every round; None for a method that uses the given values."""
    self_paced: ClassVar[bool] = False
    """Whether rounds last as long as the method needs, and go on until the budget is used up."""
    given_deadlines: bool = False
    """Whether the user gave the deadlines, so that a deployment does not make them longer to use spare time."""
    _t = 0  # the present round, from 0

    def __init__(self, problem: Problem, *, weigh: Weigh = "data") -> None:
        super().__init__(problem)
        self.weigh = check_choice("weigh", weigh, Weigh)

    @abstractmethod
    def orders(self, t: int, devices: Ints) -> Orders:
        """Return the tasks of devices (numbers from 0) in round t (from 0), and when the round closes."""

    @abstractmethod
    def weights(self, t: int, progress: Progress) -> Floats:
        """Return A, the weight of each device's gradient of each layer in the merge of round t, shape (U, L)."""

    @cached_property
    def learning_rates(self) -> Floats:
        """η_t of its rounds, shape (rounds,)."""
        return self.problem.eta_of(self.rounds)

    def planned(self, t: int) -> float:
        """Return the planned seconds of rounds t, t+1, … (from 0); infinite if unknown."""
        if self.schedule is not None:
            return float(self.schedule.deadlines[t:].sum())
        return self.orders(t, np.arange(1)).deadline * (self.rounds - t)

    def believed(self, devices: Ints) -> tuple[Floats, Floats]:
        """Return the present estimates of P_u and B_u of some devices."""
        if self.beliefs is not None:
            return self.beliefs.compute(devices), self.beliefs.upload(devices)
        return self.problem.compute[devices], self.problem.upload[devices]

    def absent(self, devices: Ints) -> Floats:
        """Return the probability that a device does not take part in a round that includes it, for some devices."""
        return np.zeros(devices.size) if self.beliefs is None else self.beliefs.away(devices)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round that has closed. By default the beliefs are updated, if there are any."""
        if self.beliefs is None:
            return
        o, latency, L = outcome, self.problem.latency, self.problem.layers
        through = o.z >= L * (self.problem.local_iterations if o.steps is None else o.steps)
        when = f"round {o.t + 1}"
        cost = np.where(o.batch > 0, o.batch + self.problem.overhead[o.devices], 0.0)
        work, silence = work_of(latency, o.z, L, when), None
        if type(latency) is not Exponential:  # a derived class may have other probabilities
            mean = np.maximum(cost, 1) / self.beliefs.compute(o.devices)
            own = of_devices(latency, o.devices)
            silence = 1.0 - delivery_of(own, mean, np.zeros(mean.size), o.seconds, L, when)[:, -1]
        self.beliefs.observe(o.devices, cost, work, o.seconds, o.upload, through, silence)

    def inherit(self, older: RoundStrategy | None, beliefs: Beliefs) -> None:
        """Take over the estimates of devices, and the knowledge of an earlier strategy."""
        self.beliefs = beliefs

    def looks_at(self, t: int) -> bool:
        """Return whether the strategy needs gradient statistics after round t."""
        return False

    def learn(self, spread: GradientStats) -> None:
        """Use the gradient statistics of that round; layers that no device sent are NaN."""

    def wants_losses(self, t: int) -> bool:
        """Return whether the strategy needs the losses of its devices after round t."""
        return False

    def learn_losses(self, losses: Floats) -> None:
        """Use the losses of the devices of that round; NaN if nothing was delivered."""

    def cohort(self, view: View, t: int) -> Ints:
        """Return the devices of round t: by default all, or ``problem.cohort`` of them drawn at random."""
        return view.cohort(t, self.problem.cohort)

    # -- events

    def react(self, view: View, event: Event) -> Actions:
        """Open rounds one after another; merge each when it closes."""
        if isinstance(event, Arrivals):
            return self._close(view, event)
        if isinstance(event, Merged):
            if event.spread is not None:
                self.learn(event.spread)
            if event.losses is not None:
                self.learn_losses(event.losses)
            self._t += 1
        return self._open(view)

    def _open(self, view: View) -> Actions:
        t, s = self._t, self.problem
        if t >= self.rounds and not self.self_paced:
            return Actions(stop=True)
        devices = self.cohort(view, t)
        orders = self.orders(t, devices)
        check_orders(self, orders, devices)
        rate = float(self.learning_rates[min(t, self.rounds - 1)])
        steps = s.local_iterations if orders.steps is None else orders.steps
        same = {key: value for key, value in vars(orders).items() if key not in ("deadline", "steps")}
        return Actions(dispatch=(Tasks(devices, steps=steps, rate=rate, cutoff=orders.deadline, **same),))

    def _close(self, view: View, event: Arrivals) -> Actions:
        t, tasks = self._t, event.tasks
        A = np.asarray(self.weights(t, self.progress(event)), dtype=np.float64)
        if not np.isfinite(A).all():
            raise ConfigError(f"strategy {self.name!r}: weights gave numbers that are not finite in round {t + 1}")
        if A.shape != (tasks.devices.size, self.problem.layers):
            shape = f"({tasks.devices.size}, {self.problem.layers}), devices by layers"
            raise ConfigError(f"strategy {self.name!r}: weights must have shape {shape}, not {A.shape}")
        if self.beliefs is not None or type(self).observe is not RoundStrategy.observe:
            # A device that delivered nothing computed for as long as it was expected to have time.
            _, upload = self.believed(tasks.devices)
            time = tasks.cutoff if tasks.enough is None else min(tasks.cutoff, view.now - event.began)
            expected = np.maximum(time - upload * _cost(tasks), 0.0)
            seconds = np.where(np.isnan(event.seconds), expected, event.seconds)
            outcome = Outcome(t, tasks.devices, tasks.batch, event.z, seconds, event.upload, view.left, tasks.steps)
            self.observe(outcome)
        return Actions(merge=Merge((event,), (A,), spread=self.looks_at(t), losses=self.wants_losses(t)))

    def progress(self, event: Arrivals) -> Progress:
        """Return the layers that the devices of a round finished, and how many were expected."""
        tasks, s = event.tasks, self.problem
        L, E, T = s.layers, tasks.steps, tasks.cutoff
        amounts = None if self.weigh == "equally" or s.amounts is None else s.amounts[tasks.devices]
        if np.isinf(T):
            return Progress(event.z, L, E, np.where(event.z > 0, np.inf, 0.0), None, tasks.batch, amounts)
        chances = None
        if type(s.latency) is not Exponential or np.count_nonzero(self.absent(tasks.devices)):
            chances = partial(self._chances, tasks)  # also for classes that are derived from Exponential
        return Progress(event.z, L, E, partial(self._rates, tasks), chances, tasks.batch, amounts)

    def _costs(self, tasks: Tasks) -> tuple[Floats, Floats, Floats]:
        """Return P_u, samples with overhead and B_u of each device, the latter two as shares of the whole model."""
        P, B = self.believed(tasks.devices)
        scale = _cost(tasks)
        return P, np.maximum((tasks.batch + self.problem.overhead[tasks.devices]) * scale, 1e-300), B * scale

    def _rates(self, tasks: Tasks) -> Floats:
        P, cost, B = self._costs(tasks)
        return np.where(tasks.batch > 0, P * np.maximum(tasks.cutoff - B, 0.0) / cost, 0.0)

    def _chances(self, tasks: Tasks) -> Floats:
        P, cost, B = self._costs(tasks)
        T, believed = np.full(B.size, tasks.cutoff), of_devices(self.problem.latency, tasks.devices)
        delivered = delivery_of(believed, cost / P, B, T, self.problem.layers, f"round {self._t + 1}")
        present = (1.0 - self.absent(tasks.devices))[:, None]
        return np.where(((tasks.batch > 0) & (B < T))[:, None], present * delivered, 0.0)


def _cost(tasks: Tasks) -> Floats | float:
    """Return the cost of each submodel as a share of the whole model, which is the same for computing and sending."""
    return 1.0 if tasks.width is None else tasks.width**2


def check_orders(strategy: Strategy, orders: Orders, devices: Ints) -> None:
    """Raise ConfigError if the orders of a strategy cannot be executed."""
    if not isinstance(orders, Orders):
        raise ConfigError(f"strategy {strategy.name!r}: orders must return an Orders, not {orders!r}")
    prefix, batch = f"strategy {strategy.name!r}: orders gave", orders.batch
    if np.shape(batch) != devices.shape:
        raise ConfigError(f"{prefix} batch sizes of shape {np.shape(batch)} for {devices.size} devices")
    if not isinstance(batch, np.ndarray) or batch.dtype.kind not in "iu":
        raise ConfigError(f"{prefix} batch sizes that are not an array of whole numbers")
    if batch.size and batch.min() < 0:
        raise ConfigError(f"{prefix} a batch size of {batch.min()}; 0 lets a device sit out")
    if not orders.deadline >= 0.0:
        raise ConfigError(f"{prefix} a deadline of {orders.deadline} s; it must not be negative")


def fixed_batch(problem: Problem, devices: Ints, deadline: float = np.inf, width: Floats | float = 1.0) -> Ints:
    """Return S for each device, at most the samples it holds; 0 if the upload of its width outlasts the deadline."""
    sizes = np.where(problem.upload[devices] * width**2 < deadline, problem.batch, 0)
    return problem.within_data(sizes, devices)


def check_schedule(problem: Problem, schedule: Schedule | None) -> None:
    """Raise ConfigError if a given schedule is of another type, or for another number of local iterations."""
    if schedule is None:
        return
    if not isinstance(schedule, Schedule):
        raise ConfigError("strategy option schedule must be a Schedule; it can be given from Python only")
    if schedule.local_iterations != problem.local_iterations:
        raise ConfigError(
            f"the schedule is for {schedule.local_iterations} local iterations, the problem for "
            f"{problem.local_iterations}; plan with the same number"
        )
