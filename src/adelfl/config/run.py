"""The file of ``adelfl run`` and ``adelfl compare``: an experiment as sections, with a default for every key."""

from __future__ import annotations

import hashlib
import inspect
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

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
    listed_fleet,
    parse_toml,
    read_fleet,
    read_toml,
)
from adelfl.errors import ConfigError
from adelfl.fleet import MAX_DEVICES, Fleet
from adelfl.latency import LawName
from adelfl.planner.problem import MAX_BATCH, MAX_BUDGET, MIN_RUN_BUDGET
from adelfl.plugins import import_object
from adelfl.runtime.server_step import ServerStepName
from adelfl.summary import MAX_EVALUATIONS

LogDeviation = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]  # e^10 is a factor of 20,000


class DataSection(Section):
    """[data]."""

    name: str = "digits"
    data_dir: str | None = None
    factory: str | None = None
    partition: str = "iid"
    alpha: Positive = 0.5
    partition_file: str | None = None
    validation: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    test_samples: int | None = Field(default=None, ge=1)

    @field_validator("partition")
    @classmethod
    def _known_or_path(cls, value: str) -> str:
        if value not in ("iid", "dirichlet") and ":" not in value:
            raise PydanticCustomError(
                "partition", "must be 'iid', 'dirichlet' or an import path package.module:function"
            )
        return value

    @property
    def partition_path(self) -> str | None:
        """The import path of a partition of the user's own."""
        return self.partition if ":" in self.partition and self.partition_file is None else None


class ModelSection(Section):
    """[model]."""

    name: str = "mlp"
    hidden: list[int] = Field(default_factory=lambda: [32, 16])
    norm: Literal["none", "group", "batch"] = "group"
    width: Positive = 1.0
    init: Literal["auto", "torch", "he"] = "auto"
    factory: str | None = None
    layers: list[list[str]] | None = Field(default=None, min_length=1)


_FLEET_KEYS = {
    "lognormal": {"compute", "sigma", "upload", "upload_sigma"},
    "uniform": {"low", "high", "upload"},
    "two-class": {"compute", "slow", "slow_share", "upload"},
    "phones": {"compute"},
    "listed": set(),
}

_IDLE_IN_MODEL = {"mlp": {"norm"}, "cnn": {"hidden", "norm"}, "transformer": {"hidden", "norm"}} | {
    name: {"hidden"} for name in ("vgg11", "vgg13", "resnet18")
}
_LAW_KEYS = {"spread": {"shifted", "gamma", "lognormal"}, "samples": {"samples"}}
_ALWAYS = ("latency", "dropout", "drift", "throttled", "churn", "misjudged", "misjudged_each")


class FleetSection(Section):
    """[fleet]."""

    kind: Literal["lognormal", "uniform", "two-class", "phones", "listed"] = "lognormal"
    devices: int = Field(default=30, ge=2, le=MAX_DEVICES)
    compute: Positive = 16.0
    sigma: LogDeviation = 0.5
    upload: NotNegative = 0.0
    upload_sigma: LogDeviation = 0.0
    low: Positive = 8.0
    high: Positive = 24.0
    slow: Positive = 4.0
    slow_share: float = Field(default=0.2, ge=0, le=1, allow_inf_nan=False)
    file: str | None = None
    latency: str | None = None
    dropout: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    drift: NotNegative = 0.0
    throttled: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    churn: float = Field(default=0.0, ge=0, le=0.5, allow_inf_nan=False)
    misjudged: Positive = 1.0
    misjudged_each: Positive = 1.0

    def build(self, listed: list[DeviceEntry], seed: int, update_megabytes: float) -> Fleet:
        """The fleet as an object."""
        if listed or self.kind == "listed":
            return listed_fleet(listed)
        if self.file is not None:
            return read_fleet(Path(self.file))
        n, seeded = self.devices, {"upload": self.upload, "seed": seed}
        if self.kind == "uniform":
            if self.high <= self.low:
                raise ConfigError(f"fleet.high: must exceed fleet.low = {self.low:g}, not {self.high:g}")
            return Fleet.uniform(n, low=self.low, high=self.high, **seeded)  # type: ignore[arg-type]
        if self.kind == "two-class":
            share = self.slow_share
            return Fleet.two_class(n, fast=self.compute, slow=self.slow, slow_share=share, **seeded)  # type: ignore[arg-type]
        if self.kind == "phones":
            return Fleet.phones(n, compute=self.compute, update_megabytes=update_megabytes, seed=seed)
        spread = {"sigma": self.sigma, "upload_sigma": self.upload_sigma}
        return Fleet.lognormal(n, compute=self.compute, **spread, **seeded)  # type: ignore[arg-type]


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
    trace: str | None = None
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
    evaluations: int = Field(default=50, ge=1, le=MAX_EVALUATIONS)
    seed: int = Field(default=0, ge=0)


