"""Devices of a recorded deployment: durations of their replies, and times at which they were connected."""

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
    """One reply: start of its task, seconds besides computing, seconds per layer, batch, and reported durations."""

    began: float
    lag: float
    per_layer: float
    batch: int
    timing: Timing


@dataclass(eq=False)
class Device:
    """A device: its replies, the times at which it was known to be present or absent, and s₀ of its steps."""

    replies: list[RecordedReply] = field(default_factory=list)
    seen: dict[float, bool] = field(default_factory=dict)
    overhead: float = 0.0

    def there(self, now: float) -> bool:
        """Return whether the device is present, by the last known state."""
        earlier = [t for t in self.seen if t <= now]
        return bool(self.replies and earlier) and self.seen[max(earlier)]

    def back(self, now: float) -> float:
        """Return the time from which the device is present; infinite for never."""
        later = (t for t, present in self.seen.items() if present and t > now)
        return now if self.there(now) else min(later, default=math.inf) if self.replies else math.inf

    def reply(self, now: float) -> RecordedReply:
        """Return the reply whose task began nearest to a time."""
        return min(self.replies, key=lambda reply: abs(reply.began - now))

    def add(self, began: float, seconds: float, z: int, batch: int, lag: float, timing: Timing) -> None:
        """Add a reply; the device was present from the start of the task to the reply."""
        end = began + seconds + lag
        self.seen = {t: here for t, here in self.seen.items() if not began <= t <= end} | {began: True, end: True}
        if z > 0 and seconds > 0:
            self.replies.append(RecordedReply(began, lag, seconds / z, min(batch, timing.samples or batch), timing))

    def fit_overhead(self) -> None:
        """Estimate s₀ from replies with several batch sizes."""
        S, seconds = (np.array([getattr(reply, key) for reply in self.replies]) for key in ("batch", "per_layer"))
        if np.unique(S).size > 2:
            slope, constant = np.polyfit(S, seconds, 1)
            self.overhead = float(np.clip(constant / slope, 0.0, S.max())) if slope > 0 else 0.0


@dataclass(frozen=True, eq=False)
class History:
    """The devices of a deployment, the start of its first round, and the server's seconds between two rounds."""

    devices: list[Device]
    start: float
    between: float

    @classmethod
    def of(cls, record: RunRecord) -> History:
        """Read a record of a Flower run."""
        if record.info.clock != "real" or not record.events:
            raise ConfigError(f"{record.folder}: not a Flower run with logged events (events.jsonl); choose another")
        devices = [Device() for _ in record.info.nodes or range(record.info.devices)]
        usual, rows = int(record.info.config["flower"]["batch"]), iter(record.rounds[1:])
        # Arrivals before the row of their merge, which has the batch sizes. Arrivals that are never merged belong to
        # the opening round, or to a method with the same batch size in all rounds.
        pending: dict[int, tuple[Any, ...]] = {}

        def take(batches: Iterable[tuple[int, int]]) -> None:
            """Add the pending arrivals of devices, given their batch sizes; 0 for a device that sat out."""
            for u, batch in batches:
                began, seconds, z, lag, timing = pending.pop(u, (0.0, None, 0, 0.0, []))
                if batch > 0 and timing is None:
                    devices[u].seen[began] = False
                elif batch > 0 and seconds is not None:
                    devices[u].add(began, seconds, z, batch, lag, Timing.of(timing))

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
                devices[event["device"]].add(now - seconds - lag, seconds, event["z"], event["batch"], lag, timing)
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
    """Return the devices of a merge and their batch sizes."""
    return zip(row.devices or range(len(row.batch)), row.batch, strict=True)
