"""Check the replies of nodes, and compute merged changes, metrics and gradient statistics from them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from numpy.typing import NDArray

from adelfl.atomic import Weights
from adelfl.flower.protocol import PREFIX, STATISTICS, Report
from adelfl.runtime.backend import Change
from adelfl.theory.gradient_stats import GradientStats
from adelfl.updates import Array, Reason, Shape, UpdateRejected, add_weighted, admit

if TYPE_CHECKING:
    from adelfl.flower.strategy import DeadlineStrategy

log = logging.getLogger("flwr")

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(frozen=True, eq=False)
class Delivery:
    """A reply that passed every check: w_u − w of ``done`` layers (over all local steps), and running statistics."""

    changes: dict[str, Array]
    done: int
    report: Report
    message: Message
    statistics: dict[str, Array] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """The loss that the node reports; NaN if there is none."""
        loss = metrics_of(self.message).get("train-loss")
        return loss if isinstance(loss, float) and math.isfinite(loss) else math.nan


def admitted(
    message: Message, round_: int, most: int, shape: Shape, statistics: Weights, settings: DeadlineStrategy
) -> Delivery:
    """Return what a reply delivers, or raise UpdateRejected if it fails a check.

    Parameters
    ----------
    message : Message
    round_ : int
        Round of the task.
    most : int
        Layers that were assigned, over all local steps.
    shape : Shape
        Layers of the model.
    statistics : dict of str to ndarray
        Running statistics of the model.
    settings : DeadlineStrategy
        Names of records and metrics.
    """
    metrics, L = metrics_of(message), len(shape.layers)
    report = Report.read(metrics, L)
    files = files_of(message, settings.arrayrecord_key)
    depth, changes = admit(shape, round_, report.round, files, metrics.get(settings.weighted_by_key))
    done = report.done
    if type(done) is not int or not depth <= done <= most or depth != min(L, done):
        raise UpdateRejected(Reason.bad_depth, f"{depth} layers, and the report says {str(done)[:20]}")
    return Delivery(changes, done, report, message, _statistics(message, statistics))


def _statistics(message: Message, known: Weights) -> Weights:
    """Return the running statistics of a reply; they must be complete, or missing altogether."""
    if not known or STATISTICS not in message.content.array_records:
        return {}
    files = files_of(message, STATISTICS)
    if files.keys() != known.keys():
        raise UpdateRejected(Reason.unknown_parameter, "other running statistics than the model's")
    shape = Shape.of(known, [list(known)])
    return {name: shape.checked(name, data) for name, data in files.items()}


def average_metrics(replies: Iterable[Message], aggregate: Aggregate | None, weighted_by: str) -> MetricRecord | None:
    """Average the user's own metrics over nodes, by default as Flower does; None without any that fit together."""
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
        return (aggregate or aggregate_metricrecords)(contents, weighted_by)
    except Exception as error:  # numbers for the log must not end a run
        log.warning("metrics could not be averaged: %s", error)
        return None


def metrics_of(message: Message) -> dict[str, Any]:
    """Return the first metrics record of a reply, whatever its name."""
    for record in message.content.metric_records.values():
        return dict(record)
    return {}


def files_of(message: Message, key: str) -> dict[str, bytes]:
    """Return the arrays of a reply as unread files; if there is a single record, its name does not matter."""
    record = message.content.array_records.get(key)
    if record is None:
        others = [r for name, r in message.content.array_records.items() if not name.startswith(PREFIX)]
        record = others[0] if len(others) == 1 else ArrayRecord()
    files = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise UpdateRejected(Reason.unreadable, f"{name!r} is of serialisation {array.stype!r}")
        files[name] = array.data
    return files


def merged(
    updates: Sequence[tuple[Delivery, Weights, NDArray[np.float64]]],
    shape: Shape,
    now: Weights,
    of: Literal["changes", "models"],
) -> Change | None:
    """Merge updates, each with the weights that it started from and its row of A; None if the sum is not finite."""
    total: dict[str, Array] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # each update is finite, their sum may not be
        for d, start, A in updates:
            moved = d.changes
            if of == "models":  # the way from the present weights to the device's model
                moved = {name: np.asarray(change + (start[name] - now[name])) for name, change in moved.items()}
            add_weighted(total, shape.layers, moved, A)
        if not all(np.isfinite(now[name] + change).all() for name, change in total.items()):
            return None
    losses = [d.loss for d, *_ in updates if not math.isnan(d.loss)]
    return Change(total, _mean_statistics([d for d, *_ in updates]), float(np.mean(losses)) if losses else math.nan)


def _mean_statistics(deliveries: Sequence[Delivery]) -> dict[str, Array]:
    """Average running statistics over the nodes that sent them."""
    sent = [d.statistics for d in deliveries if d.statistics]
    means = {name: np.mean([one[name] for one in sent], axis=0, dtype=np.float64) for name in (sent[0] if sent else ())}
    return {
        name: (mean if sent[0][name].dtype.kind == "f" else np.round(mean)).astype(sent[0][name].dtype)
        for name, mean in means.items()
    }


def gradient_stats(
    deliveries: Sequence[Delivery], batches: Sequence[int], shape: Shape, rate: float, steps: int
) -> GradientStats:
    """Estimate σ², ζ² and ‖ḡ‖² of each layer from the updates of one round.

    ζ² and ‖ḡ‖² follow from how far the updates of several nodes are apart. σ², the variance of one sample's gradient,
    follows from the difference of two gradients of the same node, which nodes report when they are new. Without such
    reports σ² is NaN, and the batch noise is not taken out of ζ². An update of several steps counts as their mean; with
    another optimizer than SGD an update is no gradient, but only ratios of these numbers move a plan.

    ``rate`` and ``steps`` are those of the local steps behind a whole update.
    """
    L = len(shape.layers)
    pairs = np.array(
        [n / 2.0 * np.array(d.report.pair) for d, n in zip(deliveries, batches, strict=True) if len(d.report.pair) == L]
    )
    sigma2 = np.median(pairs, axis=0) if pairs.size else np.full(L, np.nan)
    count, noise, squares, of_sum = np.zeros((4, L))
    for l, names in enumerate(shape.layers):
        own = [
            (d.changes, n, max(1, min(steps, d.done // L)))
            for d, n in zip(deliveries, batches, strict=True)
            if all(name in d.changes for name in names)
        ]
        count[l] = len(own)
        noise[l] = sum(1.0 / (n * k) for _, n, k in own)
        for name in names:
            gradients = [np.asarray(changes[name], dtype=np.float64) / (rate * k) for changes, _, k in own]
            squares[l] += sum(float(np.square(g).sum()) for g in gradients)
            of_sum[l] += float(np.square(sum(gradients)).sum()) if gradients else 0.0
    stats = GradientStats.from_devices(count, np.nan_to_num(sigma2), noise, squares, of_sum)
    return replace(stats, sigma2=np.where(np.isfinite(stats.sigma2), sigma2, np.nan))