_RATES = {
    "digits": {"mlp": 0.3, "cnn": 0.3, "resnet18": 0.1, "transformer": 0.3},
    "mnist": {"mlp": 0.1, "cnn": 0.2, "resnet18": 0.1, "transformer": 0.3},
    "cifar10": {"mlp": 0.1, "cnn": 0.3, "vgg11": 0.03, "vgg13": 0.03, "resnet18": 0.1, "transformer": 0.3},
}
_USUAL_RATE = 0.1  # of data or models of the user's own


class RateSection(LearningRateSection):
    """[learning_rate], with the simulator's own default.

    A :class:`RunFile` replaces "auto" by a number, with which the oracle trains each built-in model on each built-in
    data set in 100 rounds.
    """

    schedule: Literal["inverse", "constant"] = "constant"
    initial: Positive | Literal["auto"] = "auto"  # type: ignore[assignment]


class StrategySection(Section):
    """[strategy]: a name, and the options of that strategy."""

    name: str = "adel"
    options: dict[str, Any] = Field(default_factory=dict)


class ServerSection(Section):
    """[server]: what the server does with merged changes."""

    step: ServerStepName = "sgd"
    lr: Positive | None = None
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    tau: Positive = 1e-3


class EngineSection(Section):
    """[engine]."""

    name: Literal["auto", "fused", "stacked", "loop", "flower"] = "auto"
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)


