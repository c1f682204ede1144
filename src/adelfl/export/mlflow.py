"""A record as a run of MLflow's experiment "adelfl", where MLFLOW_TRACKING_URI says, or in ./mlruns.

The step of a metric is the round, and its time is the run's start plus its virtual time. MLflow knows no histograms:
batch sizes and depths are given as least, median and largest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from adelfl.export.entry import Entry, Source
from adelfl.records.schema import RunResult

_EXPERIMENT = "adelfl"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _LONGEST = 900, 100, 500  # what any MLflow server takes


class MlflowLog:
    """Writes metrics as they come, some at a time, and the configuration as parameters."""

    def __init__(self, source: Source) -> None:
        self._client, self._where = _client()
        self._started = source.started
        self._waiting: list[Any] = []
        self._end = 0.0
        experiment = self._client.get_experiment_by_name(_EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(_EXPERIMENT)
        info = source.info
        tags = {"adelfl.strategy": info.label, "adelfl.folder": str(source.folder)}
        run = self._client.create_run(
            number, start_time=self._milliseconds(0.0), tags=tags, run_name=source.folder.name
        )
        self._run = run.info.run_id
        said = [Param(key, value[:_LONGEST]) for key, value in _flat(info.config)]
        for i in range(0, len(said), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=said[i : i + _PARAMS_AT_ONCE])

    def _milliseconds(self, time: float) -> int:
        return round(1000 * (self._started + time))

    def add(self, entry: Entry) -> None:
        """Keep a round's metrics, and send them soon: at an evaluation, or if there are many."""
        numbers = entry.scalars | entry.quantiles
        moment = self._milliseconds(entry.time)
        self._waiting += [Metric(_key(name), value, moment, entry.round) for name, value in numbers.items()]
        self._end = entry.time
        if "accuracy" in entry.scalars or len(self._waiting) >= _METRICS_AT_ONCE:
            self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for i in range(0, len(waiting), _METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=waiting[i : i + _METRICS_AT_ONCE])

    def close(self, result: RunResult | None) -> str:
        """Send what is left, and the final accuracy; a run without a result was stopped."""
        end = self._milliseconds(self._end)
        if result is not None and result.final_accuracy is not None:
            self._waiting.append(Metric("final_accuracy", result.final_accuracy, end, result.rounds))
        self._send()
        self._client.set_terminated(self._run, "KILLED" if result is None else "FINISHED", end)
        return f"{self._where}, experiment {_EXPERIMENT}, run {self._run}"

    def discard(self) -> None:
        """Mark the run as failed; what was sent stays."""
        self._client.set_terminated(self._run, "FAILED", self._milliseconds(self._end))


def _client() -> tuple[Any, str]:
    said = os.environ.get("MLFLOW_TRACKING_URI")
    if said:
        return MlflowClient(tracking_uri=said), said
    # Newer versions want to be told that plain files are meant; a database would need more packages.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=Path("mlruns").absolute().as_uri()), "mlruns"


def _key(name: str) -> str:
    """A name in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield _key(f"{prefix}{key}"), str(value)
