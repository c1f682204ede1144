"""Check the replies of nodes, and compute merged changes, metrics and gradient statistics from them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from adelfl.array_types import Floats
from adelfl.atomic import Weights
from adelfl.flower.exchange import Reply
from adelfl.flower.protocol import PREFIX, STATISTICS, Report, Task, is_statistic
from adelfl.runtime.backend import Change
from adelfl.theory.gradient_stats import GradientStats
from adelfl.updates import Reason, Shape, UpdateRejected, add_weighted, admit

if TYPE_CHECKING:
    from adelfl.flower.strategy import DeadlineStrategy

log = logging.getLogger("flwr")

Aggregate = Callable[[list[RecordDict], str], MetricRecord]


@dataclass(frozen=True, eq=False)
class Delivery:
    """A reply that passed every check."""

    changes: Weights
    """w_u − w of the layers that were delivered."""
    done: int
    """Layers finished over all local steps."""
    report: Report
    message: Message
    statistics: Weights
    """Running statistics of the node's model."""
    batch: int
    """Samples per local step, as requested."""
    seconds: float
    """Duration of the round trip."""
    start: Weights
    """Weights that the node started from."""

    @property
    def loss(self) -> float:
        """The loss that the node reports; NaN if there is none."""
        loss = metrics_of(self.message).get("train-loss")
        return loss if isinstance(loss, float) and math.isfinite(loss) else math.nan


def admitted(reply: Reply, task: Task, shape: Shape, start: Weights, settings: DeadlineStrategy) -> Delivery:
    """Return what the reply to a task delivers, or raise UpdateRejected if it fails a check."""
    if isinstance(reply.answer, str):
        raise UpdateRejected(Reason.no_content, reply.answer)
    metrics, L = metrics_of(reply.answer), len(shape.layers)
    report = Report.read(metrics, L)
    files = files_of(reply.answer, settings.arrayrecord_key)
    depth, changes = admit(shape, task.round, report.round, files, metrics.get(settings.weighted_by_key))
    done = report.done
    if type(done) is not int or not depth <= done <= L * task.iterations or depth != min(L, done):
        raise UpdateRejected(Reason.bad_depth, f"{depth} layers, and the report says {str(done)[:20]}")
    statistics = _statistics(reply.answer, start)
    return Delivery(changes, done, report, reply.answer, statistics, task.batch, reply.seconds, start)


def _statistics(message: Message, weights: Weights) -> Weights:
    """Return the running statistics of a reply, which must be complete or missing."""
    known = {name: value for name, value in weights.items() if is_statistic(name)}
    if not known or STATISTICS not in message.content.array_records:
        return {}
    files = files_of(message, STATISTICS)
    if files.keys() != known.keys():
        raise UpdateRejected(Reason.unknown_parameter, "other running statistics than the model's")
    shape = Shape.of(known, [list(known)])
    return {name: shape.checked(name, data) for name, data in files.items()}


def average_metrics(replies: Iterable[Message], aggregate: Aggregate | None, weighted_by: str) -> MetricRecord | None:
    """Average the user's metrics over nodes, by default as Flower does; None if there are none, or if that fails."""

    def own(record: MetricRecord) -> MetricRecord:
        return MetricRecord({key: value for key, value in record.items() if not key.startswith(PREFIX)})

    contents = [RecordDict({k: own(record) for k, record in r.content.metric_records.items()}) for r in replies]
    if not contents:
        return None
    try:
        return (aggregate or aggregate_metricrecords)(contents, weighted_by)
    except Exception as error:  # metrics must not end a run
        log.warning("metrics could not be averaged: %s", error)
        return None


def metrics_of(message: Message) -> dict[str, Any]:
    """Return the first metrics record of a reply."""
    return dict(next(iter(message.content.metric_records.values()), {}))


def files_of(message: Message, key: str) -> dict[str, bytes]:
    """Return the arrays of a reply as unread files, from the record ``key`` or the only one."""
    record = message.content.array_records.get(key)
    if record is None:
        others = [r for name, r in message.content.array_records.items() if not name.startswith(PREFIX)]
        record = others[0] if len(others) == 1 else ArrayRecord()
    files = {}
    for name, array in record.items():
        if array.stype != "numpy.ndarray":
            raise UpdateRejected(Reason.unreadable, f"{name!r} has the serialisation {array.stype!r}")
        files[name] = array.data
    return files


def merged(
    updates: Sequence[tuple[Delivery, Floats]], shape: Shape, now: Weights, of: Literal["changes", "models"]
) -> Change | None:
    """Merge updates, each with its row of A; None if the sum is not finite."""
    total: Weights = {}
    with np.errstate(over="ignore", invalid="ignore"):  # the sum of finite updates may be infinite
        for d, A in updates:
            changes = d.changes
            if of == "models":  # from the present weights to the device's model
                changes = {name: np.asarray(change + (d.start[name] - now[name])) for name, change in changes.items()}
            add_weighted(total, shape.layers, changes, A)
        if not all(np.isfinite(now[name] + change).all() for name, change in total.items()):
            return None
    losses = [d.loss for d, _ in updates if not math.isnan(d.loss)]
    statistics = _averaged([d.statistics for d, _ in updates if d.statistics])
    return Change(total, statistics, float(np.mean(losses)) if losses else math.nan)


def _averaged(sent: Sequence[Weights]) -> Weights:
    """Average the running statistics of nodes."""
    means = {name: np.mean([one[name] for one in sent], axis=0, dtype=np.float64) for name in (sent[0] if sent else ())}
    return {
        name: (mean if sent[0][name].dtype.kind == "f" else np.round(mean)).astype(sent[0][name].dtype)
        for name, mean in means.items()
    }


def gradient_stats(deliveries: Sequence[Delivery], shape: Shape, rate: float, steps: int) -> GradientStats:
    """Estimate σ², ζ² and ‖ḡ‖² of each layer from the updates of one round.

    ζ² and ‖ḡ‖² follow from the differences between the updates of several nodes. σ², the variance of one sample's
    gradient, follows from the difference of two gradients of one node, which new nodes report. Without such reports, σ²
    is NaN, and ζ² includes the batch noise. An update of several steps counts as their mean. If the optimizer is not
    SGD, updates are not gradients, but a plan depends only on ratios of these numbers.

    ``rate`` and ``steps`` are the learning rate and the number of local steps of a whole update.
    """
    L = len(shape.layers)
    pairs = np.array([d.batch / 2.0 * np.array(d.report.pair) for d in deliveries if len(d.report.pair) == L])
    sigma2 = np.median(pairs, axis=0) if pairs.size else np.full(L, np.nan)
    count, noise, squares, of_sum = np.zeros((4, L))
    for l, names in enumerate(shape.layers):
        sent = [d for d in deliveries if all(name in d.changes for name in names)]
        own = [(d, max(1, min(steps, d.done // L))) for d in sent]
        count[l] = len(own)
        noise[l] = sum(1.0 / (d.batch * k) for d, k in own)
        for name in names:
            gradients = [np.asarray(d.changes[name], dtype=np.float64) / (rate * k) for d, k in own]
            squares[l] += sum(float(np.square(g).sum()) for g in gradients)
            of_sum[l] += float(np.square(sum(gradients)).sum()) if gradients else 0.0
    stats = GradientStats.from_sums(count, np.nan_to_num(sigma2), noise, squares, of_sum)
    return replace(stats, sigma2=np.where(np.isfinite(stats.sigma2), sigma2, np.nan))
