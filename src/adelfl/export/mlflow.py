"""Export to a run of MLflow's experiment "adelfl", at MLFLOW_TRACKING_URI or in ./mlruns.

The step of a metric is the round, and its time is the run's start plus its virtual time. MLflow has no histograms:
batch sizes and depths are given as minimum, median and maximum.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from adelfl.export.runs import ExportedRun

_EXPERIMENT = "adelfl"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _LONGEST = 900, 100, 500  # limits of MLflow servers


def write(run: ExportedRun) -> str:
    """Send the configuration as parameters, and the metrics; a run without a result is marked as killed."""
    place, uri = "mlruns", os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        # Newer versions require this for plain files; a database would need more packages.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tracking_uri=uri or Path(place).absolute().as_uri())
    experiment = client.get_experiment_by_name(_EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(_EXPERIMENT)
    tags = {"adelfl.strategy": run.info.label, "adelfl.folder": str(run.folder)}
    begin = round(1000 * run.started)
    created = client.create_run(number, start_time=begin, tags=tags, run_name=run.folder.name).info.run_id
    config = run.info.flat_config().items()
    params = [Param(_key(key), str(value)[:_LONGEST]) for key, value in config if value is not None]
    metrics, status, end = [], "FAILED", begin
    try:
        for entry in run.entries():
            end = round(1000 * (run.started + entry.scalars["time"]))
            metrics += [Metric(_key(name), value, end, entry.round) for name, value in entry.numbers.items()]
        if run.result is not None and run.result.final_accuracy is not None:
            metrics.append(Metric("final_accuracy", run.result.final_accuracy, end, run.result.rounds))
        for i in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(created, params=params[i : i + _PARAMS_AT_ONCE])
        for i in range(0, len(metrics), _METRICS_AT_ONCE):
            client.log_batch(created, metrics=metrics[i : i + _METRICS_AT_ONCE])
        status = "KILLED" if run.result is None else "FINISHED"
    finally:
        client.set_terminated(created, status, end)
    return f"{uri or place}, experiment {_EXPERIMENT}, run {created}"


def _key(name: str) -> str:
    """Return a name in the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
