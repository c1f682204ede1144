"""Typed contents of a run's folder, and their JSON.

Writers build these classes without checks, since a row is built in every round. ``from_json`` checks the types of what
it reads and raises ValueError. Keys that this version does not know are kept in ``extra``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, NotRequired, Self, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # Python's own is not enough for pydantic before 3.12

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
        """Return values that JSON can hold, in the order of the fields, without those that are None."""
        names, nulls = self._written()
        values = {name: value for name in names if (value := getattr(self, name)) is not None or name in nulls}
        return {**values, **self.extra} if self.extra else values

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        """Return the fields to write, and those of them that are written even if they are None."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Row(_Json):
    """One merge: a line of rounds.jsonl.

    Attributes
    ----------
    round : int
        Version of the weights after the merge; row 0 describes the initial model.
    time : float
        Seconds since the run began, on the run's clock.
    deadline, length : float or None
        Seconds that the round was planned to take, None in row 0, and that it took, None if as planned.
    loss, accuracy : float or None
        On the test set; None where the model was not evaluated.
    train_loss : float or None
        Mean loss of the merged updates.
    batch, depth : sequence of int
        Samples and finished layers of each device.
    contributors : sequence of int
        Number of devices merged into each layer.
    devices : sequence of int or None
        The devices; None for the whole fleet, in order.
    gradients : dict or None
        Gradient statistics measured in this round.
    losses : sequence of float or None
        Losses of the devices before they trained, if the strategy requested them.
    computing : float or None
        Seconds that devices computed for the merge, summed over the devices that count in it.
    nodes : sequence of str or None
        Flower's node of each device.
    abandoned : bool
        Whether the round had too few updates for a merge.
    rejected, late : dict
        Number of rejected updates by reason, and of late ones by the round they belong to.
    extra : dict
        Keys that this version does not know.
    """

    round: Count
    time: float
    deadline: float | None = None
    length: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    train_loss: float | None = None
    batch: Sequence[Count] = ()
    depth: Sequence[Count] = ()
    contributors: Sequence[Count] = ()
    devices: Sequence[Count] | None = None
    gradients: Mapping[str, Any] | None = None
    losses: Sequence[float | None] | None = None
    computing: float | None = None
    nodes: Sequence[str] | None = None
    abandoned: bool = False
    rejected: Mapping[str, Count] = field(default_factory=dict)
    late: Mapping[str, Count] = field(default_factory=dict)
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
    """What is known before the first round: run.json.

    Attributes
    ----------
    config, inputs : dict
        The run's configuration by sections, and digests of the files and objects that it depends on.
    strategy, label, data : str
        The strategy's name, its name in reports, and the name of the data set.
    budget : float
        T_max, seconds.
    layers : sequence of str
        Names, input side first.
    nodes : sequence of str or None
        Flower's nodes.
    constants, schedule : dict or None
        The problem's constants and the plan, as far as they are known.
    codec : str
        Name of the codec of uploads.
    chosen_iterations : int or None
        Local steps per round, where the plan chose them.
    notes : sequence of str
        Remarks of the strategy.
    clock, started : str, float or None
        ``virtual`` or ``real``, and the start of a run on a real clock in seconds since 1970.
    versions : dict
        Package versions.
    made_by : str or None
        ``simulate`` for an experiment that was built in Python.
    extra : dict
        Keys that this version does not know.
    """

    config: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: Count
    strategy: str
    label: str
    data: str = ""
    budget: float
    rounds: Count
    layers: Sequence[str]
    devices: Count
    nodes: Sequence[str] | None = None
    constants: Mapping[str, Any] | None = None
    codec: str = "none"
    chosen_iterations: Count | None = None
    schedule: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    clock: str = "virtual"
    started: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    made_by: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def _section(self, simulated: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = self.config.get(simulated, self.config.get("flower", {}))
        return section

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the strategy."""
        options: Mapping[str, Any] = self._section("strategy").get("options", {})
        return options

    def flat_config(self) -> dict[str, Any]:
        """Return the configuration by dotted keys."""

        def flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
            inner = (flat(v, f"{prefix}{k}.") if isinstance(v, Mapping) else {prefix + k: v} for k, v in values.items())
            return {key: value for part in inner for key, value in part.items()}

        return flat(self.config, "")

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
    """Summary of a finished run: result.json.

    Attributes
    ----------
    final_accuracy, accuracy : float or None, dict
        Mean accuracy over the last tenth of the budget, and accuracy at quarters of it; None before the first
        evaluation.
    depth : float
        Mean share of the layers that devices finished.
    rounds, time : int, float
        Rounds done, and seconds used on the run's clock.
    engine : str or None
        Name of the training engine, for simulated runs.
    slowest_accuracy : float or None
        Accuracy of the last model on the classes that the slowest tenth of the devices hold, each class weighted by
        its share of their data; for simulated runs.
    abandoned, time_use : int or None, dict or None
        For runs on Flower: rounds without a merge, and seconds of the budget by use: computing, lag and idle in rounds
        that were merged (means over devices), abandoned rounds, between rounds, unused.
    extra : dict
        Keys that this version does not know.
    """

    final_accuracy: float | None
    accuracy: Mapping[str, float | None]
    depth: float
    rounds: Count
    time: float
    engine: str | None = None
    slowest_accuracy: float | None = None
    abandoned: Count | None = None
    time_use: Mapping[str, float] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        return _names(RunResult), ("final_accuracy",)


def read_failure(data: object) -> dict[str, str]:
    """Check what failed.json holds: ``error``, and ``traceback`` if the code raised an unexpected exception."""
    if not isinstance(data, dict) or not isinstance(data.get("error"), str):
        raise ValueError("it lacks error")
    return data
