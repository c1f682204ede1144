"""The file of ``adelfl run`` and ``adelfl compare``: an experiment as sections, with a default for every key."""

from __future__ import annotations

import hashlib
import inspect
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from adelfl.config.sections import (
    ConstantsSection,
    DeviceEntry,
    LearningRateSection,
    NotNegative,
    Positive,
    Section,
    first_mistake,
    listed_fleet,
    read_toml,
)
from adelfl.errors import ConfigError
from adelfl.fleet import MAX_DEVICES, Fleet
from adelfl.planner import Constants
from adelfl.plugins import import_object

if TYPE_CHECKING:
    from torch import nn

    from adelfl.data import Dataset, Partition
    from adelfl.learning.layers import Layer
    from adelfl.simulation import Experiment


class DataSection(Section):
    """[data]."""

    name: str = "digits"
    data_dir: str | None = None
    factory: str | None = None
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: Positive = 0.5
    partition_file: str | None = None


class ModelSection(Section):
    """[model]."""

    name: str = "mlp"
    hidden: list[int] = Field(default_factory=lambda: [32, 16])
    norm: Literal["none", "group", "batch"] = "group"
    width: Positive = 1.0
    factory: str | None = None
    layers: list[list[str]] | None = None


_FLEET_KEYS = {
    "lognormal": {"compute", "sigma", "upload", "upload_sigma"},
    "uniform": {"low", "high", "upload"},
    "two-class": {"compute", "slow", "slow_share", "upload"},
    "phones": {"compute"},
    "listed": set(),
}


class FleetSection(Section):
    """[fleet]."""

    kind: Literal["lognormal", "uniform", "two-class", "phones", "listed"] = "lognormal"
    devices: int = Field(default=30, ge=2, le=MAX_DEVICES)
    compute: Positive = 16.0
    sigma: NotNegative = 0.5
    upload: NotNegative = 0.0
    upload_sigma: NotNegative = 0.0
    low: Positive = 8.0
    high: Positive = 24.0
    slow: Positive = 4.0
    slow_share: float = Field(default=0.2, ge=0, le=1, allow_inf_nan=False)
    file: str | None = None
    latency: str | None = None

    def build(self, listed: list[DeviceEntry], seed: int, update_megabytes: float) -> Fleet:
        """The fleet as an object."""
        if self.file is not None:
            return Fleet.from_csv(self.file)
        if listed or self.kind == "listed":
            return listed_fleet(listed)
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


class TrainingSection(Section):
    """[training]."""

    rounds: int = Field(default=100, ge=1, le=1_000_000)
    budget: Positive | None = None
    depth: float | None = Field(default=None, gt=0, lt=1)
    batch: int = Field(default=16, ge=1)
    cohort: int | None = Field(default=None, ge=2)
    local_iterations: int = Field(default=1, ge=1)
    weight_decay: NotNegative = 0.0
    momentum: float = Field(default=0.0, ge=0, lt=1)
    evaluations: int = Field(default=50, ge=1)
    seed: int = Field(default=0, ge=0)


class RateSection(LearningRateSection):
    """[learning_rate], with the simulator's own default."""

    schedule: Literal["inverse", "constant"] = "constant"
    initial: Positive = 0.3


class StrategySection(Section):
    """[strategy]: a name, and the options of that strategy."""

    name: str = "adel"
    options: dict[str, Any] = Field(default_factory=dict)


class EngineSection(Section):
    """[engine]."""

    name: Literal["auto", "fused", "stacked", "loop"] = "auto"
    device: str = "cpu"
    threads: int = Field(default=1, ge=1)


