"""The file of ``adelfl run`` and ``adelfl compare``, with a default for every key."""

from __future__ import annotations

import hashlib
import inspect
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from adelfl.config.defaults import RATE, RATES, ROUNDS, TABLE, WIDTHS
from adelfl.config.sections import (
    ConstantsSection,
    DeviceEntry,
    LearningRateSection,
    LocalIterations,
    NotNegative,
    Positive,
    Rounds,
    Section,
    first_mistake,
    parse_toml,
    read_toml,
)
from adelfl.data.tables import Split
from adelfl.errors import ConfigError
from adelfl.fleet import MAX_DEVICES
from adelfl.latency import LawName
from adelfl.planner.problem import MAX_BATCH, MAX_BUDGET, MIN_RUN_BUDGET
from adelfl.plugins import import_object
from adelfl.records.summary import MAX_EVALUATIONS
from adelfl.runtime.codec import find_codec
from adelfl.runtime.server_step import ServerStepName

PathName = Annotated[str, AfterValidator(lambda name: str(Path(name).absolute()))]
"""Name of a file or folder, stored as an absolute path."""
LogDeviation = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]  # e^10 is a factor of 20,000


class DataSection(Section):
    """[data]."""

    name: str = "digits"
    data_dir: PathName | None = None
    factory: str | None = None
    file: PathName | None = None
    user_column: str | None = None
    label_column: str | None = None
    skip_columns: list[str] = Field(default_factory=list)
    split: Split = "within"
    test_share: float = Field(default=0.2, gt=0, lt=1)
    split_seed: int = Field(default=0, ge=0)
    partition: str = "iid"
    alpha: Positive = 0.5
    partition_file: PathName | None = None
    validation: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    test_samples: int | None = Field(default=None, ge=1)

    @field_validator("partition")
    @classmethod
    def _known_or_path(cls, value: str) -> str:
        if value not in ("iid", "dirichlet", "users") and ":" not in value:
            raise PydanticCustomError("partition", "must be 'iid', 'dirichlet', 'users' or package.module:function")
        return value

    @model_validator(mode="after")
    def _each_user_is_a_device(self) -> DataSection:
        """Partition a file by its users unless another partition is given."""
        if self.file is not None and "partition" not in self.model_fields_set:
            self.partition = "users"
        return self

    @property
    def partition_path(self) -> str | None:
        """Import path of a user's partition, or None."""
        return self.partition if ":" in self.partition and self.partition_file is None else None

    @property
    def title(self) -> str:
        """Name of the data set, for folders."""
        return self.factory or (self.name if self.file is None else Path(self.file).stem)


class ModelSection(Section):
    """[model]."""

    name: str = "mlp"
    hidden: list[int] = Field(default_factory=lambda: [32, 16])
    norm: Literal["none", "group", "batch"] = "group"
    width: Positive = 1.0
    init: Literal["auto", "torch", "he"] = "auto"
    factory: str | None = None
    layers: list[list[str]] | None = Field(default=None, min_length=1)


class FleetSection(Section):
    """[fleet]."""

    kind: Literal["lognormal", "uniform", "two-class", "phones", "traces"] = "lognormal"
    devices: int = Field(default=30, ge=2, le=MAX_DEVICES)
    compute: Positive = 16.0
    sigma: LogDeviation = 0.5
    upload: NotNegative = 0.0
    upload_sigma: LogDeviation = 0.0
    low: Positive = 8.0
    high: Positive = 24.0
    slow: Positive = 4.0
    slow_share: float = Field(default=0.2, ge=0, le=1, allow_inf_nan=False)
    file: PathName | None = None
    speeds: PathName | None = None
    network: str | None = None
    bandwidth: PathName | None = None
    availability: PathName | None = None
    start_hour: NotNegative | None = None
    speedup: Positive = 1.0
    latency: str | None = None
    dropout: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    drift: NotNegative = 0.0
    throttled: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    churn: float = Field(default=0.0, ge=0, le=0.5, allow_inf_nan=False)
    misjudged: Positive = 1.0
    misjudged_each: Positive = 1.0


