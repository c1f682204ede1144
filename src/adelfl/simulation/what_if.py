"""Simulation of other methods or budgets on the devices of a recorded deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from adelfl.data.partition import Partition
from adelfl.errors import ConfigError
from adelfl.learning_rate import recorded_rate
from adelfl.planner.problem import MAX_BUDGET
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.runtime.loop import Loop
from adelfl.runtime.run import Record, Run
from adelfl.simulation.engine import Simulation
from adelfl.simulation.experiment import Experiment
from adelfl.simulation.history import History
from adelfl.simulation.replica import Replica
from adelfl.strategies.base import at_least_one
from adelfl.strategies.deployment import deployed
from adelfl.strategies.deployment_planner import Settings
from adelfl.theory.gradient_stats import GradientStats

_TASK = ("num_rounds", "local_iterations", "batch")  # options of every method on a deployment


@dataclass(frozen=True)
class Forecast:
    """Number of merges of a recorded or simulated deployment, time of the last one, and final accuracy."""

    rounds: int
    time: float
    accuracy: float | None

    @classmethod
    def of(cls, record: RunRecord) -> Forecast:
        """Return the outcome of a recorded deployment."""
        last, result = record.rounds[-1], record.result
        return cls(last.round, last.time, None if result is None else result.final_accuracy)


def what_if(
    record: RunRecord,
    method: str,
    options: Mapping[str, Any],
    *,
    budget: float | None = None,
    experiment: Experiment | None = None,
) -> Forecast:
    """Simulate another method, or another budget in seconds, on the devices of a recorded deployment.

    ``num_rounds``, ``local_iterations`` and ``batch`` are those of the record unless they are among the options. The
    experiment provides data, partition, model, server step and seed; without it, accuracy is not simulated.
    """
    if budget is not None and not 0 < budget <= MAX_BUDGET:
        raise ConfigError(f"the budget must be a number of seconds above 0 and at most {MAX_BUDGET:g}, not {budget:g}")
    info, history = record.info, History.of(record)
    given: dict[str, Any] = dict(info.config["flower"])
    given |= {key: options[key] for key in _TASK if key in options}
    own = {key: value for key, value in options.items() if key not in _TASK}
    rounds, steps = (None if given.get(key, "auto") == "auto" else at_least_one(key, given[key]) for key in _TASK[:2])
    settings = Settings(
        layers=len(info.layers),
        rounds=rounds,
        budget=budget or info.budget,
        learning_rate=recorded_rate(given["learning_rate"]),
        batch=at_least_one("batch", given["batch"]),
        local_iterations=steps,
        fraction=given["fraction_train"],
        min_devices=given["min_train_nodes"],
        min_reports=given["min_reports"],
        opening_share=given["measure_share"],
        oversample=given["oversample"],
    )
    strategy = deployed(method, own, settings)
    gradients = next((row.gradients for row in record.rounds if row.gradients is not None), None)
    stats = None if gradients is None else GradientStats.of(**gradients)
    simulation = None if experiment is None else Simulation(_matched(experiment, history))
    replica = Replica(history, len(info.layers), budget or info.budget, stats, simulation)
    if simulation is None:
        loop, time = Loop(strategy, replica, replica.budget), 0.0
        for step in islice(loop.steps(), rounds):
            step.computed, time = replica.prepare([step.merge])[0](), step.time
        return Forecast(loop.version, time, None)
    rows: list[Row] = []
    virtual = replace(info, budget=replica.budget, clock="virtual")
    run = Run(strategy, replica, simulation, Record(None, virtual), rows.append)
    run.go(islice(run.begin(), rounds))
    return Forecast(rows[-1].round, rows[-1].time, run.finish().final_accuracy)


def _matched(experiment: Experiment, history: History) -> Experiment:
    """Assign the parts of the data to devices, so that the sizes match the numbers of samples that they reported."""
    reported = [device.replies[0].timing.samples if device.replies else 0 for device in history.devices]
    if len(reported) != len(experiment.partition):
        raise ConfigError(
            f"the partition has {len(experiment.partition)} parts, but the record has {len(reported)} devices"
        )
    _, part = linear_sum_assignment(np.abs(np.subtract.outer(reported, experiment.partition.sizes)))
    parts = [experiment.partition[int(p)] for p in part]
    return replace(experiment, partition=Partition.of(parts, experiment.partition.samples))
