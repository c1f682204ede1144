"""Readers of the files that describe measured devices; docs/howto/traces.md lists the formats."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from adelfl.array_types import Floats
from adelfl.durations import Trace
from adelfl.errors import ConfigError
from adelfl.tables import read_csv
from adelfl.traces.playback import Schedules

_HALF_HOUR, _DAY = 1800.0, 86400.0
_TRAINING = 3.0  # a training step costs three forward passes, as FedScale assumes
_WIFI = {"wifi": True} | dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), False)
_STATES = {
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
} | {word: ("wifi", on) for word, on in _WIFI.items()}


def read_speeds(path: Path, network: str | None = None) -> tuple[Floats, Floats]:
    """Return the time of a step of each device: fixed seconds, and seconds per sample.

    A line is fitted to times by batch size, with relative errors. ``network`` selects a network of the file.
    """
    with _reading(path, "step times"):
        if path.suffix.lower() == ".csv":
            rows = _rows(path)
            if "latency_ms" in rows[0]:
                return _inferences([float(row["latency_ms"]) for row in rows])
            networks = sorted({row["network"] for row in rows if "network" in row})
            if networks and network not in networks and (network is not None or len(networks) > 1):
                raise ConfigError(f"fleet.network must be one of {', '.join(networks)}, not {network!r}")
            chosen = (network or networks[0]) if networks else None
            own: dict[str, list[dict[str, str]]] = {}
            for row in rows:
                if row.get("network") == chosen:
                    own.setdefault(row["device"], []).append(row)
            fixed, per_sample = zip(*map(_line, own.values()), strict=True)
            return np.array(fixed), np.array(per_sample)
        return _inferences([float(d["computation"]) for d in _mapping(path)])


def _inferences(milliseconds: Sequence[float]) -> tuple[Floats, Floats]:
    """Return the step times of devices from the times of an inference on one sample."""
    per_sample = _TRAINING * np.array(milliseconds) / 1e3
    if not np.all(np.isfinite(per_sample) & (per_sample > 0)):
        raise ConfigError("times of an inference must be positive numbers")
    return np.zeros(per_sample.size), per_sample


def _line(rows: Sequence[dict[str, str]]) -> tuple[float, float]:
    """Fit fixed seconds and seconds per sample to the step times of one device."""
    batch, seconds = (np.array([float(row[key]) for row in rows]) for key in ("batch", "train_ms"))
    if not np.all(np.isfinite(batch * seconds) & (batch > 0) & (seconds > 0)):
        raise ConfigError(f"batch and train_ms of {rows[0]['device']} must be positive numbers")
    seconds = seconds / 1e3
    if np.unique(batch).size < 2:
        return 0.0, float((seconds / batch).mean())
    slope, fixed = np.polyfit(batch, seconds, 1, w=1.0 / seconds)
    if slope <= 0:
        raise ConfigError(f"steps of {rows[0]['device']} do not take longer with larger batches")
    if fixed < 0:
        return 0.0, float(np.average(seconds / batch, weights=(batch / seconds) ** 2))
    return float(fixed), float(slope)


def read_bandwidth(path: Path) -> tuple[Trace, ...]:
    """Return bandwidth traces in Mbit/s."""
    with _reading(path, "bandwidth"):
        if path.suffix.lower() != ".csv":
            return tuple(_steady(float(d["communication"]) / 1e3) for d in _mapping(path))
        rows = _rows(path)
        if "up_mean" in rows[0]:
            return tuple(_steady(float(row["up_mean"]) * 8e-3) for row in rows)
        traces: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            traces.setdefault(row["trace"], []).append((float(row["seconds"]), float(row["Mbps"])))
        return tuple(Trace(*np.array(points).T) for points in traces.values())


def _steady(rate: float) -> Trace:
    return Trace(np.array([0.0, 1.0]), np.array([rate, rate]))


def read_availability(path: Path) -> Schedules:
    """Return when devices are available; a half hour that is not known counts as not available."""
    with _reading(path, "availability"):
        if path.suffix.lower() == ".csv":
            schedules = [_half_hours(row["half_hours"]) for row in _rows(path)]
        else:
            schedules = [
                _flash(d["messages"])
                if "messages" in d
                else (list(zip(d["active"], d["inactive"], strict=False)), float(d["finish_time"]))
                for d in _mapping(path)
            ]
        schedules = [(periods, length) for periods, length in schedules if length > 0]
        if not any(end > start for periods, _ in schedules for start, end in periods):
            raise ConfigError("no device is ever available")
        return Schedules.of(schedules)


def _half_hours(states: str) -> tuple[list[tuple[float, float]], float]:
    if not set(states) <= {"0", "1", "?"}:
        raise ValueError("half_hours may contain 0, 1 and ? only")
    periods = [(_HALF_HOUR * i, _HALF_HOUR * (i + 1)) for i, state in enumerate(states) if state == "1"]
    return periods, _HALF_HOUR * len(states)


def _flash(messages: str) -> tuple[list[tuple[float, float]], float]:
    """Return the periods in which a phone was locked, charged and on Wi-Fi, from the midnight before its first message.

    Messages are lines of time, tab, state. The length is a whole number of days, so that the time of day is kept.
    """
    state = {"charged": False, "locked": False, "wifi": False}
    periods, ready_since, first = [], None, None
    seconds = 0.0
    for line in filter(None, map(str.strip, messages.split("\n"))):
        time, _, word = line.partition("\t")
        moment = datetime.strptime(time.strip(), "%Y-%m-%d %H:%M:%S")
        first = first or moment.replace(hour=0, minute=0, second=0)
        seconds = (moment - first).total_seconds()
        if (change := _STATES.get(word.strip().lower())) is not None:
            state[change[0]] = change[1]
        ready = all(state.values())
        if ready and ready_since is None:
            ready_since = seconds
        elif not ready and ready_since is not None:
            periods.append((ready_since, seconds))
            ready_since = None
    return periods, _DAY * np.ceil(seconds / _DAY)


def _rows(path: Path) -> list[dict[str, str]]:
    columns = read_csv(path)
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if not rows:
        raise ValueError("there are no rows")
    return rows


def _mapping(path: Path) -> list[dict[str, Any]]:
    """Return the description of each device from a pickled or JSON mapping, or from one mapping per line."""
    content = path.read_bytes()
    if content.lstrip()[:1] != b"{":
        mappings = [_Plain(io.BytesIO(content)).load()]
    else:
        try:
            mappings = [json.loads(content)]
        except json.JSONDecodeError:
            mappings = [json.loads(line) for line in content.splitlines() if line.strip()]
    values = [value for mapping in mappings for value in ([mapping] if "messages" in mapping else mapping.values())]
    devices = [{"messages": value} if isinstance(value, str) else value for value in values]
    if not devices or not all(isinstance(device, dict) for device in devices):
        raise ValueError("there is no mapping of devices")
    return devices


class _Plain(pickle.Unpickler):
    """Unpickler of numbers, texts, lists and mappings only, so that the file cannot run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds objects of {module}.{name}")


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as {what} ({reason}); see docs/howto/traces.md") from None
