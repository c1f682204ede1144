"""Random draws of a round, which all strategies share: participation, layer times, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from adelfl.array_types import Bools, Floats, Ints
from adelfl.data.partition import Partition
from adelfl.latency import layer_times_of, of_devices, upload_times_of
from adelfl.seeds import rng_for
from adelfl.simulation.world import World
from adelfl.strategies.actions import Tasks

_ROUNDING = 1e-9  # share of a round by which sums of times may be wrong
_FACTOR, _EXTRA = 3, 20  # a device finishes at most 3 times as many chunks as expected, and 20 more


def draw_cohort(devices: int, cohort: int | None, seed: int, k: int) -> Ints:
    """Return the devices of the k-th cohort in ascending order: all of them, or a random choice."""
    if cohort is None or cohort == devices:
        return np.arange(devices)
    return np.sort(rng_for(seed, "cohort", k).choice(devices, cohort, replace=False, shuffle=False))


def draw_available(world: World, devices: int, cohort: int, now: float, k: int) -> Ints:
    """Return the devices of the k-th cohort: available devices at random, filled up with others if there are too few.

    The availability of a random sample of devices is looked up, which grows while too few of them are available.
    """
    looked_up = min(devices, 4 * cohort)
    while True:
        some = rng_for(world.seed, "cohort", k).choice(devices, looked_up, replace=False)
        available = world.available(some, now)
        assert available is not None
        if looked_up == devices or np.count_nonzero(available) >= cohort:
            return np.sort(some[np.argsort(~available, kind="stable")][:cohort])
        looked_up = min(devices, 4 * looked_up)


@dataclass(frozen=True, eq=False)
class Work:
    """Progress of the U devices of some tasks."""

    z: Ints
    """Layers finished in time, over all steps, shape (U,)."""
    length: float
    """Seconds until all devices are done, or the cutoff."""
    done: Floats
    """Seconds until each device is done, shape (U,)."""
    seconds: Floats
    """Computing time of each device, shape (U,); NaN if it delivers nothing."""
    upload: Floats
    """Duration of a whole upload of each device, even if it sends a part, shape (U,); NaN if it delivers nothing."""


def draw_work(world: World, tasks: Tasks, number: int, now: float, layers: int) -> Work:
    """Draw the progress of each device by the cutoff, and the time at which it is reported.

    A device delivers nothing if it drops out, or is not available when it begins or when it is done. Without a cutoff,
    the report does not wait for such devices, unless there are no others.
    """
    L, T, devices = layers, tasks.cutoff, tasks.devices
    assigned, most = tasks.batch > 0, L * tasks.most_steps
    if world.unhurried:
        nothing = np.full(devices.size, np.nan)
        return Work(assigned * (L * tasks.steps), T, np.full(devices.size, T), np.zeros(devices.size), nothing)
    total = L * tasks.each_steps
    takes_part = assigned & world.there(devices, number, now)
    scale = 1.0 if tasks.width is None else tasks.width**2  # of computing and uploading a submodel
    rng, when = rng_for(world.seed, "latency", number), f"round {number + 1}"
    latency = of_devices(world.latency, devices)
    samples = (tasks.batch + world.overhead[devices]) * scale
    times = layer_times_of(latency, rng, samples / world.speed(devices, now), most, L, when)
    finished = np.cumsum(times, axis=1)
    computed = finished[np.arange(devices.size), total - 1]
    upload = upload_times_of(latency, rng, world.upload[devices] * scale, L, when)
    # Upload times after each finished layer, if they depend on the number of layers.
    amounts = upload[:, None] if upload.ndim == 1 else upload[:, np.minimum(np.arange(most), L - 1)]
    sending = world.sending(devices, now + finished, amounts)
    whole = sending[np.arange(devices.size), np.minimum(total, sending.shape[1]) - 1]
    ends = computed + whole
    if (available := world.available(devices, now + np.minimum(ends, T))) is not None:
        takes_part &= available
    if tasks.enough is not None and np.count_nonzero(takes_part) >= tasks.enough:
        T = min(T, float(np.sort(ends[takes_part])[tasks.enough - 1]))
    if np.isinf(T):
        waited_for = takes_part if takes_part.any() else assigned
        length = float(ends[waited_for].max(initial=0.0))
        return Work(takes_part * total, length, ends, computed, whole)
    z = np.where(takes_part, np.minimum((finished <= T - sending).sum(axis=1), total), 0)
    if tasks.enough is not None:  # T is the end of a device, up to rounding errors
        z = np.where(takes_part & (ends <= T), total, z)
    through = z >= total
    sent = np.take_along_axis(sending, np.maximum(z - 1, 0)[:, None], axis=1)[:, 0] if sending.shape[1] > 1 else whole
    seconds = np.where(z > 0, np.where(through, computed, T - sent), np.nan)
    early = tasks.early and assigned.any() and through[assigned].all()
    length = float(ends[assigned].max()) if early else T
    return Work(z, length, np.where(through, ends, T), seconds, np.where(z > 0, whole, np.nan))


def draw_chunks(world: World, tasks: Tasks, chunk: int, number: int, now: float, layers: int) -> tuple[Tasks, Work]:
    """Draw the number of chunks of its batch that each device finishes by the cutoff, and cut the batches to them.

    A chunk takes as long as a batch of its size. A chunk that is not finished by the cutoff is lost.
    """
    devices, T, when = tasks.devices, tasks.cutoff, f"round {number + 1}"
    takes_part = (tasks.batch > 0) & world.there(devices, number, now)
    rng, latency = rng_for(world.seed, "latency", number), of_devices(world.latency, devices)
    mean = (chunk + world.overhead[devices]) / world.speed(devices, now)
    chunks = -(-tasks.batch // chunk)
    bound = math.ceil(_FACTOR * T / (layers * float(mean.min(initial=np.inf)))) + _EXTRA
    most = max(1, min(int(chunks.max(initial=1)), bound))
    ends = np.cumsum(layer_times_of(latency, rng, mean, most * layers, layers, when), axis=1)[:, layers - 1 :: layers]
    upload = upload_times_of(latency, rng, world.upload[devices], layers, when)
    whole = world.lead(devices, now + T, upload if upload.ndim == 1 else upload[:, -1])
    if (available := world.available(devices, now + T)) is not None:
        takes_part &= available
    done = np.where(takes_part, np.minimum((ends <= (T - whole)[:, None]).sum(axis=1), chunks), 0)
    seconds, uploads = np.where(done > 0, [T - whole, whole], np.nan)
    work = Work((done > 0) * layers, T, np.full(devices.size, T), seconds, uploads)
    return replace(tasks, batch=np.minimum(tasks.batch, done * chunk)), work


def fitted(world: World, tasks: Tasks, number: int, now: float, layers: int) -> Tasks:
    """Cut each batch to the largest that its device finishes by the cutoff, given the layer times of the round.

    The smallest batch is one sample, of which a slow device delivers the layers that it finishes.
    """
    rng, when, devices = rng_for(world.seed, "latency", number), f"round {number + 1}", tasks.devices
    latency = of_devices(world.latency, devices)
    total = layers * tasks.each_steps
    times = layer_times_of(latency, rng, np.ones(devices.size), layers * tasks.most_steps, layers, when)
    times = np.where(np.arange(times.shape[1]) < total[:, None], times, 0.0)
    upload = upload_times_of(latency, rng, world.upload[devices], layers, when)
    left = tasks.cutoff - world.lead(devices, now + tasks.cutoff, upload if upload.ndim == 1 else upload[:, -1])
    fits = np.floor(left * world.speed(devices, now) / times.sum(axis=1) * (1.0 - _ROUNDING) - world.overhead[devices])
    return replace(tasks, batch=np.minimum(tasks.batch, np.clip(fits, 1, None)).astype(np.int64))


def draw_rows(
    partition: Partition, seed: int, rounds: Sequence[tuple[int, Ints, Ints]], iterations: int | Sequence[int]
) -> list[tuple[Ints, ...]]:
    """Draw samples with replacement for each device and local iteration.

    Draw s of device u in round t does not depend on the batch sizes, so that a larger batch extends a smaller one, or
    on the other rounds that are drawn at once.

    Parameters
    ----------
    partition : Partition
        Samples of each device.
    seed : int
        Seed of the run.
    rounds : sequence of (int, ndarray of int, ndarray of int)
        Round t, its devices and their batch sizes.
    iterations : int or sequence of int
        E, of all rounds or of each.

    Returns
    -------
    list of tuple of ndarray of int
        For each round and local iteration, Σ_u S_u positions in the training set, device after device.
    """
    uniforms, owners, sizes = [], [], []
    counts = np.broadcast_to(iterations, len(rounds)).tolist()
    for (t, devices, batch), number in zip(rounds, counts, strict=True):
        most = int(batch.max(initial=0))
        used: Bools | None = None if batch.min(initial=most) == most else np.arange(most) < batch[:, None]
        for iteration in range(number):
            drawn = rng_for(seed, "batch", t, iteration).random((most, devices.size)).T
            uniforms.append(drawn.ravel() if used is None else drawn[used])
            owners.append(devices)
            sizes.append(batch)
    all_owners, all_sizes = np.concatenate(owners), np.concatenate(sizes)
    start = partition.offsets[all_owners]
    held = np.repeat((partition.offsets[all_owners + 1] - start).astype(np.float64), all_sizes)
    # uniforms ≤ 1 − 2⁻⁵³, so uniforms · held < held, even after rounding
    held *= np.concatenate(uniforms)
    rows = partition.indices[np.repeat(start, all_sizes) + held.astype(np.int64)]
    ends = np.cumsum([v.size for v in uniforms]).tolist()
    parts = iter([rows[a:b] for a, b in pairwise([0, *ends])])
    return [tuple(islice(parts, number)) for number in counts]
