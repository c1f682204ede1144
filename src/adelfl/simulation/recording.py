"""Records of experiments that are built in Python: what is written before the first round, and compared on resuming."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adelfl.atomic import RunFinishedError
from adelfl.errors import AdelError, ConfigError
from adelfl.plugins import in_words
from adelfl.record import Checkpoint, RunRecord, RunWriter, versions
from adelfl.runtime.codec import find_codec
from adelfl.simulation.experiment import Experiment

ADDED: dict[str, Any] = {"codec": "none"}
"""Keys of run.json that older records lack, with what they had."""

MADE_BY = "simulate"
"""What ``made_by`` in run.json says of a run that only Python can resume."""


def describe(experiment: Experiment) -> dict[str, Any]:
    """Return what run.json says of an experiment, however it was built."""
    strategy = experiment.strategy
    return {
        "seed": experiment.seed,
        "strategy": strategy.name,
        "label": strategy.label,
        "data": experiment.dataset.name,
        "budget": strategy.problem.budget,
        "rounds": strategy.rounds,
        "layers": [layer.name for layer in experiment.layers],
        "devices": strategy.problem.devices,
        "constants": strategy.problem.constants.to_dict(),
        "codec": find_codec(experiment.codec).name,
        "schedule": strategy.schedule.to_dict() if strategy.schedule else None,
        "notes": list(strategy.notes),
        "versions": versions(),
    }


Go = Callable[[RunWriter, Checkpoint | None], dict[str, Any]]


def run_recorded(experiment: Experiment, folder: Path, go: Go) -> dict[str, Any]:
    """Run an experiment with a record, from its beginning or from where the record ends.

    Parameters
    ----------
    experiment : Experiment
        What is recorded.
    folder : Path
        Where.
    go : callable
        Runs the experiment with a writer, from a checkpoint on, and returns its summary.
    """
    found = _open_record(experiment, folder)
    if isinstance(found, dict):
        return found
    writer, checkpoint = found
    with writer:
        try:
            return go(writer, checkpoint)
        except AdelError as trouble:
            writer.fail(str(trouble))
            raise
        except Exception as trouble:
            if not (isinstance(trouble, OSError) and trouble.errno is not None):  # after a full disk a run can go on
                writer.fail(f"{folder}: {in_words(trouble)}", traceback.format_exc())
            raise


def _open_record(experiment: Experiment, folder: Path) -> tuple[RunWriter, Checkpoint | None] | dict[str, Any]:
    """Begin a record or continue it; return what to write with and where to go on, or the summary of a finished run."""
    about = {"config": _config(experiment), "inputs": _inputs(experiment)} | describe(experiment)
    about["made_by"] = MADE_BY
    if not folder.exists():
        return RunWriter.create(folder, about), None
    record = RunRecord.open(folder)
    _refuse_others(record, json.loads(json.dumps(about)))
    if record.result is not None:
        return record.result
    try:
        return RunWriter.reopen(folder)
    except RunFinishedError:
        result = RunRecord.open(folder).result
        assert result is not None
        return result


def _refuse_others(record: RunRecord, now: dict[str, Any]) -> None:
    """Raise ConfigError if a record is not one of this experiment, as far as that can be compared."""
    then, advice = ADDED | record.about, "choose another folder, or remove this one"
    if then.get("made_by") != MADE_BY:
        raise ConfigError(f"{record.folder}: holds a run that was not made by simulate(record=...); {advice}")
    parts = then.get("inputs")
    changed = [key for key, digest in now["inputs"].items() if not isinstance(parts, dict) or parts.get(key) != digest]
    changed += [key for key, value in now.items() if key not in ("inputs", "versions") and then.get(key) != value]
    if changed:
        raise ConfigError(f"{record.folder}: holds a run with another {changed[0]}; {advice}")


def _config(experiment: Experiment) -> dict[str, Any]:
    """Return what a reader of the record wants to know, in the sections of a run's file."""
    e, s = experiment, experiment.strategy.problem
    return {
        "data": {"name": e.dataset.name, "samples": int(e.dataset.y_train.size)},
        "model": {"name": type(e.model).__name__, "parameters": sum(p.numel() for p in e.model.parameters())},
        "fleet": {"devices": s.devices},
        "training": {
            "rounds": s.rounds,
            "budget": s.budget,
            "batch": s.batch,
            "cohort": s.cohort,
            "local_iterations": s.local_iterations,
            "weight_decay": e.local.weight_decay,
            "momentum": e.local.momentum,
            "evaluations": e.evaluations,
            "seed": e.seed,
        },
        "learning_rate": {"schedule": type(s.learning_rate).__name__, "first": float(s.eta[0])},
        "strategy": {"name": e.strategy.name, "options": _readable(e.strategy.options)},
        "engine": {"name": e.engine, "device": e.device},
    }


def _inputs(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each part of an experiment that can be compared; of code, only the name of its class."""
    e, d = experiment, experiment.dataset
    return {
        "data set": _digest([d.x_train, d.y_train, d.x_test, d.y_test]),
        "partition": _digest(e.partition),
        "model": _digest([type(e.model), dict(e.model.state_dict())]),
        "grouping of layers": _digest(e.layers),
        "problem": _digest(e.strategy.problem),
        "strategy": _digest([type(e.strategy), e.strategy.options]),
        "local work": _digest(e.local),
        "world": _digest(e.world),
        "engine": _digest([e.engine, e.device, e.evaluations]),
    }


def _digest(value: object) -> str:
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: object) -> None:  # noqa: ANN401 - a hash of hashlib
    """Add a value to a hash: numbers, texts, arrays and whatever is made of them; of other objects, their class."""
    found.update(f"<{type(value).__qualname__}>".encode())
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        found.update(f"{value.dtype}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).data)
    elif isinstance(value, type):
        found.update(f"{value.__module__}.{value.__qualname__}".encode())
    elif is_dataclass(value):
        for field in fields(value):
            _feed(found, [field.name, getattr(value, field.name)])
    elif isinstance(value, dict):
        for key, inner in value.items():
            _feed(found, [key, inner])
    elif isinstance(value, list | tuple):
        for inner in value:
            _feed(found, inner)
    elif value is None or isinstance(value, str | int | float | np.generic):
        found.update(repr(value).encode())
    found.update(b";")


def _readable(value: Any) -> Any:  # noqa: ANN401 - whatever options are
    """Return a value fit for JSON; of other objects, the name of their class."""
    if isinstance(value, dict):
        return {str(key): _readable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(inner) for inner in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__