class LatencySection(Section):
    """[latency]."""

    law: LawName = "exponential"
    spread: Positive = 0.5
    samples: list[Positive] = Field(default_factory=list)
    costs: Literal["equal", "flops"] | list[Positive] = "equal"
    forward: NotNegative = 0.0
    upload_law: Literal["exponential", "constant", "shifted", "gamma", "lognormal"] = "constant"
    upload_spread: Positive = 0.5
    upload_by_layers: bool = False
    known: bool = True


class TrainingSection(Section):
    """[training]."""

    rounds: Rounds = 100
    budget: float | None = Field(default=None, ge=MIN_RUN_BUDGET, le=MAX_BUDGET, allow_inf_nan=False)
    depth: float | None = Field(default=None, gt=0, lt=1)
    budget_share: Positive = 1.0
    batch: int = Field(default=16, ge=1, le=MAX_BATCH)
    cohort: int | None = Field(default=None, ge=2)
    local_iterations: LocalIterations = 1
    weight_decay: NotNegative = 0.0
    momentum: float = Field(default=0.0, ge=0, lt=1)
    oversample: bool = False
    codec: str = "none"
    evaluations: int = Field(default=50, ge=1, le=MAX_EVALUATIONS)
    seed: int = Field(default=0, ge=0)

    @field_validator("codec")
    @classmethod
    def _known_codec(cls, value: str) -> str:
        try:
            return find_codec(value).name
        except ConfigError as error:
            reason = str(error).partition(", not ")[0].removeprefix("codec ").replace(", or a Codec", "")
            raise PydanticCustomError("codec", "{reason}", {"reason": reason}) from None


class RateSection(LearningRateSection):
    """[learning_rate] of a run; :class:`RunFile` replaces "auto" by a number from :mod:`adelfl.config.defaults`."""

    schedule: Literal["inverse", "constant"] = "constant"
    initial: Positive | Literal["auto"] = "auto"  # type: ignore[assignment]


