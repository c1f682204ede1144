"""Typed contents of a run's folder, and their JSON.

Writers build these classes without checks, since a row is built in every round. ``from_json`` checks types and raises
ValueError. Keys that this version does not know are kept in ``extra``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, NotRequired, Self, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Count = Annotated[int, Field(ge=0)]


@cache
def _names(kind: Hashable) -> dict[str, bool]:
    """Return the fields of a dataclass that are keys in JSON, and whether each is required."""
    described = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind)}  # type: ignore[arg-type]
    del described["extra"]
    return described


@cache
def _checker(kind: Hashable) -> TypeAdapter[dict[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    keys = {name: hints[name] if required else NotRequired[hints[name]] for name, required in _names(kind).items()}
    return TypeAdapter(TypedDict("Keys", keys))  # type: ignore[operator]


class _Json:
    """Conversion from and to JSON, which the record's classes share."""

    __slots__ = ()
    extra: Mapping[str, Any]

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Check and convert parsed JSON; null stands for the default of an optional key."""
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        kind: Hashable = cls  # type: ignore[assignment]  # mypy does not take a class for hashable
        names = _names(kind)
        values = {key: value for key, value in data.items() if names.get(key) or (value is not None and key in names)}
        extra = {key: value for key, value in data.items() if key not in names}
        try:
            arguments = _checker(kind).validate_python(values, strict=True) | {"extra": extra}
        except ValidationError as invalid:
            errors = invalid.errors()
            if missing := sorted(str(error["loc"][0]) for error in errors if error["type"] == "missing"):
                raise ValueError(f"it lacks {', '.join(missing)}") from None
            name = str(errors[0]["loc"][0])
            raise ValueError(f"{name} cannot be {str(values[name])[:60]!r}") from None
        instance = cls(**arguments)
        instance._check()
        return instance

    def _check(self) -> None:
        """Raise ValueError if values contradict each other."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, in their order, without those that are None."""
        names, nulls = self._written()
        values = {name: value for name in names if (value := getattr(self, name)) is not None or name in nulls}
        return {**values, **self.extra} if self.extra else values

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        """Return the fields to write, and those of them that are written even if they are None."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Row(_Json):
    """One merge: a line of rounds.jsonl."""

    round: Count
    """Version of the weights after the merge; row 0 describes the initial model."""
    time: float
    """Seconds since the run began, on the run's clock."""
    deadline: float | None = None
    """Seconds that the round was planned to take; None in row 0."""
    length: float | None = None
    """Seconds that it took; None if as planned."""
    loss: float | None = None
    """Test loss; None where the model was not evaluated."""
    accuracy: float | None = None
    """Test accuracy; None where the model was not evaluated."""
    train_loss: float | None = None
    """Mean loss of the merged updates."""
    batch: Sequence[Count] = ()
    """Samples of each device."""
    depth: Sequence[Count] = ()
    """Finished layers of each device."""
    contributors: Sequence[Count] = ()
    """Number of devices merged into each layer."""
    devices: Sequence[Count] | None = None
    """The devices; None for the whole fleet, in order."""
    gradients: Mapping[str, Any] | None = None
    """Gradient statistics measured in this round."""
    losses: Sequence[float | None] | None = None
    """Losses of the devices before they trained, if the strategy requested them."""
    computing: float | None = None
    """Seconds that devices computed for the merge, summed over the devices that count in it."""
    nodes: Sequence[str] | None = None
    """Flower's node of each device."""
    abandoned: bool = False
    """Whether the round had too few updates for a merge."""
    rejected: Mapping[str, Count] = field(default_factory=dict)
    """Number of rejected updates by reason."""
    late: Mapping[str, Count] = field(default_factory=dict)
    """Number of late updates by the round for which they were computed."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration(self) -> float | None:
        """Seconds that the round took; None in row 0."""
        return self.deadline if self.length is None else self.length

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        return _INITIAL if self.deadline is None else _SIMULATED if self.nodes is None else _FLOWER, _EVALUATED

    def _check(self) -> None:
        for name in ("batch", "devices", "nodes"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.depth):
                raise ValueError(f"round {self.round} has {len(self.depth)} depths, but {len(values)} values of {name}")


_EVALUATED = ("loss", "accuracy", "train_loss")
_INITIAL = ("round", "time", "loss", "accuracy")
_FLOWER = tuple(_names(Row))
_SIMULATED = _FLOWER[: _FLOWER.index("nodes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(_Json):
    """Content of run.json, which is written before the first round."""

    config: Mapping[str, Any]
    """The run's configuration, by sections."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files and objects that the run depends on."""
    seed: Count
    strategy: str
    label: str
    """The strategy's name in reports."""
    data: str = ""
    budget: float
    """T_max, seconds."""
    rounds: Count
    layers: Sequence[str]
    """Names, input side first."""
    devices: Count
    nodes: Sequence[str] | None = None
    """Flower's nodes."""
    constants: Mapping[str, Any] | None = None
    codec: str = "none"
    """Name of the codec of uploads."""
    chosen_iterations: Count | None = None
    """Local steps per round, where the plan chose them."""
    schedule: Mapping[str, Any] | None = None
    """The plan, as far as it is known when the run starts."""
    notes: Sequence[str] = ()
    """Remarks of the strategy."""
    clock: str = "virtual"
    """``virtual`` or ``real``."""
    started: float | None = None
    """Seconds since 1970, for a real clock."""
    versions: Mapping[str, str] = field(default_factory=dict)
    made_by: str | None = None
    """``simulate`` for an experiment that was built in Python."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def _section(self, simulated: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.config.get(simulated, self.config.get("flower", {}))
        return section

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the strategy."""
        options: Mapping[str, Any] = self._section("strategy").get("options", {})
        return options

    @property
    def local_iterations(self) -> int:
        """Local steps per round, E."""
        given = self._section("training").get("local_iterations", 1)
        return self.chosen_iterations or (max(1, int(given)) if given != "auto" else 1)

    @property
    def steps(self) -> int:
        """Depth of a device that finishes everything, E·L."""
        return len(self.layers) * self.local_iterations

    @property
    def deadlines(self) -> Sequence[float]:
        """Planned deadlines; empty without a plan."""
        planned: Sequence[float] = (self.schedule or {}).get("deadlines", [])
        return planned

    @property
    def uniform_deadline(self) -> float:
        """T_max / R, seconds."""
        return self.budget / self.rounds

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        return [name for name in _names(RunInfo) if name != "clock" or self.clock == "real"], ("schedule",)

    def _check(self) -> None:
        if not (self.budget > 0 and self.rounds > 0 and self.devices > 0 and self.layers):
            raise ValueError("budget, rounds, devices and layers cannot be zero or empty")
        sections = [self._section("strategy"), self._section("training")]
        if not all(isinstance(s, dict) and isinstance(s.get("options", {}), dict) for s in sections):
            raise ValueError("a section of config is not a JSON object")
        if not (isinstance(self.deadlines, list) and all(type(value) in (int, float) for value in self.deadlines)):
            raise ValueError("the deadlines of schedule are not numbers")


