"""The luck of a round: who takes part, how long layers take, which samples are drawn. The same for every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from adelfl.data.partition import Partition
from adelfl.latency import Exponential, delivery_of, layer_times_of, of_devices, upload_times_of
from adelfl.seeds import rng_for
from adelfl.simulation.world import World
from adelfl.strategies.base import Floats, Ints, Orders, Progress, Setting, Strategy

Bools = NDArray[np.bool_]


def draw_cohort(setting: Setting, seed: int, t: int) -> Ints:
    """The devices of round t in ascending order: all of them, or a random cohort."""
    if setting.cohort is None or setting.cohort == setting.devices:
        return setting.everybody
    chosen = rng_for(seed, "cohort", t).choice(setting.devices, setting.cohort, replace=False, shuffle=False)
    return np.sort(chosen)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A round before it is trained.

    Attributes
    ----------
    progress : Progress
        How far each device came by the deadline.
    length : float
        Seconds from its start to its end.
    seconds, upload : ndarray, shape (U,)
        How long each computed, and how long a whole upload took (of a part of it, what the whole would have), as far as
        a server can see: of a device from which nothing came, the time that it was thought to have, and NaN.
    """

    progress: Progress
    length: float
    seconds: Floats
    upload: Floats


def draw_round(strategy: Strategy, world: World, t: int, now: float, devices: Ints, orders: Orders) -> Drawn:
    """How far each device comes by the deadline, and when the round ends.

    A device that drops out sends nothing, and nobody knows that beforehand. Who waits for everybody learns of it and
    goes on without it.
    """
    setting = strategy.setting
    L, E = setting.layers, setting.local_iterations
    asked = orders.batch > 0
    if orders.guaranteed:
        unseen = np.full(devices.size, np.nan)
        return Drawn(_everything(asked, L, E), orders.deadline, np.zeros(devices.size), unseen)
    takes_part = asked & world.there(devices, t, now)
    # A submodel is as much smaller to train as to send.
    scale = 1.0 if orders.width is None else orders.width**2
    cost = orders.batch * scale
    rng, when = rng_for(world.seed, "latency", t), f"round {t + 1}"
    latency = of_devices(world.latency, devices)
    times = layer_times_of(latency, rng, cost / world.speed(devices, now), E * L, L, when)
    finished = np.cumsum(times, axis=1)
    upload = upload_times_of(latency, rng, world.upload[devices] * scale, L, when)
    whole = upload if upload.ndim == 1 else upload[:, -1]
    if np.isinf(orders.deadline):
        ends = np.where(takes_part, finished[:, -1] + whole, 0.0)
        return Drawn(_everything(takes_part, L, E), float(ends.max()), finished[:, -1], whole)
    P, B = strategy.believed(devices)
    B = B * scale
    T = orders.deadline
    # Of what is finished by then, the upload takes as long as it is large.
    sending = upload[:, None] if upload.ndim == 1 else upload[:, np.minimum(np.arange(E * L), L - 1)]
    z = np.where(takes_part, (finished <= T - sending).sum(axis=1), 0)
    left = np.maximum(T - B, 0.0)
    rate = np.where(asked, P * left / np.maximum(cost, 1e-300), 0.0)
    chances, absent = None, strategy.absent(devices)
    if type(setting.latency) is not Exponential or absent.any():  # a class derived from it has chances of its own
        believed = of_devices(setting.latency, devices)

        def chances() -> Floats:
            mean, deadlines = np.maximum(cost, 1e-300) / P, np.full(devices.size, T)
            found = delivery_of(believed, mean, B, deadlines, L, when)
            return np.where((asked & (B < T))[:, None], (1.0 - absent)[:, None] * found, 0.0)

    through = z >= E * L
    sent = np.take_along_axis(sending, np.maximum(z - 1, 0)[:, None], axis=1)[:, 0] if upload.ndim == 2 else upload
    seconds = np.where(z > 0, np.where(through, finished[:, -1], T - sent), left)
    length = T
    if orders.early and asked.any() and through[asked].all():
        length = float((finished[:, -1] + whole)[asked].max())
    return Drawn(Progress(z, L, E, rate, chances, orders.batch), length, seconds, np.where(z > 0, whole, np.nan))


def _everything(takes_part: Bools, layers: int, iterations: int) -> Progress:
    """Whoever takes part finishes all layers."""
    return Progress(takes_part * (iterations * layers), layers, iterations, np.where(takes_part, np.inf, 0.0))


def draw_rows(
    partition: Partition, seed: int, rounds: Sequence[tuple[int, Ints, Ints]], iterations: int
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
    iterations : int
        E.

    Returns
    -------
    list of tuple of ndarray of int
        For each round and local iteration, Σ_u S_u positions in the training set.
    """
    luck, who, sizes = [], [], []
    for t, devices, batch in rounds:
        most = int(batch.max(initial=0))
        used: Bools | None = None if (batch == most).all() else np.arange(most) < batch[:, None]
        for iteration in range(iterations):
            drawn = rng_for(seed, "batch", t, iteration).random((most, devices.size)).T
            luck.append(drawn.ravel() if used is None else drawn[used])
            who.append(devices)
            sizes.append(batch)
    everyone, many = np.concatenate(who), np.concatenate(sizes)
    start = partition.offsets[everyone]
    held = np.repeat(partition.offsets[everyone + 1] - start, many)
    # luck ≤ 1 − 2⁻⁵³, so luck · held < held, rounded or not
    rows = partition.indices[np.repeat(start, many) + (np.concatenate(luck) * held).astype(np.int64)]
    ends = np.cumsum([v.size for v in luck]).tolist()
    parts = [rows[a:b] for a, b in pairwise([0, *ends])]
    return [tuple(parts[k : k + iterations]) for k in range(0, len(parts), iterations)]
