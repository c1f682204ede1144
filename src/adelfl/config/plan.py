"""The file of ``adelfl plan``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from adelfl.config.sections import (
    ConstantsSection,
    DeviceEntry,
    LearningRateSection,
    LocalIterations,
    Rounds,
    Section,
    first_mistake,
    listed_fleet,
    read_fleet,
    read_toml,
)
from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.planner.local_work import with_local_work
from adelfl.planner.problem import (
    MAX_BATCH,
    MAX_BUDGET,
    MAX_LAYERS,
    MIN_BUDGET,
)


class ProblemSection(Section):
    """[problem]."""

    rounds: Rounds
    budget: float = Field(ge=MIN_BUDGET, le=MAX_BUDGET, allow_inf_nan=False)
    layers: int = Field(ge=1, le=MAX_LAYERS)
    cohort: int | None = Field(default=None, ge=2)
    local_iterations: LocalIterations = 1
    baseline_batch: int = Field(default=16, ge=1, le=MAX_BATCH)


class PlanDevice(DeviceEntry):
    """[[device]] of a plan, which may say how much data each device holds; in a run the partition does."""

    samples: int | None = Field(default=None, ge=1)


class PlanFile(Section):
    """What ``adelfl plan`` reads."""

    problem: ProblemSection
    learning_rate: LearningRateSection = Field(default_factory=LearningRateSection)
    constants: ConstantsSection = Field(default_factory=ConstantsSection)
    device: list[PlanDevice] = Field(default_factory=list)


def load_problem(path: Path, fleet_file: Path | None = None) -> Problem:
    """Build the planner's problem from a file.

    Parameters
    ----------
    path : Path
        TOML file with [problem], [learning_rate], [constants] and [[device]].
    fleet_file : Path, optional
        CSV file with columns compute, upload, count, or TOML file with [[device]] entries; takes the place of the
        [[device]] entries of ``path``.
    """
    values = read_toml(path)
    if "device" in values and "problem" not in values:
        raise ConfigError(
            f"{path}: describes devices, but has no [problem]; add one with rounds, budget and layers, or name this "
            "file with --fleet beside a file that has one"
        )
    try:
        said = PlanFile.model_validate(values)
        fleet = read_fleet(fleet_file) if fleet_file else listed_fleet(said.device)
        sizes = said.problem
        rounds, steps = (None if n == "auto" else n for n in (sizes.rounds, sizes.local_iterations))
        problem = Problem(
            fleet=fleet,
            layers=sizes.layers,
            rounds=rounds or 1,
            budget=sizes.budget,
            learning_rate=said.learning_rate.build(),
            constants=said.constants.build(),
            cohort=sizes.cohort,
            local_iterations=steps or 1,
            batch=sizes.baseline_batch,
        )
        return with_local_work(problem, rounds=rounds, steps=steps)
    except ValidationError as trouble:
        raise ConfigError(f"{path}: {first_mistake(PlanFile, trouble)}") from None
    except ConfigError as trouble:
        if fleet_file and str(trouble).startswith(str(fleet_file)):
            raise
        raise ConfigError(f"{path}: {trouble}") from None
