"""Sections that configuration files share, and validation errors as one sentence with the key in the file."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adelfl.errors import ConfigError
from adelfl.fleet import MAX_DEVICES, Fleet
from adelfl.learning_rate import ConstantRate, InverseDecay
from adelfl.planner import Constants
from adelfl.planner.problem import MAX_LOCAL_ITERATIONS, MAX_ROUNDS

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rounds = Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | Literal["auto"]
LocalIterations = Annotated[int, Field(ge=1, le=MAX_LOCAL_ITERATIONS)] | Literal["auto"]


class Section(BaseModel):
    """Base of the tables of a file; unknown keys and wrong types are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class LearningRateSection(Section):
    """[learning_rate]."""

    schedule: Literal["inverse", "constant"] = "inverse"
    initial: Positive = 0.1
    time_scale: Positive | None = None

    def build(self) -> InverseDecay | ConstantRate:
        """Return the schedule."""
        if self.schedule == "inverse":
            return InverseDecay(self.initial, 1.0 if self.time_scale is None else self.time_scale)
        if self.time_scale is not None:
            raise ConfigError('learning_rate.time_scale: only for schedule = "inverse"; remove it')
        return ConstantRate(self.initial)


class ConstantsSection(Section):
    """[constants]."""

    sigma2: Positive | list[Positive] = 20.0
    G2: Positive | list[Positive] = 1.5
    rho_c: NotNegative = Constants.rho_c
    rho_s: Positive = Constants.rho_s
    Gamma: NotNegative = Constants.Gamma
    Delta1: NotNegative = Constants.Delta1

    def build(self) -> Constants:
        """Return the constants."""
        values: dict[str, Any] = self.model_dump()
        values |= {key: tuple(v) for key, v in values.items() if isinstance(v, list)}
        return Constants(**values)


class DeviceEntry(Section):
    """[[device]]."""

    compute: Positive
    upload: NotNegative = 0.0
    count: int = Field(default=1, ge=1, le=MAX_DEVICES)
    overhead: NotNegative = 0.0
    spread: NotNegative = 1.0
    name: str | None = None


class PlanDevice(DeviceEntry):
    """[[device]] of a plan or a file of devices; in the file of a run, the partition states the samples instead."""

    samples: int | None = Field(default=None, ge=1)


def listed_fleet(entries: Sequence[DeviceEntry]) -> Fleet:
    """Return the fleet of a file's [[device]] entries."""
    if not entries:
        raise ConfigError("device: the fleet is empty; add [[device]] entries, or give a CSV file")
    samples = [getattr(d, "samples", None) for d in entries]
    return Fleet.of(
        [d.compute for d in entries],
        [d.upload for d in entries],
        [d.count for d in entries],
        [d.name or f"device #{i}" for i, d in enumerate(entries, start=1)],
        None if all(n is None for n in samples) else [math.inf if n is None else n for n in samples],
        [d.overhead for d in entries] if any(d.overhead for d in entries) else None,
        [d.spread for d in entries] if any(d.spread != 1.0 for d in entries) else None,
    )


class _FleetFile(Section):
    """The [[device]] entries of a TOML file; all other keys are ignored."""

    model_config = ConfigDict(extra="ignore")
    device: list[PlanDevice] = Field(default_factory=list)


def read_fleet(path: Path) -> Fleet:
    """Read a fleet from the [[device]] entries of a .toml file, or from a CSV file."""
    if path.suffix.lower() != ".toml":
        return Fleet.from_csv(path)
    try:
        return listed_fleet(_FleetFile.model_validate(read_toml(path)).device)
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_mistake(_FleetFile, error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; every error is a ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or raise ConfigError."""
    try:
        return parse_toml(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML ({error})") from None


_WORDS = {
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be a text in quotes",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
}


def first_mistake(file: type[Section], invalid: ValidationError) -> str:
    """Return the first validation error as one sentence that begins with the key in the file."""
    errors = invalid.errors()
    # A union (number or list) reports an error per branch; the relevant one has the longest path, or comes first.
    error = max(errors, key=lambda e: (e["type"] == "extra_forbidden", len(e["loc"]), -errors.index(e)))
    *outer, last = error["loc"] or ("",)
    path = [part for part in outer if not _is_branch(part)]
    if error["type"] == "extra_forbidden" or not _is_branch(last):
        path.append(last)
    key = ""
    for part in path:
        key += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if key else part
    if error["type"] == "missing":
        return f"{key}: is missing"
    if error["type"] == "extra_forbidden":
        allowed = _allowed(file, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(allowed)}"
        if path[-1] in file.model_fields:
            hint = f"[{path[-1]}] is a section of its own, with {', '.join(_allowed(file, path[-1:]))}"
        return f"{key}: unknown key; {hint}"
    words = _WORDS.get(error["type"], "").format(**error.get("ctx", {})) or error["msg"]
    if error["type"] in ("int_type", "float_type"):  # of a union with words such as "auto"
        others = [e for e in errors if e["type"] == "literal_error" and e["loc"][:-1] == error["loc"][:-1]]
        words += "".join(f" or {e['ctx']['expected']}" for e in others if _is_branch(last))
    if error["type"] == "list_type" and isinstance(error["input"], dict):
        words += f" of tables, each below a line [[{key}]]"
    return f"{key}: {words}, not {_shown(error['input'])}"


def _is_branch(part: str | int) -> bool:
    """Return whether a part of pydantic's path names a branch of a union."""
    return isinstance(part, str) and re.match(r"constrained-|list\[|literal\[|(float|int)$", part) is not None


def _allowed(file: type[Section], path: list[Any]) -> list[str]:
    """Return the keys of the section at ``path``."""
    known: type[BaseModel] = file
    for part in path:
        if isinstance(part, str):
            inner = known.model_fields[part].annotation
            options = [inner, *get_args(inner)]
            known = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return list(known.model_fields)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python prints no integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."