class RunFile(Section):
    """What ``adelfl run`` and ``adelfl compare`` read."""

    data: DataSection = Field(default_factory=DataSection)
    model: ModelSection = Field(default_factory=ModelSection)
    fleet: FleetSection = Field(default_factory=FleetSection)
    device: list[DeviceEntry] = Field(default_factory=list)
    training: TrainingSection = Field(default_factory=TrainingSection)
    learning_rate: RateSection = Field(default_factory=RateSection)
    constants: ConstantsSection | None = None
    strategy: StrategySection = Field(default_factory=StrategySection)
    engine: EngineSection = Field(default_factory=EngineSection)

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of the files, and of the modules behind import paths, that this experiment names."""
        files = [self.fleet.file, self.data.partition_file]
        paths = [self.data.factory, self.model.factory, self.fleet.latency]
        if ":" in self.strategy.name:
            paths.append(self.strategy.name)
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


def load_run(path: Path | None, changes: Sequence[str] = ()) -> RunFile:
    """Read an experiment.

    Parameters
    ----------
    path : Path or None
        TOML file; None for the embedded default: digits, 30 devices, an MLP, and so little time that the mean depth is
        15 % at batch 16.
    changes : sequence of str
        ``section.key=value`` pairs that take the place of what the file says; the value as TOML, or a bare word.
    """
    values = {} if path is None else read_toml(path)
    for change in changes:
        _set(values, change)
    _make_absolute(values)
    training = values.setdefault("training", {})
    # The two ways to say how much time there is take each other's place.
    named = {change.partition("=")[0].strip() for change in changes} & {"training.depth", "training.budget"}
    if isinstance(training, dict) and len(named) == 1:
        training.pop({"training.depth": "budget", "training.budget": "depth"}[named.pop()], None)
    if isinstance(training, dict) and not {"budget", "depth"} & training.keys():
        training["depth"] = 0.15
    where = f"{path}: " if path is not None else ""
    try:
        said = RunFile.model_validate(values)
    except ValidationError as trouble:
        raise ConfigError(where + first_mistake(RunFile, trouble)) from None
    # A key that this kind of fleet does not use is refused, rather than ignored.
    fleet = said.fleet
    used = {"kind", "latency"} | ({"file"} if fleet.file else {"devices"} | _FLEET_KEYS[fleet.kind])
    if unused := sorted(fleet.model_fields_set - used):
        kind = "a fleet from a file" if fleet.file else f'kind = "{fleet.kind}"'
        raise ConfigError(f"{where}fleet.{unused[0]}: {kind} does not use it")
    if said.training.budget is not None and said.training.depth is not None:
        raise ConfigError(f"{where}training: give budget (seconds) or depth (mean share of layers), not both")
    return said


def _make_absolute(values: dict[str, Any]) -> None:
    """Let paths mean the same from any folder."""
    for section, key in (("data", "data_dir"), ("data", "partition_file"), ("fleet", "file")):
        inner = values.get(section)
        if isinstance(inner, dict) and isinstance(inner.get(key), str):
            inner[key] = str(Path(inner[key]).absolute())


def parse_value(word: str) -> Any:  # noqa: ANN401 - whatever TOML can say
    """A value as TOML, or a bare word."""
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word.strip()


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


@lru_cache(maxsize=2)
def _dataset(name: str, data_dir: str | None, factory: str | None) -> Dataset:
    from adelfl.data import Dataset, load_dataset

    if factory is None:
        return load_dataset(name, data_dir=data_dir)
    found = import_object("data.factory", factory)()
    if not isinstance(found, Dataset):
        raise ConfigError(f"data.factory: {factory} must return an adelfl.data.Dataset, not {type(found).__name__}")
    return found


def build_data(said: RunFile) -> tuple[Dataset, Partition]:
    """The data set, and who holds which of its training samples."""
    dataset = _dataset(said.data.name, said.data.data_dir, said.data.factory)
    # How many devices there are does not depend on how long their uploads take.
    devices = said.fleet.build(said.device, said.training.seed, update_megabytes=1.0).size
    return dataset, _partition(said.data, dataset, devices, said.training.batch, said.training.seed)


def build_experiment(said: RunFile) -> Experiment:
    """Everything that a file describes, ready to run: data, partition, model, layers, fleet, plan."""
    import torch

    from adelfl.latency import Exponential
    from adelfl.learning.engines import LocalWork, keep_memory
    from adelfl.learning.layers import check_supported, find_layers, given_layers
    from adelfl.simulation import Experiment
    from adelfl.strategies import Setting, find_strategy

    torch.set_num_threads(said.engine.threads)
    keep_memory()
    t, seed = said.training, said.training.seed
    dataset, partition = build_data(said)
    model = _model(said.model, dataset, seed)
    check_supported(model)
    example = torch.from_numpy(dataset.x_train[:2])
    layers = given_layers(model, said.model.layers) if said.model.layers else find_layers(model, example)
    megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
    fleet = said.fleet.build(said.device, seed, megabytes)
    setting = Setting(
        fleet=fleet,
        layers=len(layers),
        rounds=t.rounds,
        budget=_budget(t, fleet, len(layers)),
        batch=t.batch,
        learning_rate=said.learning_rate.build(),
        constants=said.constants.build() if said.constants else _estimated(model, layers, dataset, partition, seed),
        cohort=t.cohort,
        local_iterations=t.local_iterations,
    )
    if t.cohort is not None and t.cohort > fleet.size:
        raise ConfigError(f"training.cohort: must be at most the fleet's {fleet.size} devices, not {t.cohort}")
    kind = find_strategy(said.strategy.name)
    try:
        inspect.signature(kind).bind(setting, **said.strategy.options)
    except TypeError as trouble:
        raise ConfigError(f"strategy.options: {said.strategy.name} does not take these ({trouble})") from None
    strategy = kind(setting, **said.strategy.options)
    return Experiment(
        dataset=dataset,
        partition=partition,
        model=model,
        layers=layers,
        strategy=strategy,
        seed=seed,
        local=LocalWork(t.local_iterations, t.weight_decay, t.momentum),
        latency=import_object("fleet.latency", said.fleet.latency)() if said.fleet.latency else Exponential(),
        engine=said.engine.name,
        device=said.engine.device,
        evaluations=t.evaluations,
    )


def _model(said: ModelSection, dataset: Dataset, seed: int) -> nn.Module:
    from torch import nn

    from adelfl.learning.models import build_model

    if said.factory is None:
        return build_model(
            said.name,
            input_shape=dataset.sample_shape,
            classes=dataset.classes,
            seed=seed,
            hidden=tuple(said.hidden),
            norm=said.norm,
            width=said.width,
        )
    found = import_object("model.factory", said.factory)(dataset.sample_shape, dataset.classes, seed)
    if not isinstance(found, nn.Module):
        raise ConfigError(f"model.factory: {said.factory} must return an nn.Module, not {type(found).__name__}")
    return found


def _partition(said: DataSection, dataset: Dataset, devices: int, batch: int, seed: int) -> Partition:
    from adelfl.data import Partition, dirichlet, iid

    if said.partition_file is not None:
        found = Partition.load(said.partition_file)
        if (len(found), found.samples) != (devices, dataset.y_train.size):
            raise ConfigError(
                f"data.partition_file: {said.partition_file} deals {found.samples} samples to {len(found)} devices; "
                f"here are {dataset.y_train.size} samples and {devices} devices"
            )
        return found
    # Each device at least one batch; a fleet too large for that shares samples.
    least = min(batch, dataset.y_train.size)
    if said.partition == "iid":
        return iid(dataset.y_train, devices, seed, min_size=least)
    return dirichlet(dataset.y_train, devices, said.alpha, seed, min_size=least)


def _budget(said: TrainingSection, fleet: Fleet, layers: int) -> float:
    from adelfl.theory.participation import deadline_for_depth

    if said.budget is not None:
        return said.budget
    assert said.depth is not None
    steps = layers * said.local_iterations
    deadline = deadline_for_depth(said.depth, steps, fleet.compute, fleet.upload, said.batch, fleet.count)
    return said.rounds * deadline


def _estimated(
    model: nn.Module, layers: tuple[Layer, ...], dataset: Dataset, partition: Partition, seed: int
) -> Constants:
    """σ² and G² from two half batches of each of at most 16 devices, at the initial weights."""
    import torch

    from adelfl.learning.estimate import estimate_constants
    from adelfl.learning.work import Samples
    from adelfl.seeds import rng_for

    rng = rng_for(seed, "estimate")
    devices = rng.permutation(len(partition))[:16]
    chosen = [partition[int(u)][rng.integers(0, partition[int(u)].size, 32)] for u in devices]
    samples = Samples(torch.from_numpy(dataset.x_train), torch.from_numpy(dataset.y_train))
    sigma2, G2 = estimate_constants(model, layers, samples, chosen)
    return Constants(sigma2=sigma2, G2=G2)
