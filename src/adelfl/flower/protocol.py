"""Contents of the messages between server and client.

    server → client    the weights, and a :class:`Task` in the configuration record
    client → server    the changes w_u − w of the layers that it finished, and a :class:`Report` among the metrics

Messages carry durations, never moments: each side counts on its own monotonic clock, so wrong wall clocks do no harm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

from adelfl.errors import ConfigError
from adelfl.planner.beliefs import Timing

PREFIX = "adelfl-"
"""Prefix of all keys of adelfl; other keys of a record are the user's."""

STATISTICS = f"{PREFIX}statistics"
"""Name of the record of running statistics in a reply."""

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Values = dict[str, Any]


def is_statistic(name: str) -> bool:
    """Return whether an array of a model is a running statistic of a norm, and no parameter."""
    return name.rpartition(".")[2] in _STATISTICS


@dataclass(frozen=True)
class Task:
    """Work of a node in one round.

    Attributes
    ----------
    round : int
        Number of the merge that the weights lead to, from 1.
    batch, iterations : int
        Samples per local iteration, and how many iterations.
    rate : float
        Learning rate.
    seconds : float
        Seconds after the arrival of the message at which computing must end; infinite for no limit.
    layers : tuple of tuple of str
        Names of parameters, input side first.
    pace : tuple of float
        Expected seconds per sample of each layer, in the order of backpropagation. A layer that is not expected to be
        ready in time is not begun. Empty for a node that is new: it then checks its model, and reports the difference
        of its first two gradients.
    oversample : bool
        Whether samples repeat where the batch is larger than the node's data; otherwise the batch is all of it.
    proximal : float
        μ: gradients get the term μ (w_u − w).
    """

    round: int
    batch: int
    iterations: int
    rate: float
    seconds: float
    layers: tuple[tuple[str, ...], ...]
    pace: tuple[float, ...] = ()
    oversample: bool = False
    proximal: float = 0.0

    def write(self) -> Values:
        """Return entries of a configuration record."""
        entries = _entries(self)
        del entries[f"{PREFIX}layers"]  # a record has no lists of lists
        sizes, names = [len(layer) for layer in self.layers], [name for layer in self.layers for name in layer]
        return entries | {f"{PREFIX}layer-sizes": sizes, f"{PREFIX}layer-names": names}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Task:
        """Read a configuration record; the server that wrote it is trusted."""
        values = {key.removeprefix(PREFIX): value for key, value in record.items() if key.startswith(PREFIX)}
        try:
            ends = list(accumulate(values.pop("layer-sizes"), initial=0))
            names = values.pop("layer-names")
            layers = tuple(tuple(names[begin:end]) for begin, end in pairwise(ends))
            return cls(layers=layers, **values | {"pace": tuple(values["pace"])})
        except (KeyError, TypeError) as missing:
            raise ConfigError(
                f"this message is no task of adelfl.flower.DeadlineStrategy ({missing}); "
                "is it the strategy of the ServerApp?"
            ) from None


@dataclass(frozen=True)
class Report:
    """Report of a node on its work. It may hold anything, so the server uses only what makes sense.

    Attributes
    ----------
    round : object
        Round of the task.
    done : object
        Layers finished over all iterations.
    setup, compute, aside, total : float
        Seconds from the message's arrival to the first batch, of computing, of checks that are made once, and from
        arrival to reply.
    times : tuple of float
        Seconds of the first iteration: forward pass, then each finished layer, last layer first.
    samples : int
        Batch size of those times.
    rows : int
        Samples that the node holds; 0 if unknown. Batches are not larger.
    pair : tuple of float
        ‖g − g′‖² of each layer, input side first, for two gradients of a new node; empty otherwise.
    steps : tuple of float
        Complete steps of one batch size, without the first if there are others: that size, their number, and mean and
        variance of their durations. Empty if there are none.
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
    pair: tuple[float, ...] = ()
    steps: tuple[float, ...] = ()

    def write(self) -> Values:
        """Return entries of a metrics record."""
        return _entries(self)

    @classmethod
    def read(cls, record: Mapping[str, Any], layers: int) -> Report:
        """Read an unchecked metrics record; values that cannot be are left out."""
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
        durations = {key: record.get(f"{PREFIX}{key}") for key in ("setup", "compute", "aside", "total")}
        pair = record.get(f"{PREFIX}pair", [])
        is_pair = isinstance(pair, list) and len(pair) == layers and all(_is_duration(value) for value in pair)
        steps = record.get(f"{PREFIX}steps", [])
        are_steps = isinstance(steps, list) and len(steps) == 4 and all(_is_duration(value) for value in steps)
        return cls(
            round=record.get(f"{PREFIX}round"),
            done=record.get(f"{PREFIX}done"),
            **{key: float(value) if _is_duration(value) else math.nan for key, value in durations.items()},  # type: ignore[arg-type]
            times=tuple(map(float, times)) if right else (),
            samples=int(samples) if right and samples is not None else 0,
            rows=rows if type(rows) is int and rows > 0 else 0,
            pair=tuple(map(float, pair)) if is_pair else (),
            steps=tuple(map(float, steps)) if are_steps and steps[0] >= 1 and steps[1] >= 1 and steps[2] > 0 else (),
        )

    def timing(self, round_trip: float) -> Timing | None:
        """Return the durations that fit into a round trip; None if they cannot be true."""
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
