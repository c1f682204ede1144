"""Random draws of a round, the same for every strategy: participation, layer times, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from adelfl.data.partition import Partition
from adelfl.latency import layer_times_of, of_devices, upload_times_of
from adelfl.seeds import rng_for
from adelfl.simulation.world import World
from adelfl.strategies.actions import Floats, Ints, Tasks

Bools = NDArray[np.bool_]

_ROUNDING = 1e-9  # share of a round by which sums of times may be off
_LUCKY, _SOME = 3, 20  # a device does not finish more than 3 times and 20 pieces above what is expected


def draw_cohort(devices: int, cohort: int | None, seed: int, k: int) -> Ints:
    """Return the devices of the k-th cohort in ascending order: all of them, or a random choice."""
    if cohort is None or cohort == devices:
        return np.arange(devices)
    return np.sort(rng_for(seed, "cohort", k).choice(devices, cohort, replace=False, shuffle=False))


def draw_available(world: World, devices: int, cohort: int, now: float, k: int) -> Ints:
    """Return the devices of the k-th cohort: a random choice of those that are available, and others if they are few.

    It looks at some devices at random, and at more of them as long as too few are available.
    """
    looked = min(devices, 4 * cohort)
    while True:
        some = rng_for(world.seed, "cohort", k).choice(devices, looked, replace=False)
        available = world.available(some, now)
        assert available is not None
        if looked == devices or np.count_nonzero(available) >= cohort:
            return np.sort(some[np.argsort(~available, kind="stable")][:cohort])
        looked = min(devices, 4 * looked)


@dataclass(frozen=True, eq=False)
class Work:
    """Part of some tasks that their devices complete.

    Attributes
    ----------
    z : ndarray of int, shape (U,)
        Layers finished in time, over all steps.
    length : float
        Seconds until the last of them is done, or the cutoff.
    done : ndarray, shape (U,)
        Seconds until each of them is done.
    seconds, upload : ndarray, shape (U,)
        How long each computed, and how long a whole upload took (of a part of it, what the whole would have); NaN for a
        device from which nothing came.
    """

    z: Ints
    length: float
    done: Floats
    seconds: Floats
    upload: Floats


def draw_work(world: World, tasks: Tasks, number: int, now: float, layers: int) -> Work:
    """Draw how far each device comes by the cutoff, and when that is known.

    A device that drops out, or is not available when it begins or when it is done, sends nothing, which is not known
    beforehand. With no cutoff, that is noticed, and it is not waited for; if none is left, by the time at which all
    would have been done.
    """
    L, T, devices = layers, tasks.cutoff, tasks.devices
    assigned, most = tasks.batch > 0, L * tasks.most_steps
    if world.unhurried:
        nothing = np.full(devices.size, np.nan)
        return Work(assigned * (L * tasks.steps), T, np.full(devices.size, T), np.zeros(devices.size), nothing)
    total = L * tasks.each_steps
    takes_part = assigned & world.there(devices, number, now)
    # A submodel is as much smaller to train as to send.
    scale = 1.0 if tasks.width is None else tasks.width**2
    rng, when = rng_for(world.seed, "latency", number), f"round {number + 1}"
    latency = of_devices(world.latency, devices)
    samples = (tasks.batch + world.overhead[devices]) * scale
    times = layer_times_of(latency, rng, samples / world.speed(devices, now), most, L, when)
    finished = np.cumsum(times, axis=1)
    computed = finished[np.arange(devices.size), total - 1]
    upload = upload_times_of(latency, rng, world.upload[devices] * scale, L, when)
    # Of what is finished by then, the upload takes as long as it is large.
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
    if tasks.enough is not None:  # T is the end of a device, up to rounding
        z = np.where(takes_part & (ends <= T), total, z)
    through = z >= total
    sent = np.take_along_axis(sending, np.maximum(z - 1, 0)[:, None], axis=1)[:, 0] if sending.shape[1] > 1 else whole
    seconds = np.where(z > 0, np.where(through, computed, T - sent), np.nan)
    early = tasks.early and assigned.any() and through[assigned].all()
    length = float(ends[assigned].max()) if early else T
    return Work(z, length, np.where(through, ends, T), seconds, np.where(z > 0, whole, np.nan))


def draw_chunks(world: World, tasks: Tasks, chunk: int, number: int, now: float, layers: int) -> tuple[Tasks, Work]:
    """Draw how many pieces of their batches devices finish by the cutoff, and cut the batches to them.

    A piece takes as long as a batch of its size would, with the overhead and the random time of one. What is not
    finished in time is lost.
    """
    devices, T, when = tasks.devices, tasks.cutoff, f"round {number + 1}"
    takes_part = (tasks.batch > 0) & world.there(devices, number, now)
    rng, latency = rng_for(world.seed, "latency", number), of_devices(world.latency, devices)
    mean = (chunk + world.overhead[devices]) / world.speed(devices, now)
    pieces = -(-tasks.batch // chunk)
    likely = math.ceil(_LUCKY * T / (layers * float(mean.min(initial=np.inf)))) + _SOME
    most = max(1, min(int(pieces.max(initial=1)), likely))
    ends = np.cumsum(layer_times_of(latency, rng, mean, most * layers, layers, when), axis=1)[:, layers - 1 :: layers]
    upload = upload_times_of(latency, rng, world.upload[devices], layers, when)
    whole = world.lead(devices, now + T, upload if upload.ndim == 1 else upload[:, -1])
    if (available := world.available(devices, now + T)) is not None:
        takes_part &= available
    done = np.where(takes_part, np.minimum((ends <= (T - whole)[:, None]).sum(axis=1), pieces), 0)
    some = done > 0
    work = Work(
        some * layers, T, np.full(devices.size, T), np.where(some, T - whole, np.nan), np.where(some, whole, np.nan)
    )
    return replace(tasks, batch=np.minimum(tasks.batch, done * chunk)), work


def fitted(world: World, tasks: Tasks, number: int, now: float, layers: int) -> Tasks:
    """Cut each batch to the largest that its device finishes by the cutoff, with the times that will be drawn.

    A device that does not finish one sample keeps a batch of one, and delivers the layers that it does finish.
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
    """Samples with replacement for each device and local iteration, device after device.

    Draw s of device u in round t is the same number whatever the batch sizes are, so a larger batch extends a smaller
    one, and whichever rounds are drawn at once.

    Parameters
    ----------
    partition : Partition
        Who holds what.
    seed : int
        Of the run.
    rounds : sequence of (int, ndarray of int, ndarray of int)
        Round t, its devices and their batch sizes.
    iterations : int or sequence of int
        E, of all rounds or of each.

    Returns
    -------
    list of tuple of ndarray of int
        For each round and local iteration, Σ_u S_u positions in the training set.
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
    everyone, many = np.concatenate(owners), np.concatenate(sizes)
    start = partition.offsets[everyone]
    held = np.repeat((partition.offsets[everyone + 1] - start).astype(np.float64), many)
    # uniforms ≤ 1 − 2⁻⁵³, so uniforms · held < held, rounded or not
    held *= np.concatenate(uniforms)
    rows = partition.indices[np.repeat(start, many) + held.astype(np.int64)]
    ends = np.cumsum([v.size for v in uniforms]).tolist()
    parts = iter([rows[a:b] for a, b in pairwise([0, *ends])])
    return [tuple(islice(parts, number)) for number in counts]