@dataclass(frozen=True, slots=True)
class RunResult(_Json):
    """Summary of a finished run: result.json."""

    final_accuracy: float | None
    """Mean accuracy over the last tenth of the budget; None if the model was never evaluated."""
    accuracy: Mapping[str, float | None]
    """Accuracy at quarters of the budget; None before the first evaluation."""
    depth: float
    """Mean share of the layers that devices finished."""
    rounds: Count
    time: float
    """Seconds used, on the run's clock."""
    engine: str | None = None
    """Name of the training engine, for simulated runs."""
    slowest_accuracy: float | None = None
    """Accuracy of the last model on the classes that the slowest tenth of the devices hold, each class weighted by its
    share of their data; for simulated runs."""
    abandoned: Count | None = None
    """Rounds without a merge, for runs on Flower."""
    time_use: Mapping[str, float] | None = None
    """Seconds of the budget by use, for runs on Flower: computing, lag and idle time in merged rounds (means over
    devices), abandoned rounds, time between rounds, unused time."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        return _names(RunResult), ("final_accuracy",)


def read_failure(data: object) -> str:
    """Return the sentence of failed.json, which also has ``traceback`` if the code raised an unexpected exception."""
    if not isinstance(data, dict) or not isinstance(data.get("error"), str):
        raise ValueError("it lacks error")
    return str(data["error"])