class RunFile(Section):
    """What ``adelfl run`` and ``adelfl compare`` read."""

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
    def _with_rate(self) -> RunFile:
        """Replace the learning rate "auto" by the number for this data set and model."""
        if self.learning_rate.initial == "auto":
            own = self.data.factory is not None or self.model.factory is not None
            rate = _USUAL_RATE if own else _RATES.get(self.data.name, {}).get(self.model.name, _USUAL_RATE)
            self.learning_rate = self.learning_rate.model_copy(update={"initial": rate})
        return self

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of the files, and of the modules behind import paths, that this experiment names."""
        from adelfl.strategies import code_of

        files = [self.fleet.file, self.data.partition_file, self.latency.trace]
        paths = [
            self.data.factory,
            self.data.partition_path,
            self.model.factory,
            self.fleet.latency,
            code_of(self.strategy.name),
        ]
        files += [inspect.getsourcefile(import_object("import path", path)) for path in filter(None, paths)]
        return {name: _sha256(name) for name in filter(None, files)}

    def with_strategy(self, name: str, options: dict[str, Any], seed: int) -> RunFile:
        """The same experiment with another strategy and seed."""
        strategy = StrategySection(name=name, options=options)
        training = self.training.model_copy(update={"seed": seed})
        return self.model_copy(update={"strategy": strategy, "training": training})


def _sha256(name: str) -> str:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as trouble:
        raise ConfigError(f"{name}: cannot be read ({trouble.strerror})") from None


def load_run(path: Path | None, changes: Sequence[str] = (), shared: Sequence[str] = ()) -> RunFile:
    """Read an experiment.

    Parameters
    ----------
    path : Path or None
        TOML file; None for the embedded default: digits, 30 devices, an MLP, and so little time that the mean depth is
        15 % at batch 16.
    changes : sequence of str
        ``section.key=value`` pairs that take the place of what the file says; the value as TOML, or a bare word.
    shared : sequence of str
        Further ones, meant for many experiments: they need not have an effect on this one.
    """
    own, changes = changes, [*changes, *shared]
    values = {} if path is None else read_toml(path)
    for change in changes:
        _set(values, change)
    _make_absolute(values)
    training = values.setdefault("training", {})
    # The two ways to say how much time there is take each other's place.
    named = set(_keys(changes)) & {"training.depth", "training.budget"}
    if isinstance(training, dict) and len(named) == 1:
        training.pop({"training.depth": "budget", "training.budget": "depth"}[named.pop()], None)
    if isinstance(training, dict) and not {"budget", "depth"} & training.keys():
        training["depth"] = 0.15
    where = f"{path}: " if path is not None else ""
    try:
        said = RunFile.model_validate(values)
    except ValidationError as trouble:
        raise ConfigError(where + first_mistake(RunFile, trouble)) from None
    _refuse_idle(said, _keys(own), set(_keys(shared)), where)
    if "auto" in (said.training.rounds, said.training.local_iterations) and said.training.budget is None:
        raise ConfigError(f'{where}training: rounds or local_iterations = "auto" needs a budget in seconds')
    if said.training.budget is not None and said.training.depth is not None:
        raise ConfigError(f"{where}training: give budget (seconds) or depth (mean share of layers), not both")
    return said


@dataclass(frozen=True)
class _Idle:
    """Keys of a section that do nothing, why, and the keys elsewhere that make it so."""

    section: str
    keys: set[str]
    why: str
    because: tuple[str, ...]


def _idle(said: RunFile) -> Iterator[_Idle]:
    """What the other keys leave without effect."""
    data, model, fleet, latency = said.data, said.model, said.fleet, said.latency
    if data.factory:
        why = "data.factory makes the data set, and does not use it"
        yield _Idle("data", {"name", "data_dir"}, why, ("data.factory",))
    elif data.name == "digits":
        yield _Idle("data", {"data_dir"}, "digits are part of the package, and do not use it", ("data.name",))
    if data.partition_file:
        why = "data.partition_file says who holds what, and does not use it"
        yield _Idle("data", {"partition", "alpha"}, why, ("data.partition_file",))
    elif data.partition != "dirichlet":
        yield _Idle("data", {"alpha"}, f'partition = "{data.partition}" does not use it', ("data.partition",))
    if said.training.momentum and said.training.local_iterations == 1:
        why = "it begins at zero in every round, and local_iterations = 1 does not use it"
        yield _Idle("training", {"momentum"}, why, ("training.local_iterations",))
    if model.factory:
        why = "model.factory makes the model, and does not use it"
        yield _Idle("model", set(ModelSection.model_fields) - {"factory", "layers"}, why, ("model.factory",))
    else:
        idle = _IDLE_IN_MODEL.get(model.name, set())
        yield _Idle("model", idle, f'name = "{model.name}" does not use it', ("model.name",))
    used, kind = {"kind", "devices"} | _FLEET_KEYS[fleet.kind], f'kind = "{fleet.kind}"'
    because: tuple[str, ...] = ("fleet.kind",)
    if said.device or fleet.kind == "listed":
        used, kind = {"kind"} if fleet.kind == "listed" else set(), "a fleet of [[device]] entries"
        because = () if said.device else because
    elif fleet.file:
        used, kind, because = {"file"}, "a fleet from a file", ("fleet.file",)
    idle = set(FleetSection.model_fields) - used - set(_ALWAYS)
    yield _Idle("fleet", idle, f"{kind} does not use it", because)
    if fleet.latency:
        why = "fleet.latency names a model of its own, which does not use it"
        yield _Idle("latency", set(LatencySection.model_fields) - {"known"}, why, ("fleet.latency",))
        return
    idle = {key for key, users in _LAW_KEYS.items() if latency.law not in users}
    yield _Idle("latency", idle, f'law = "{latency.law}" does not use it', ("latency.law",))
    if latency.trace:
        why = "uploads follow latency.trace, which does not use it"
        yield _Idle("latency", {"upload_law", "upload_spread"}, why, ("latency.trace",))
    elif latency.upload_law not in _LAW_KEYS["spread"]:
        why = f'upload_law = "{latency.upload_law}" does not use it'
        yield _Idle("latency", {"upload_spread"}, why, ("latency.upload_law",))


def _keys(changes: Sequence[str]) -> list[str]:
    return [change.partition("=")[0].strip() for change in changes]


def _refuse_idle(said: RunFile, changed: list[str], excused: set[str], where: str) -> None:
    """Refuse a key that does nothing, rather than ignore it; a change may leave what was said before it without use."""
    when = {key: number for number, key in enumerate(changed)}
    for idle in _idle(said):
        cause = max((when.get(key, -1) for key in idle.because), default=-1)
        for key in sorted(getattr(said, idle.section).model_fields_set & idle.keys):
            name = f"{idle.section}.{key}"
            if when.get(name, -1) >= cause and name not in excused and not excused.intersection(idle.because):
                raise ConfigError(f"{where}{name}: {idle.why}")


def _make_absolute(values: dict[str, Any]) -> None:
    """Let paths mean the same from any folder."""
    for section, key in (("data", "data_dir"), ("data", "partition_file"), ("fleet", "file"), ("latency", "trace")):
        inner = values.get(section)
        if isinstance(inner, dict) and isinstance(inner.get(key), str):
            inner[key] = str(Path(inner[key]).absolute())


def parse_value(word: str) -> Any:  # noqa: ANN401 - whatever TOML can say
    """A value as TOML, or a bare word."""
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
