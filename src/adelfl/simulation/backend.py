"""The simulated backend: a virtual clock, a heap of events, and an engine that computes updates.

All random numbers are drawn from the seed and the number of the tasks, so that strategies share them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
from torch import Tensor, nn

from adelfl.data.partition import Partition
from adelfl.errors import AdelError, ConfigError
from adelfl.runtime.backend import Backend, Compute, Computed
from adelfl.runtime.codec import Uploads
from adelfl.simulation.draws import draw_available, draw_chunks, draw_cohort, draw_rows, draw_work, fitted
from adelfl.simulation.world import World
from adelfl.strategies.actions import Arrivals, Event, Floats, Ints, Merge, Tasks, Timer
from adelfl.strategies.rounds import Progress
from adelfl.training.estimate import look_at, losses_of
from adelfl.training.layers import Layer
from adelfl.training.masks import draws_numbers, mask_seeds
from adelfl.training.work import Change, Engine, RoundWork, Samples

_AHEAD, _AHEAD_SAMPLES = 64, 1 << 20  # merges, and their samples, that are prepared at a time
_MOST_DRAWN = 1 << 29  # samples of a round, over all devices and local iterations: 4 GiB of random numbers


class TrainingError(AdelError):
    """Training failed: a loss is not finite, or the model cannot be trained on a batch."""


@dataclass(frozen=True, eq=False)
class Learner:
    """The model of a run in training mode, and the engine that computes its updates."""

    model: nn.Module
    layers: tuple[Layer, ...]
    samples: Samples
    """All training samples."""
    engine: Engine
    uploads: Uploads | None = None
    """Lossy codec; None without one."""


class VirtualClock(Backend):
    """A clock that jumps from one event to the next."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._heap: list[tuple[float, int, Event]] = []  # time, order of events at one time, event
        self._order, self._numbers = count(), count()

    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def _push(self, moment: float, event: Event) -> None:
        if moment < math.inf:
            heapq.heappush(self._heap, (moment, next(self._order), event))

    def next(self, wake_at: float | None) -> Event | None:
        """Advance the clock to the next event."""
        if wake_at is not None and (not self._heap or wake_at < self._heap[0][0]):
            self._now = max(self._now, wake_at)
            return Timer()
        if not self._heap:
            return None
        moment, _, event = heapq.heappop(self._heap)
        self._now = max(self._now, moment)
        return event


