"""What server and client say to each other in a round, and the names under which they say it.

    server → client    the weights, and a :class:`Task` in the configuration record
    client → server    the changes w_u − w of the layers that it finished, and a :class:`Report` among the metrics

Durations only, never moments: each side counts on its own monotonic clock, so wrong wall clocks do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from adelfl.errors import ConfigError

PREFIX = "adelfl-"
"""Of every key that is ours; whatever else is in a record is the user's."""

Values = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What a node is asked to do.

    Attributes
    ----------
    round : int
        From 1; 0 while nodes are measured.
    batch, iterations : int
        Samples per local iteration, and how many iterations.
    rate : float
        Learning rate.
    seconds : float
        After the message's arrival, when computing has to end; infinite to finish whatever it takes.
    layers : tuple of tuple of str
        Names of parameters, input side first.
    pace : tuple of float
        Seconds per sample that the node's layers took so far, in the order of backpropagation; empty if unknown. A
        layer that is not expected to be ready in time is not begun.
    oversample : bool
        Whether samples repeat where the batch is larger than the node's data; otherwise the batch is all of it.
    """

    round: int
    batch: int
    iterations: int
    rate: float
    seconds: float
    layers: tuple[tuple[str, ...], ...]
    pace: tuple[float, ...] = ()
    oversample: bool = False

    def write(self) -> Values:
        """As entries of a configuration record."""
        return {
            f"{PREFIX}round": self.round,
            f"{PREFIX}batch": self.batch,
            f"{PREFIX}iterations": self.iterations,
            f"{PREFIX}rate": self.rate,
            f"{PREFIX}seconds": self.seconds,
            f"{PREFIX}layer-sizes": [len(layer) for layer in self.layers],
            f"{PREFIX}layer-names": [name for layer in self.layers for name in layer],
            f"{PREFIX}pace": [float(value) for value in self.pace],
            f"{PREFIX}oversample": self.oversample,
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Task:
        """From a configuration record; the server that wrote it is trusted."""
        said = {key.removeprefix(PREFIX): value for key, value in record.items() if key.startswith(PREFIX)}
        try:
            ends = list(accumulate(said.pop("layer-sizes"), initial=0))
            names = said.pop("layer-names")
            layers = tuple(tuple(names[begin:end]) for begin, end in pairwise(ends))
            return cls(layers=layers, **said | {"pace": tuple(said["pace"])})
        except (KeyError, TypeError) as missing:
            raise ConfigError(
                f"this message is no task of adelfl.flower.DeadlineStrategy ({missing}); "
                "is it the strategy of the ServerApp?"
            ) from None


@dataclass(frozen=True)
class Report:
    """What a node says of its work; anything may be in it, so the server believes only what makes sense.

    Attributes
    ----------
    round : object
        The task's.
    done : object
        Layers finished over all iterations.
    setup, compute, aside, total : float
        Seconds from the message's arrival to the first batch, of computing, of checks that are made once, and from
        arrival to reply.
    times : tuple of float
        Seconds of the first iteration: forward pass, then each finished layer, last layer first.
    samples : int
        The batch size that those times are of.
    rows : int
        How many samples the node has; 0 if it does not say. No larger batch is asked for.
    """

    round: object
    done: object
    setup: float
    compute: float
    aside: float
    total: float
    times: tuple[float, ...]
    samples: int
    rows: int = 0

    def write(self) -> Values:
        """As entries of a metrics record."""
        return {
            f"{PREFIX}round": self.round,
            f"{PREFIX}done": self.done,
            f"{PREFIX}setup": float(self.setup),
            f"{PREFIX}compute": float(self.compute),
            f"{PREFIX}aside": float(self.aside),
            f"{PREFIX}total": float(self.total),
            f"{PREFIX}times": [float(value) for value in self.times],
            f"{PREFIX}samples": self.samples,
            f"{PREFIX}rows": self.rows,
        }

    @classmethod
    def read(cls, record: Mapping[str, Any], layers: int) -> Report:
        """From a metrics record that nobody has looked at yet; times that cannot be are left out."""
        times = record.get(f"{PREFIX}times", [])
        samples = record.get(f"{PREFIX}samples")
        right = (
            isinstance(times, list)
            and 1 <= len(times) <= layers + 1
            and all(_is_duration(value) for value in times)
            and type(samples) is int
            and 1 <= samples <= 2**53
        )
        rows = record.get(f"{PREFIX}rows")
        said = {key: record.get(f"{PREFIX}{key}") for key in ("setup", "compute", "aside", "total")}
        return cls(
            round=record.get(f"{PREFIX}round"),
            done=record.get(f"{PREFIX}done"),
            **{key: float(value) if _is_duration(value) else math.nan for key, value in said.items()},  # type: ignore[arg-type]
            times=tuple(map(float, times)) if right else (),
            samples=int(samples) if right and samples is not None else 0,
            rows=rows if type(rows) is int and rows > 0 else 0,
        )


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
