"""Devices of a recorded deployment: durations of their replies, and when they were connected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adelfl.errors import ConfigError
from adelfl.planner.beliefs import Timing
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row


@dataclass(frozen=True)
class RecordedReply:
    """One reply: when its task began, seconds not computing, seconds per layer, batch, and reported durations."""

    began: float
    lag: float
    per_layer: float
    batch: int
    timing: Timing


@dataclass(eq=False)
class Device:
    """A device: its replies, the moments at which it was seen to be there or away, and s₀ of its steps."""

    replies: list[RecordedReply] = field(default_factory=list)
    seen: dict[float, bool] = field(default_factory=dict)
    overhead: float = 0.0

    def there(self, now: float) -> bool:
        """Return whether the device is there, by the last evidence."""
        evidence = [t for t in self.seen if t <= now]
        return bool(self.replies and evidence) and self.seen[max(evidence)]

    def back(self, now: float) -> float:
        """Return when the device is there again; infinite for never."""
        later = (t for t, here in self.seen.items() if here and t > now)
        return now if self.there(now) else min(later, default=math.inf) if self.replies else math.inf

    def reply(self, now: float) -> RecordedReply:
        """Return the reply whose task began nearest to a moment."""
        return min(self.replies, key=lambda reply: abs(reply.began - now))

    def noted(self, began: float, seconds: float, z: int, batch: int, lag: float, timing: Timing) -> None:
        """Add a reply to a task; the device was there all the while."""
        end = began + seconds + lag
        self.seen = {t: here for t, here in self.seen.items() if not began <= t <= end} | {began: True, end: True}
        if z > 0 and seconds > 0:
            self.replies.append(RecordedReply(began, lag, seconds / z, min(batch, timing.samples or batch), timing))

    def fit_overhead(self) -> None:
        """Estimate s₀ from batches of several sizes."""
        S, seconds = (np.array([getattr(reply, key) for reply in self.replies]) for key in ("batch", "per_layer"))
        if np.unique(S).size > 2:
            slope, constant = np.polyfit(S, seconds, 1)
            self.overhead = float(np.clip(constant / slope, 0.0, S.max())) if slope > 0 else 0.0


@dataclass(frozen=True, eq=False)
class History:
    """The devices of a deployment, when its first round began, and how long its server took between two rounds."""

    devices: list[Device]
    start: float
    between: float

    @classmethod
    def of(cls, record: RunRecord) -> History:
        """Read a record, which must have logged events."""
        if record.info.clock != "real" or not record.events:
            raise ConfigError(f"{record.folder}: not a Flower run with logged events (events.jsonl)")
        devices = [Device() for _ in record.info.nodes or range(record.info.devices)]
        usual, rows = int(record.info.config["flower"]["batch"]), iter(record.rounds[1:])
        # What arrived, until the row of its merge tells the batch. What is not merged is of the opening round, or of a
        # method that always asks for the same batch.
        pending: dict[int, tuple[Any, ...]] = {}

        def take(batches: Iterable[tuple[int, int]]) -> None:
            """Note what arrived of devices, with the batch sizes of their tasks, unless they sat out."""
            for u, batch in batches:
                began, seconds, z, lag, timing = pending.pop(u, (0.0, None, 0, 0.0, []))
                if batch > 0 and timing is None:
                    devices[u].seen[began] = False
                elif batch > 0 and seconds is not None:
                    devices[u].noted(began, seconds, z, batch, lag, Timing.of(timing))

        gaps, before = [], float(record.events[0]["now"])
        for entry in record.events:
            now, event = float(entry["now"]), entry["event"]
            cohorts = [*entry["cohorts"], event["devices"] if event["kind"] == "joined" else []]
            for u in {u for cohort in cohorts for u in cohort}:
                devices[u].seen[now] = True
            if event["kind"] == "arrivals":
                take((u, usual) for u in event["devices"])
                values = zip(event["seconds"], event["z"], event["upload"], event["timings"], strict=True)
                pending |= {u: (event["began"], *own) for u, own in zip(event["devices"], values, strict=True)}
            elif event["kind"] == "late":
                timing = Timing.of(event["timing"])
                seconds, lag = event["seconds"], timing.setup + timing.outside
                devices[event["device"]].noted(now - seconds - lag, seconds, event["z"], event["batch"], lag, timing)
            elif event["kind"] == "merged":
                take(_batches(next(rows)))
                gaps.append(now - before)
            before = now
        for row in rows:
            take(_batches(row))
        take((u, usual) for u in list(pending))
        for device in devices:
            device.fit_overhead()
        return cls(devices, float(record.events[0]["now"]), float(np.median(gaps)) if gaps else 0.0)


def _batches(row: Row) -> Iterable[tuple[int, int]]:
    """Return devices and batch sizes of a merge; a row without devices is of all of them."""
    return zip(row.devices or range(len(row.batch)), row.batch, strict=True)
