"""Contents of the messages between server and client.

    server → client    the weights, and a :class:`Task` in the configuration record
    client → server    the changes w_u − w of the layers that it finished, and a :class:`Report` among the metrics

Messages contain durations, but no times: each side uses its own monotonic clock, so wall clocks may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.planner.beliefs import Timing

PREFIX = "adelfl-"
"""Prefix of all keys of adelfl; other keys of a record belong to the user."""

STATISTICS = f"{PREFIX}statistics"
"""Name of the record of running statistics in a reply."""

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Values = dict[str, Any]


def is_statistic(name: str) -> bool:
    """Return whether an array of a model is a running statistic of a norm, and not a parameter."""
    return name.rpartition(".")[2] in _STATISTICS


@dataclass(frozen=True)
class Task:
    """Work of a node in one round."""

    round: int
    """Number of the next merge, from 1."""
    batch: int
    """Samples per local iteration."""
    iterations: int
    rate: float
    """Learning rate."""
    seconds: float
    """Seconds from the arrival of the message until computing must end; infinite for no limit."""
    layers: tuple[tuple[str, ...], ...]
    """Names of parameters, input side first."""
    pace: tuple[float, ...] = ()
    """Expected seconds per sample of each layer, in the order of backpropagation. A layer that would be too late is not
    begun. Empty for a new node, which checks its model, and reports the difference of its first two gradients."""
    oversample: bool = False
    """Whether samples repeat if the batch is larger than the node's data; otherwise, the batch is cut to the data."""
    proximal: float = 0.0
    """μ: gradients get the term μ (w_u − w)."""

    def write(self) -> Values:
        """Return entries of a configuration record."""
        entries = _entries(self)
        del entries[f"{PREFIX}layers"]  # a record has no lists of lists
        sizes, names = [len(layer) for layer in self.layers], [name for layer in self.layers for name in layer]
        return entries | {f"{PREFIX}layer-sizes": sizes, f"{PREFIX}layer-names": names}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Task:
        """Read a configuration record."""
        values = {key.removeprefix(PREFIX): value for key, value in record.items() if key.startswith(PREFIX)}
        try:
            ends = list(accumulate(values.pop("layer-sizes"), initial=0))
            names = values.pop("layer-names")
            layers = tuple(tuple(names[begin:end]) for begin, end in pairwise(ends))
            return cls(layers=layers, **values | {"pace": tuple(values["pace"])})
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"this message is no task of adelfl.flower.DeadlineStrategy ({error}); use it in the ServerApp"
            ) from None


@dataclass
class Report:
    """Report of a node on its work, whose values the server checks."""

    round: Any
    """Round of the task."""
    done: Any = 0
    """Layers finished over all iterations."""
    setup: float = math.nan
    """Seconds from the arrival of the message to the first batch."""
    compute: float = 0.0
    """Seconds from the first batch to the end of the last backward pass, including the loading of further batches."""
    aside: float = 0.0
    """Seconds of checks that are made only once."""
    total: float = math.nan
    """Seconds from arrival to reply."""
    times: tuple[float, ...] = ()
    """Seconds of the first iteration: forward pass, then each finished layer, last layer first."""
    samples: int = 0
    """Batch size of those times."""
    rows: int = 0
    """Samples that the node holds; 0 if unknown. Batches are not larger."""
    pair: tuple[float, ...] = ()
    """‖g − g′‖² of each layer, input side first, for two gradients of a new node; empty otherwise."""
    steps: tuple[float, ...] = ()
    """Complete steps with one batch size, without the first if there are others: batch size, number, and mean and
    variance of the durations. Empty if there are none."""

    def write(self) -> Values:
        """Return entries of a metrics record."""
        return _entries(self)

    @classmethod
    def read(cls, record: Mapping[str, Any], layers: int) -> Report:
        """Read an unchecked metrics record, without impossible values."""
        values: Values = {field.name: record.get(f"{PREFIX}{field.name}") for field in fields(cls)}
        for key in ("setup", "compute", "aside", "total"):
            values[key] = float(values[key]) if _is_duration(values[key]) else math.nan
        for key, lengths in (("times", range(1, layers + 2)), ("pair", (layers,)), ("steps", (4,))):
            value = values[key]
            right = isinstance(value, list) and len(value) in lengths and all(map(_is_duration, value))
            values[key] = tuple(map(float, value)) if right else ()
        for key in ("samples", "rows"):
            values[key] = values[key] if type(values[key]) is int and 0 < values[key] <= 2**53 else 0
        if not (values["times"] and values["samples"]):
            values |= {"times": (), "samples": 0}
        if values["steps"]:
            S, n, mean, variance = values["steps"]
            if not (1 <= min(S, n) and max(S, n) <= 2**53 and mean >= 1e-9 and variance <= (n * mean) ** 2):
                values["steps"] = ()
        return cls(**values)

    def timing(self, round_trip: float) -> Timing | None:
        """Return the durations; None if they do not fit into the round trip."""
        from adelfl.planner.beliefs import Timing  # on the server only, so that nodes do not load SciPy

        outside = round_trip - self.setup - self.compute - self.aside
        if not (math.isfinite(outside) and outside >= 0 and math.isfinite(self.total) and self.total <= round_trip):
            return None
        pace = tuple(t / self.samples for t in self.times) if sum(self.times) <= round_trip else ()
        steps = self.steps if self.steps and self.steps[1] * self.steps[2] <= round_trip else ()
        return Timing(self.setup, outside, pace, self.rows, steps)


def _entries(message: Task | Report) -> Values:
    values = {f"{PREFIX}{field.name}": getattr(message, field.name) for field in fields(message)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
