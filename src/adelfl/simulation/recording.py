"""Records of experiments that were built in Python: their run information, and its comparison before resuming."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.records.schema import RunInfo
from adelfl.records.writer import versions
from adelfl.runtime.codec import find_codec
from adelfl.runtime.run import Record
from adelfl.runtime.server_step import ServerStep
from adelfl.simulation.experiment import Experiment

MADE_BY = "simulate"
"""Value of ``RunInfo.made_by`` for a run that only Python can resume."""

_WORLD = ("dropout", "drift", "throttled", "churn")
"""Properties of a world that are keys of [fleet] in a configuration file."""


def describe(experiment: Experiment, config: Mapping[str, Any], inputs: Mapping[str, str]) -> RunInfo:
    """Return the run information of an experiment, with its configuration and digests of what it depends on."""
    strategy = experiment.strategy
    auto = config.get("training", {}).get("local_iterations") == "auto"
    chosen = auto or strategy.most_steps < strategy.problem.local_iterations  # some methods take one step only
    return RunInfo(
        config=config,
        inputs=inputs,
        seed=experiment.seed,
        strategy=strategy.name,
        label=strategy.label,
        data=experiment.dataset.name,
        budget=strategy.problem.budget,
        rounds=strategy.rounds,
        layers=[layer.name for layer in experiment.layers],
        devices=strategy.problem.devices,
        constants=strategy.problem.constants.to_dict(),
        codec=find_codec(experiment.codec).name,
        chosen_iterations=strategy.most_steps if chosen else None,
        schedule=strategy.schedule.to_dict() if strategy.schedule else None,
        notes=list(strategy.notes),
        versions=versions(),
    )


def first_difference(then: RunInfo, now: RunInfo, ignored: tuple[str, ...] = ()) -> str | None:
    """Return the first key in which two runs differ, apart from versions; None if there is none."""
    old, new = (json.loads(json.dumps(info.to_json())) for info in (then, now))
    key = next((k for k, v in new.items() if k not in ("versions", *ignored) and old.get(k) != v), None)
    if key != "config":
        return key
    sections = ((name, key) for name, section in new[key].items() for key in section)
    changed = (f"{name}.{k}" for name, k in sections if old["config"].get(name, {}).get(k) != new["config"][name][k])
    return next(changed, key)


def open_record(experiment: Experiment, folder: Path | None) -> Record:
    """Return the record of an experiment: new, or that of an earlier call in the same folder."""
    info = describe(experiment, _config(experiment), {})
    if folder is None:
        return Record(None, info)
    info = replace(info, inputs=_inputs(experiment), made_by=MADE_BY)
    return Record.open(folder, info, lambda old: _refuse_others(old, info))


def _refuse_others(record: RunRecord, now: RunInfo) -> None:
    """Raise ConfigError if a record belongs to another experiment."""
    then, advice = record.info, "choose another folder, or remove this one"
    if then.made_by != MADE_BY:
        raise ConfigError(f"{record.folder}: holds a run that was not made by simulate(record=...); {advice}")
    parts = [name for name, digest in now.inputs.items() if then.inputs.get(name) != digest]
    if changed := parts[0] if parts else first_difference(then, now, ("inputs",)):
        raise ConfigError(f"{record.folder}: holds a run with another {changed}; {advice}")


def _config(experiment: Experiment) -> dict[str, Any]:
    """Return the configuration by the sections of a configuration file."""
    e, s = experiment, experiment.strategy.problem
    server = asdict(e.server_step or ServerStep(e.strategy.server_step))
    return {
        "data": {"name": e.dataset.name, "samples": int(e.dataset.y_train.size)},
        "model": {"name": type(e.model).__name__, "parameters": sum(p.numel() for p in e.model.parameters())},
        "fleet": {"devices": s.devices} | {key: getattr(e.world, key, 0.0) for key in _WORLD},
        "training": {
            "rounds": s.rounds,
            "budget": s.budget,
            "batch": s.batch,
            "cohort": s.cohort,
            "local_iterations": s.local_iterations,
            "weight_decay": e.local.weight_decay,
            "momentum": e.local.momentum,
            "codec": find_codec(e.codec).name,
            "oversample": e.oversample,
            "evaluations": e.evaluations,
            "seed": e.seed,
        },
        "learning_rate": {"schedule": type(s.learning_rate).__name__, "first": float(s.eta[0])},
        "strategy": {"name": e.strategy.name, "options": _readable(e.strategy.options)},
        "server": {"step": server.pop("name"), **server},
        "engine": {"name": e.engine, "device": e.device},
    }


def _inputs(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each part of an experiment; of code, only the name of the class counts."""
    e, d = experiment, experiment.dataset
    return {
        "data set": _digest([d.x_train, d.y_train, d.x_test, d.y_test]),
        "partition": _digest(e.partition),
        "model": _digest([type(e.model), dict(e.model.state_dict())]),
        "grouping of layers": _digest(e.layers),
        "problem": _digest(e.strategy.problem),
        "strategy": _digest([type(e.strategy), e.strategy.options]),
        "local work": _digest(e.local),
        "server step": _digest(e.server_step),
        "world": _digest(e.world),
        "engine": _digest([e.engine, e.device, e.evaluations]),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(_readable(value)).encode()).hexdigest()


def _readable(value: Any) -> Any:  # noqa: ANN401 - options may be anything
    """Return a value for JSON; arrays become their digest, other objects the name of their class."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape} {hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()}"
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_readable(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _readable(inner) for key, inner in value.items()}
    kind = value if isinstance(value, type) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if value is kind or not is_dataclass(value):
        return name
    return {"class": name} | {field.name: _readable(getattr(value, field.name)) for field in fields(value)}