class Simulated(VirtualClock):
    """Simulate tasks in a world; ``oversample`` allows batches that are larger than the data of their device."""

    ahead = _AHEAD

    def __init__(
        self, world: World, partition: Partition, learner: Learner, seed: int, *, oversample: bool = False
    ) -> None:
        self.world, self.partition, self.learner, self.seed = world, partition, learner, seed
        super().__init__()
        self.oversample = oversample
        self._held = partition.sizes
        self._everyone = np.arange(len(partition))
        self._everyone.flags.writeable = False
        # The other engines refuse a model that draws random numbers.
        self._draws_masks = learner.engine.name == "loop" and draws_numbers(learner.model, learner.samples.x[:2])
        self.past = Past(learner.model)

    def cohort(self, k: int, size: int | None) -> Ints:
        """Return all devices, or a random choice that prefers available devices, in ascending order."""
        N = self._everyone.size
        if size is None or size == N:
            return self._everyone
        if self.world.available(self._everyone[:0], self._now) is None:
            return draw_cohort(N, size, self.seed, k)
        return draw_available(self.world, N, size, self._now, k)

    def dispatch(self, tasks: Tasks, version: int) -> None:
        """Draw the progress of each device, and schedule the events that report it."""
        number = next(self._numbers)
        if self.world.clairvoyant:
            tasks = fitted(self.world, tasks, number, self._now, len(self.learner.layers))
        if tasks.chunk is not None and math.isfinite(tasks.cutoff):
            tasks, work = draw_chunks(self.world, tasks, tasks.chunk, number, self._now, len(self.learner.layers))
            tasks = self._within_data(tasks, number)
        else:
            tasks = self._within_data(tasks, number)
            work = draw_work(self.world, tasks, number, self._now, len(self.learner.layers))
        if tasks.together:
            event = Arrivals(tasks, number, version, self._now, work.z, work.seconds, work.upload)
            self._push(self._now + work.length, event)
            return
        self.past.want(version, tasks.devices.size)
        for i in range(tasks.devices.size):
            one = np.array([i])
            own = number if i == 0 else next(self._numbers)  # each device draws its samples by a number of its own
            arrival = work.z[one], work.seconds[one], work.upload[one]
            self._push(self._now + float(work.done[i]), Arrivals(tasks.only(one), own, version, self._now, *arrival))

    def next(self, wake_at: float | None) -> Event | None:
        """Advance the clock to the next event."""
        event = super().next(wake_at)
        self.past.release_lost(event)
        return event

    def _within_data(self, tasks: Tasks, number: int) -> Tasks:
        """Cut batches to the samples of each device, unless samples may repeat; refuse too many to draw."""
        if not self.oversample and (tasks.batch > (held := self._held[tasks.devices])).any():
            tasks = replace(tasks, batch=np.minimum(tasks.batch, held).astype(np.int64))
        most = int(tasks.batch.max(initial=0))
        if most * tasks.devices.size * tasks.most_steps > _MOST_DRAWN:
            raise ConfigError(
                f"round {number + 1} has {tasks.devices.size:,} devices and batches of up to {most:,} samples, which "
                "are too many to draw; lower the budget or the batch size, or set oversample = false"
            )
        return tasks

    # -- computing

    def fills(self, merge: Merge) -> float:
        """Return the samples of a merge as a share of those that are prepared at a time."""
        return sum(int(a.tasks.batch.sum()) for a in merge.arrivals) / _AHEAD_SAMPLES

    def prepare(self, merges: Sequence[Merge]) -> list[Compute]:
        """Draw and sort the samples of some merges at once, which is faster than one by one, between trained rounds."""
        arrivals = [a for merge in merges for a in merge.arrivals]
        requested = [(a.number, a.tasks.devices, a.tasks.batch) for a in arrivals]
        steps = [a.tasks.most_steps for a in arrivals]
        drawn = draw_rows(self.partition, self.seed, requested, steps) if requested else []
        rows = {id(a): own for a, own in zip(arrivals, drawn, strict=True)}
        return [self._compute(merge, rows) for merge in merges]

    def _compute(self, merge: Merge, rows: dict[int, tuple[Ints, ...]]) -> Compute:
        work = [self._work(a, A, rows[id(a)]) for a, A in zip(merge.arrivals, merge.A, strict=True)]
        if merge.of == "changes" and len(work) == 1 and merge.arrivals[0].tasks.together:
            (only,) = work
            train = self.learner.engine.prepare(only) if np.count_nonzero(only.A[only.progress.z > 0]) else None
            return partial(self._together, merge, only, train)
        return partial(self._apart, merge, work)

    def _work(self, a: Arrivals, A: Floats, rows: tuple[Ints, ...]) -> RoundWork:
        tasks = a.tasks
        progress = Progress(a.z, len(self.learner.layers), tasks.steps)
        seeds = mask_seeds(self.seed, a.number, tasks.devices) if self._draws_masks else None
        senders = None
        if self.learner.uploads is not None or tasks.controls is not None:
            senders = np.stack([np.full(tasks.devices.size, a.number), tasks.devices], axis=1)
        return RoundWork(
            rows, tasks.batch, A, progress, tasks.rate, tasks.width, seeds, senders, tasks.proximal, tasks.controls
        )

    def _together(self, merge: Merge, work: RoundWork, train: Callable[[], Change] | None) -> Computed:
        """Compute the updates of one dispatch, which start from the present weights."""
        self.past.advance()
        if train is None:
            return Computed(None)
        learner, number = self.learner, merge.arrivals[0].number
        try:
            spread = look_at(learner.model, learner.layers, learner.samples, work) if merge.spread else None
            losses = losses_of(learner.model, learner.samples, work) if merge.losses else None
            return Computed(_checked(train(), number, work.eta), spread, losses)
        except ValueError as error:
            raise _explained(error, number) from None

    def _apart(self, merge: Merge, work: list[RoundWork]) -> Computed:
        """Compute updates that start from the weights of several versions."""
        self.past.advance()
        versions = {version: self.past.at(version) for version in {a.version for a in merge.arrivals}}
        starts = [versions[a.version] for a in merge.arrivals]
        learner, losses = self.learner, None
        try:
            if merge.losses:
                own = [losses_of(learner.model, learner.samples, *one) for one in zip(work, starts, strict=True)]
                losses = np.concatenate(own)
            change = learner.engine.run_apart(work, starts)
        except ValueError as error:
            raise _explained(error, self.past.version) from None
        if any(w.contributes.any() for w in work):
            change = _checked(change, self.past.version, max(w.eta for w in work))
            if merge.of == "models":
                change = self._of_models(change, work, starts)
        self.past.release(merge.arrivals)
        return Computed(change if change.parameters else None, None, losses)

    def _of_models(self, change: Change, work: list[RoundWork], starts: list[Mapping[str, Tensor]]) -> Change:
        """Convert sums of A (w_u − start) into sums of A (w_u − w)."""
        total, now = dict(change.parameters), self.past.parameters
        for w, start in zip(work, starts, strict=True):
            share = (w.A * w.progress.delivered).sum(axis=0).tolist()
            for l, layer in enumerate(self.learner.layers):
                for name in layer.parameters:
                    if share[l] and name in total:
                        total[name] = total[name] - share[l] * (now[name].detach() - start[name])
        return replace(change, parameters=total)


class Past:
    """Weights of earlier versions, for devices that started from them and have not been merged."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = dict(model.named_parameters())
        self.version = -1  # of the present weights
        self.kept: dict[int, dict[str, Tensor]] = {}
        self._users: Counter[int] = Counter()  # devices that need each version

    def want(self, version: int, devices: int) -> None:
        """Count devices that start from a version."""
        self._users[version] += devices

    def advance(self) -> None:
        """Go to the next version before its merge is computed; copy the weights if a device starts from them."""
        self.version += 1
        if self._users[self.version]:
            self.kept[self.version] = self._copy()

    def at(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of a version."""
        return self.kept.get(version) or self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def release_lost(self, event: Event | None) -> None:
        """Release the weights of a device that delivered nothing and is therefore not merged."""
        if isinstance(event, Arrivals) and not event.z.any():
            self.release([event])

    def release(self, arrivals: Iterable[Arrivals]) -> None:
        """Delete the weights that no other device needs."""
        for a in arrivals:
            if a.tasks.together:
                continue
            self._users[a.version] -= a.tasks.devices.size
            if self._users[a.version] <= 0:
                del self._users[a.version]
                self.kept.pop(a.version, None)


def _checked(change: Change, number: int, rate: float) -> Change:
    if not math.isfinite(change.loss):
        raise TrainingError(
            f"the training loss became {change.loss} in round {number + 1}; lower the learning rate (now {rate:g})"
        )
    return change


def _explained(error: ValueError, number: int) -> Exception:
    """Return an error with advice for batch norm on a single sample; any other error unchanged."""
    if "more than 1 value per channel" not in str(error):
        return error
    return TrainingError(
        f"a device has a single sample in round {number + 1}, and batch norm needs at least two; use norm = 'group'"
    )
