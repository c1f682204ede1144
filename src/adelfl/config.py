"""What a user's file may say, checked where it comes in: one sentence per mistake, with the file's own key."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adelfl.errors import ConfigError
from adelfl.fleet import MAX_DEVICES, Fleet
from adelfl.learning_rate import ConstantRate, InverseDecay
from adelfl.planner import Constants, Problem

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ProblemSection(_Section):
    """[problem]."""

    rounds: int = Field(ge=1, le=1_000_000)
    budget: Positive
    layers: int = Field(ge=1, le=1000)
    cohort: int | None = Field(default=None, ge=2)
    local_iterations: int = Field(default=1, ge=1)
    baseline_batch: int = Field(default=16, ge=1)


class LearningRateSection(_Section):
    """[learning_rate]."""

    schedule: Literal["inverse", "constant"] = "inverse"
    initial: Positive = 0.1
    time_scale: Positive | None = None

    def build(self) -> InverseDecay | ConstantRate:
        """The schedule as an object."""
        if self.schedule == "inverse":
            return InverseDecay(self.initial, 1.0 if self.time_scale is None else self.time_scale)
        if self.time_scale is not None:
            raise ConfigError('learning_rate.time_scale: belongs to schedule = "inverse", not to "constant"')
        return ConstantRate(self.initial)


class ConstantsSection(_Section):
    """[constants]."""

    sigma2: Positive | list[Positive] = 20.0
    G2: Positive | list[Positive] = 1.5
    rho_c: NotNegative = Constants.rho_c
    rho_s: Positive = Constants.rho_s
    Gamma: NotNegative = Constants.Gamma
    Delta1: NotNegative = Constants.Delta1

    def build(self) -> Constants:
        """The constants as an object."""
        values: dict[str, Any] = self.model_dump()
        values |= {key: tuple(v) for key, v in values.items() if isinstance(v, list)}
        return Constants(**values)


class DeviceEntry(_Section):
    """[[device]]."""

    compute: Positive
    upload: NotNegative = 0.0
    count: int = Field(default=1, ge=1, le=MAX_DEVICES)
    name: str | None = None


class PlanFile(_Section):
    """What ``adelfl plan`` reads."""

    problem: ProblemSection
    learning_rate: LearningRateSection = Field(default_factory=LearningRateSection)
    constants: ConstantsSection = Field(default_factory=ConstantsSection)
    device: list[DeviceEntry] = Field(default_factory=list)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or say in one sentence why not."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as trouble:
        raise ConfigError(f"{path}: cannot be read ({trouble.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as trouble:
        raise ConfigError(f"{path}: not valid TOML ({trouble})") from None


def load_problem(path: Path, fleet_csv: Path | None = None) -> Problem:
    """Build the planner's problem from a file.

    Parameters
    ----------
    path : Path
        TOML file with [problem], [learning_rate], [constants] and [[device]].
    fleet_csv : Path, optional
        CSV file with columns compute, upload, count; takes the place of the [[device]] entries.
    """
    values = read_toml(path)
    try:
        said = PlanFile.model_validate(values)
        fleet = Fleet.from_csv(fleet_csv) if fleet_csv else _fleet(said.device)
        sizes = said.problem
        return Problem(
            fleet=fleet,
            layers=sizes.layers,
            rounds=sizes.rounds,
            budget=sizes.budget,
            learning_rate=said.learning_rate.build(),
            constants=said.constants.build(),
            cohort=sizes.cohort,
            local_iterations=sizes.local_iterations,
            baseline_batch=sizes.baseline_batch,
        )
    except ValidationError as trouble:
        raise ConfigError(f"{path}: {first_mistake(trouble)}") from None
    except ConfigError as trouble:
        if fleet_csv and str(trouble).startswith(str(fleet_csv)):
            raise
        raise ConfigError(f"{path}: {trouble}") from None


def _fleet(entries: list[DeviceEntry]) -> Fleet:
    if not entries:
        raise ConfigError("device: the fleet is empty; add [[device]] entries, or give a CSV file with --fleet")
    return Fleet.of(
        [d.compute for d in entries],
        [d.upload for d in entries],
        [d.count for d in entries],
        [d.name or f"device #{i}" for i, d in enumerate(entries, start=1)],
    )


_WORDS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be a text in quotes",
    "list_type": "must be a list",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
}


def first_mistake(trouble: ValidationError) -> str:
    """The first of pydantic's complaints as one sentence that opens with the file's key."""
    errors = trouble.errors()
    # A union (number or list) complains once per branch; the number's complaint is the telling one.
    error = next((e for e in errors if e["type"] in ("extra_forbidden",)), errors[0])
    path = [part for part in error["loc"] if not (isinstance(part, str) and _is_branch(part))]
    key = ""
    for part in path:
        key += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if key else part
    if error["type"] == "missing":
        return f"{key}: is missing"
    if error["type"] == "extra_forbidden":
        allowed = _allowed(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(allowed)}"
        return f"{key}: unknown key; {hint}"
    words = _WORDS.get(error["type"], "").format(**error.get("ctx", {})) or error["msg"]
    return f"{key}: {words}, not {_shown(error['input'])}"


def _is_branch(part: str) -> bool:
    """Whether pydantic put the name of a union's branch into the path."""
    return "[" in part or part in ("float", "list")


def _allowed(path: list[Any]) -> list[str]:
    sections: dict[str, type[_Section]] = {
        "problem": ProblemSection,
        "learning_rate": LearningRateSection,
        "constants": ConstantsSection,
        "device": DeviceEntry,
    }
    return list((sections[path[0]] if path else PlanFile).model_fields)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