class StrategySection(Section):
    """[strategy]."""

    name: str = "adel"
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _finite(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Reject infinity and NaN, which JSON cannot represent."""
        for key, option in value.items():
            if isinstance(option, float) and not math.isfinite(option):
                raise PydanticCustomError("finite", "{key} must be a finite number", {"key": key})
        return value


class ServerSection(Section):
    """[server]."""

    step: ServerStepName | Literal["auto"] = "auto"
    lr: Positive | None = None
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    tau: Positive = 1e-3


class EngineSection(Section):
    """[engine]."""

    name: Literal["auto", "fused", "stacked", "loop"] = "auto"
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)


class RunFile(Section):
    """Configuration of ``adelfl run`` and ``adelfl compare``."""

    data: DataSection = Field(default_factory=DataSection)
    model: ModelSection = Field(default_factory=ModelSection)
    fleet: FleetSection = Field(default_factory=FleetSection)
    device: list[DeviceEntry] = Field(default_factory=list)
    latency: LatencySection = Field(default_factory=LatencySection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    learning_rate: RateSection = Field(default_factory=RateSection)
    constants: ConstantsSection | None = None
    strategy: StrategySection = Field(default_factory=StrategySection)
    server: ServerSection = Field(default_factory=ServerSection)
    engine: EngineSection = Field(default_factory=EngineSection)

    @model_validator(mode="after")
    def _with_defaults_of_the_model(self) -> RunFile:
        """Set the learning rate "auto", and rounds and width that are not given, by data set and model."""
        own = self.data.factory is not None or self.model.factory is not None
        data, model = self.data.name if self.data.file is None else TABLE, self.model.name
        if self.learning_rate.initial == "auto":
            rate = RATE if own else RATES.get(data, {}).get(model, RATE)
            self.learning_rate = self.learning_rate.model_copy(update={"initial": rate})
        if not own and "rounds" not in self.training.model_fields_set and model in ROUNDS.get(data, {}):
            self.training = self.training.model_copy(update={"rounds": ROUNDS[data][model]})
        if not own and "width" not in self.model.model_fields_set and model in WIDTHS:
            self.model = self.model.model_copy(update={"width": WIDTHS[model]})
        return self

    def fingerprints(self) -> dict[str, str]:
        """Return the SHA-256 of the files and modules that this configuration names."""
        from adelfl.strategies import code_of

        fleet, files = self.fleet, [self.data.file, self.data.partition_file]
        files += [fleet.file, fleet.speeds, fleet.bandwidth, fleet.availability]
        own = (self.data.factory, self.data.partition_path, self.model.factory, self.fleet.latency)
        paths = [*own, code_of(self.strategy.name)]
        files += [inspect.getsourcefile(import_object("import path", path)) for path in filter(None, paths)]
        return {name: _sha256(name) for name in filter(None, files)}

    def with_strategy(self, name: str, options: dict[str, Any], seed: int) -> RunFile:
        """Return the same configuration with another strategy and seed."""
        strategy = StrategySection(name=name, options=options)
        training = self.training.model_copy(update={"seed": seed})
        return self.model_copy(update={"strategy": strategy, "training": training})


def _sha256(name: str) -> str:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read ({error.strerror})") from None


def load_run(path: str | Path | None, changes: Sequence[str] = ()) -> RunFile:
    """Read a configuration.

    Parameters
    ----------
    path : str, Path or None
        TOML file; None for the default: digits, an MLP, 30 devices, and a budget for a mean depth of 15 % at batch 16.
    changes : sequence of str
        ``section.key=value`` pairs that replace values of the file; a value is TOML or a bare word.
    """
    values = {} if path is None else read_toml(Path(path))
    for change in changes:
        _set(values, change)
    training = values.setdefault("training", {})
    # A change of the depth replaces the budget of the file, and vice versa.
    named = {change.partition("=")[0].strip() for change in changes} & {"training.depth", "training.budget"}
    if isinstance(training, dict) and len(named) == 1:
        training.pop({"training.depth": "budget", "training.budget": "depth"}[named.pop()], None)
    if isinstance(training, dict) and not {"budget", "depth"} & training.keys():
        training["depth"] = 0.15
    where = f"{path}: " if path is not None else ""
    try:
        config = RunFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(where + first_mistake(RunFile, error)) from None
    if contradiction := _contradiction(config):
        raise ConfigError(where + contradiction)
    return config


def _contradiction(config: RunFile) -> str | None:
    """Return an error message if keys exclude each other, or if a key would have no effect."""
    t, fleet = config.training, config.fleet
    if "auto" in (t.rounds, t.local_iterations) and t.budget is None:
        return 'training: rounds or local_iterations = "auto" needs a budget in seconds'
    if t.budget is not None and t.depth is not None:
        return "training: give budget (seconds) or depth (mean share of layers), not both"
    if t.momentum and t.local_iterations == 1:
        return "training.momentum: it begins at zero in every round, so it has no effect with local_iterations = 1"
    if config.device and (beside := fleet.model_fields_set & {"devices", "file", "kind"}):
        return f"fleet.{min(beside)}: the [[device]] entries define the fleet; remove this key or the entries"
    if (fleet.speeds or fleet.bandwidth or fleet.availability) and fleet.kind != "traces":
        return 'fleet: speeds, bandwidth and availability need kind = "traces"'
    return None


def parse_value(word: str) -> Any:  # noqa: ANN401 - any TOML value
    """Parse a value as TOML, or take it as a bare word."""
    try:
        return parse_toml(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word.strip()
    except ValueError as error:
        raise ConfigError(f"{word.strip()[:40]}…: not a value ({error})") from None


def _set(values: dict[str, Any], change: str) -> None:
    key, equals, word = change.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise ConfigError(f"--set {change}: must look like section.key=value")
    inner = values
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {change}: {part} is not a section")
    inner[path[-1]] = parse_value(word)
