"""The file of ``adelfl plan``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from adelfl.config.sections import (
    ConstantsSection,
    LearningRateSection,
    LocalIterations,
    PlanDevice,
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
from adelfl.planner.problem import MAX_BATCH, MAX_BUDGET, MAX_LAYERS, MIN_BUDGET


class ProblemSection(Section):
    """[problem]."""

    rounds: Rounds
    budget: float = Field(ge=MIN_BUDGET, le=MAX_BUDGET, allow_inf_nan=False)
    layers: int = Field(ge=1, le=MAX_LAYERS)
    cohort: int | None = Field(default=None, ge=2)
    local_iterations: LocalIterations = 1
    baseline_batch: int = Field(default=16, ge=1, le=MAX_BATCH)


class PlanFile(Section):
    """Configuration of ``adelfl plan``."""

    problem: ProblemSection
    learning_rate: LearningRateSection = Field(default_factory=LearningRateSection)
    constants: ConstantsSection = Field(default_factory=ConstantsSection)
    device: list[PlanDevice] = Field(default_factory=list)


def load_problem(path: Path, fleet_file: Path | None = None) -> Problem:
    """Build the planner's problem from a TOML file; ``fleet_file`` (CSV or TOML) replaces its [[device]] entries."""
    values = read_toml(path)
    if "device" in values and "problem" not in values:
        raise ConfigError(
            f"{path}: has [[device]] entries, but no [problem]; add one with rounds, budget and layers, or pass "
            "this file as --fleet together with a file that has one"
        )
    try:
        config = PlanFile.model_validate(values)
        fleet = read_fleet(fleet_file) if fleet_file else listed_fleet(config.device)
        sizes = config.problem
        rounds, steps = (None if n == "auto" else n for n in (sizes.rounds, sizes.local_iterations))
        problem = Problem(
            fleet=fleet,
            layers=sizes.layers,
            rounds=rounds or 1,
            budget=sizes.budget,
            learning_rate=config.learning_rate.build(),
            constants=config.constants.build(),
            cohort=sizes.cohort,
            local_iterations=steps or 1,
            batch=sizes.baseline_batch,
        )
        return with_local_work(problem, rounds=rounds, steps=steps)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_mistake(PlanFile, error)}") from None
    except ConfigError as error:
        if fleet_file and str(error).startswith(str(fleet_file)):
            raise
        raise ConfigError(f"{path}: {error}") from None
