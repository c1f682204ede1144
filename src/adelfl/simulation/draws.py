"""The luck of a round: who takes part, how long layers take, which samples are drawn. The same for every strategy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adelfl.data.partition import Partition
from adelfl.latency import Exponential, LatencyModel
from adelfl.seeds import rng_for
from adelfl.strategies.base import Floats, Ints, Orders, Progress, Setting

Bools = NDArray[np.bool_]


def draw_cohort(setting: Setting, seed: int, t: int) -> Ints:
    """The devices of round t in ascending order: all of them, or a random cohort."""
    if setting.cohort is None or setting.cohort == setting.devices:
        return np.arange(setting.devices)
    chosen = rng_for(seed, "cohort", t).choice(setting.devices, setting.cohort, replace=False, shuffle=False)
    return np.sort(chosen)


def draw_progress(
    setting: Setting,
    latency: LatencyModel,
    seed: int,
    t: int,
    devices: Ints,
    orders: Orders,
    dropout: float = 0.0,
) -> tuple[Progress, float]:
    """How far each device comes by the deadline, and when the round ends (seconds after its start).

    With some probability a device drops out of the round: nothing comes from it, and nobody knows that beforehand. Who
    waits for everybody learns of it and goes on without it.
    """
    L, E = setting.layers, setting.local_iterations
    takes_part = orders.batch > 0
    if orders.guaranteed:
        return _everything(takes_part, L, E), orders.deadline
    stays = np.ones(devices.size, dtype=np.bool_)
    if dropout > 0:
        stays = rng_for(seed, "dropout", t).random(setting.devices)[devices] >= dropout
    cost = orders.batch if orders.width is None else orders.batch * orders.width**2
    P, B = setting.compute[devices], setting.upload[devices]
    rng = rng_for(seed, "latency", t)
    finished = np.cumsum(latency.layer_times(rng, cost / P, E * L), axis=1)
    upload = latency.upload_times(rng, B)
    if np.isinf(orders.deadline):
        ends = np.where(takes_part & stays, finished[:, -1] + upload, 0.0)
        return _everything(takes_part & stays, L, E), float(ends.max())
    left = orders.deadline - upload
    z = np.where(takes_part & stays, (finished <= left[:, None]).sum(axis=1), 0)
    rate = np.where(takes_part, P * np.maximum(left, 0.0) / np.maximum(cost, 1e-300), 0.0)
    if isinstance(latency, Exponential):
        return Progress(z, L, E, rate), orders.deadline

    def chances() -> Floats:
        found = latency.delivery(np.maximum(cost, 1e-300) / P, np.maximum(left, 0.0), L)
        return np.where(takes_part[:, None], found, 0.0)

    return Progress(z, L, E, rate, chances), orders.deadline


def _everything(takes_part: Bools, layers: int, iterations: int) -> Progress:
    """Whoever takes part finishes all layers."""
    z, rate = np.where(takes_part, iterations * layers, 0), np.where(takes_part, np.inf, 0.0)
    return Progress(z, layers, iterations, rate)


def draw_rows(
    partition: Partition, seed: int, t: int, devices: Ints, sizes: Ints, iterations: int
) -> tuple[NDArray[np.int64], ...]:
    """Samples with replacement for each device and local iteration, device after device.

    Draw s of device u is the same number whatever the batch sizes are, so a larger batch extends a smaller one.
    """
    most = int(sizes.max(initial=0))
    start = partition.offsets[devices]
    held = partition.offsets[devices + 1] - start
    used: Bools = np.arange(most) < sizes[:, None]
    found = []
    for iteration in range(iterations):
        luck = rng_for(seed, "batch", t, iteration).random((most, devices.size))
        position = start + (luck * held).astype(np.int64)  # luck ≤ 1 − 2⁻⁵³, so luck · held < held, rounded or not
        found.append(partition.indices[position.T[used]])
    return tuple(found)
