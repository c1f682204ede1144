"""Export to a run of MLflow's experiment "adelfl", at MLFLOW_TRACKING_URI or in ./mlruns.

The step of a metric is the round, and its time is the run's start plus its virtual time. MLflow has no histograms:
batch sizes and depths are given as minimum, median and maximum.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from adelfl.export.logs import Entry, ExportedRun
from adelfl.records.schema import RunResult

_EXPERIMENT = "adelfl"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _LONGEST = 900, 100, 500  # limits of MLflow servers


class MlflowLog:
    """Writes metrics as they come, some at a time, and the configuration as parameters."""

    def __init__(self, run: ExportedRun) -> None:
        self._client, self._where = _client()
        self._started = run.started
        self._buffer: list[Any] = []
        self._end = 0.0
        experiment = self._client.get_experiment_by_name(_EXPERIMENT)
        number = experiment.experiment_id if experiment else self._client.create_experiment(_EXPERIMENT)
        tags = {"adelfl.strategy": run.info.label, "adelfl.folder": str(run.folder)}
        begin = self._milliseconds(0.0)
        created = self._client.create_run(number, start_time=begin, tags=tags, run_name=run.folder.name)
        self._run = created.info.run_id
        config = run.info.flat_config().items()
        params = [Param(_key(key), str(value)[:_LONGEST]) for key, value in config if value is not None]
        for i in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=params[i : i + _PARAMS_AT_ONCE])

    def _milliseconds(self, time: float) -> int:
        return round(1000 * (self._started + time))

    def add(self, entry: Entry) -> None:
        """Buffer a round's metrics; they are sent at an evaluation, or if there are many."""
        numbers = entry.scalars | entry.quantiles
        moment = self._milliseconds(entry.time)
        self._buffer += [Metric(_key(name), value, moment, entry.round) for name, value in numbers.items()]
        self._end = entry.time
        if "accuracy" in entry.scalars or len(self._buffer) >= _METRICS_AT_ONCE:
            self._send()

    def _send(self) -> None:
        metrics, self._buffer = self._buffer, []
        for i in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[i : i + _METRICS_AT_ONCE])

    def close(self, result: RunResult | None) -> str:
        """Send the remaining metrics and the final accuracy; a run without a result is marked as killed."""
        end = self._milliseconds(self._end)
        if result is not None and result.final_accuracy is not None:
            self._buffer.append(Metric("final_accuracy", result.final_accuracy, end, result.rounds))
        self._send()
        self._client.set_terminated(self._run, "KILLED" if result is None else "FINISHED", end)
        return f"{self._where}, experiment {_EXPERIMENT}, run {self._run}"

    def discard(self) -> None:
        """Mark the run as failed; what was sent stays."""
        self._client.set_terminated(self._run, "FAILED", self._milliseconds(self._end))


def _client() -> tuple[Any, str]:
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return MlflowClient(tracking_uri=uri), uri
    # Newer versions require this for plain files; a database would need more packages.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=Path("mlruns").absolute().as_uri()), "mlruns"


def _key(name: str) -> str:
    """Return a name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
