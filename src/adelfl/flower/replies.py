"""What is in a reply, before anybody has checked it; and what two honest ones tell of the gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from adelfl.flower.protocol import PREFIX
from adelfl.planner import Constants
from adelfl.theory.gradient_stats import GradientStats, curvature_of
from adelfl.updates import Array, Merge, Reason, Shape, Update, UpdateRejected

log = logging.getLogger("flwr")

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


def average_metrics(replies: Iterable[Message], aggregate: Aggregate, weighted_by: str) -> MetricRecord | None:
    """The users' own metrics over nodes; None where there are none, or they do not fit together."""
    contents = []
    for reply in replies:
        own = {
            name: MetricRecord({key: value for key, value in record.items() if not key.startswith(PREFIX)})
            for name, record in reply.content.metric_records.items()
        }
        contents.append(RecordDict(dict(own)))
    if not contents:
        return None
    try:
        return aggregate(contents, weighted_by)
    except Exception as trouble:  # numbers for the log must not end a run
        log.warning("metrics could not be averaged: %s", trouble)
        return None


def metrics_of(message: Message) -> dict[str, Any]:
    """The first metrics record of a reply, whatever its name; of equal names the last counts."""
    for record in message.content.metric_records.values():
        return dict(record)
    return {}


def files_of(message: Message, key: str) -> dict[str, bytes]:
    """The arrays of a reply as files, unread; of one that has a single record, whatever its name."""
    record = message.content.array_records.get(key)
    if record is None:
        others = list(message.content.array_records.values())
        record = others[0] if len(others) == 1 else ArrayRecord()
    found = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise UpdateRejected(Reason.unreadable, f"{name!r} is of serialisation {array.stype!r}")
        found[name] = array.data
    return found


def moved_by(
    counting: Iterable[tuple[Update, NDArray[np.float64]]], weights: Mapping[str, Array], shape: Shape
) -> dict[str, Array] | None:
    """The weights, moved by updates that count so much in each layer; None if they would not be finite."""
    merge = Merge[Array](shape.layers)
    with np.errstate(over="ignore", invalid="ignore"):  # each update is finite, their sum may not be
        for update, A in counting:
            merge.add(update.changes, A)
        moved = {name: np.asarray(weights[name] + change) for name, change in merge.total.items()}
    if not all(np.isfinite(value).all() for value in moved.values()):
        return None
    return dict(weights) | moved


def estimate(found: Mapping[int, list[dict[str, Array]]], shape: Shape, batch: int, rate: float) -> Constants | None:
    """σ² and G² per layer from two updates of each node at the same weights; None if nobody sent two.

    With another optimizer than SGD an update is no gradient, but only the ratio of the two numbers moves a plan.
    """
    differences, sizes = [], []
    L = len(shape.layers)
    one_sample, squares = np.zeros(L), np.zeros(L)
    total: dict[str, Array] = {}
    luck: list[list[Array]] = [[] for _ in range(L)]
    whole = {name for layer in shape.layers for name in layer}
    for updates in found.values():
        if len(updates) < 2 or any(set(u) != whole for u in updates[:2]):
            continue
        one, other = ({n: v.astype(np.float64) / rate for n, v in u.items()} for u in updates[:2])
        apart = [sum(float(np.square(one[n] - other[n]).sum()) for n in layer) for layer in shape.layers]
        differences.append(sum(apart))
        sizes.append([sum(float(np.square(one[n] + other[n]).sum()) / 4.0 for n in layer) for layer in shape.layers])
        for l, layer in enumerate(shape.layers):
            luck[l].append(np.concatenate([(one[n] - other[n]).ravel() for n in layer]) * (batch / 2.0) ** 0.5)
        one_sample += batch / 2.0 * np.array(apart)
        squares += np.array(sizes[-1])
        for n in whole:
            total[n] = total.get(n, 0.0) + (one[n] + other[n]) / 2.0
    if not differences:
        return None
    devices = np.full(L, len(differences))
    of_sum = [sum(float(np.square(total[n]).sum()) for n in layer) for layer in shape.layers]
    constants = Constants.from_pairs(differences, sizes, batch)
    if len(differences) < 2:
        return constants
    spread = GradientStats.from_pairs(devices, one_sample, devices / (2.0 * batch), squares, of_sum)
    inner = [np.stack(layer) @ np.stack(layer).T for layer in luck]
    return replace(constants, spread=replace(spread, curvature=np.array([curvature_of(g) for g in inner])))
