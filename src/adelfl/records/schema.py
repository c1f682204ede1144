"""Typed contents of a run's folder, and their JSON.

Writers build these classes without checks, since a row is built in every round. ``from_json`` checks the types of what
it reads and raises ValueError. Keys that this version does not know are kept in ``extra``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Self

_EXTRA = "extra"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _values(value: object, check: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))


# How the type of a field is checked, by its annotation. Lists per device may be long, so they are checked as a whole.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "float": _is_number,
    "str": _is_text,
    "bool": lambda value: isinstance(value, bool),
    "Sequence[int]": lambda v: isinstance(v, list) and set(map(type, v)) <= {int} and min(v, default=0) >= 0,
    "Sequence[float | None]": lambda v: isinstance(v, list) and all(n is None or _is_number(n) for n in v),
    "Sequence[str]": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
    "Mapping[str, int]": lambda value: _values(value, _is_count),
    "Mapping[str, float]": lambda value: _values(value, _is_number),
    "Mapping[str, str]": lambda value: _values(value, _is_text),
    "Mapping[str, float | None]": lambda value: _values(value, lambda v: v is None or _is_number(v)),
}


@cache
def _fields(kind: Hashable) -> dict[str, tuple[Callable[[Any], bool], bool, bool]]:
    """Return the check of each field of a dataclass, whether it is required, and whether it may be null."""
    described = {}
    for f in fields(kind):  # type: ignore[arg-type]
        name, nullable = str(f.type).removesuffix(" | None"), str(f.type).endswith(" | None")
        described[f.name] = (_CHECKS[name], f.default is MISSING and f.default_factory is MISSING, nullable)
    del described[_EXTRA]
    return described


class _Json:
    """Conversion from and to JSON, which the record's classes share."""

    __slots__ = ()

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Check and convert parsed JSON; null stands for the default of an optional key."""
        if not isinstance(data, dict):
            raise ValueError("it is not a JSON object")
        described = _fields(cls)  # type: ignore[arg-type]
        if missing := [name for name, (_, required, _) in described.items() if required and name not in data]:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        arguments, extra = dict[str, Any](), dict[str, Any]()
        for name, value in data.items():
            if name not in described:
                extra[name] = value
                continue
            check, required, nullable = described[name]
            if (value is None and nullable) or (value is not None and check(value)):
                arguments[name] = value
            elif value is not None or required:
                raise ValueError(f"{name} cannot be {str(value)[:60]!r}")
        instance = cls(**arguments, **{_EXTRA: extra})
        instance._check()
        return instance

    def _check(self) -> None:
        """Raise ValueError if values contradict each other."""

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON can hold, in the order of the fields, without those that are None."""
        names, nulls = self._written()
        values = {name: value for name in names if (value := getattr(self, name)) is not None or name in nulls}
        extra = getattr(self, _EXTRA)
        return {**values, **extra} if extra else values

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
    nodes : sequence of str or None
        Flower's node of each device.
    abandoned : bool
        Whether the round had too few updates for a merge.
    rejected, late : dict
        Number of rejected updates by reason, and of late ones by the round they belong to.
    extra : dict
        Keys that this version does not know.
    """

    round: int
    time: float
    deadline: float | None = None
    length: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    train_loss: float | None = None
    batch: Sequence[int] = ()
    depth: Sequence[int] = ()
    contributors: Sequence[int] = ()
    devices: Sequence[int] | None = None
    gradients: Mapping[str, Any] | None = None
    losses: Sequence[float | None] | None = None
    nodes: Sequence[str] | None = None
    abandoned: bool = False
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
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
_FLOWER = tuple(_fields(Row))
_SIMULATED = _FLOWER[: _FLOWER.index("nodes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(_Json):
    """What is known before the first round: run.json.

    Attributes
    ----------
    config : dict
        The run's configuration, by sections.
    inputs : dict
        Digests of the files and objects that the run depends on.
    seed : int
    strategy, label : str
        The strategy's name, and its name in reports.
    data : str
        Name of the data set.
    budget : float
        T_max, seconds.
    rounds : int
    layers : sequence of str
        Names, input side first.
    devices : int
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
    clock : str
        ``virtual`` or ``real``.
    started : float or None
        Seconds since 1970, for a real clock.
    versions : dict
        Package versions.
    made_by : str or None
        ``simulate`` for an experiment that was built in Python.
    extra : dict
        Keys that this version does not know.
    """

    config: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    seed: int
    strategy: str
    label: str
    data: str = ""
    budget: float
    rounds: int
    layers: Sequence[str]
    devices: int
    nodes: Sequence[str] | None = None
    constants: Mapping[str, Any] | None = None
    codec: str = "none"
    chosen_iterations: int | None = None
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
        planned: Sequence[float] = (self.schedule or {}).get("deadlines", ())
        return planned

    @property
    def uniform_deadline(self) -> float:
        """T_max / R, seconds."""
        return self.budget / self.rounds

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        return [name for name in _fields(RunInfo) if name != "clock" or self.clock == "real"], ("schedule",)

    def _check(self) -> None:
        if not (self.budget > 0 and self.rounds > 0 and self.devices > 0 and self.layers):
            raise ValueError("budget, rounds, devices and layers cannot be zero or empty")
        sections = [self._section("strategy"), self._section("training")]
        if not all(isinstance(s, dict) and isinstance(s.get("options", {}), dict) for s in sections):
            raise ValueError("a section of config is not a JSON object")
        if not (isinstance(self.deadlines, list | tuple) and all(map(_is_number, self.deadlines))):
            raise ValueError("the deadlines of schedule are not numbers")


@dataclass(frozen=True, slots=True)
class RunResult(_Json):
    """Summary of a finished run: result.json.

    Attributes
    ----------
    final_accuracy : float or None
        Mean accuracy at the end of the budget; None if the model was never evaluated.
    accuracy : dict
        Accuracy at quarters of the budget, None before the first evaluation.
    depth : float
        Mean share of the layers that devices finished.
    rounds : int
        Rounds done.
    time : float
        Seconds used, on the run's clock.
    engine : str or None
        Name of the training engine, for simulated runs.
    slowest_accuracy : float or None
        Accuracy of the last model on the classes that the slowest tenth of the devices hold, each class weighted by
        its share of their data; for simulated runs.
    abandoned : int or None
        Rounds without a merge, for runs on Flower.
    time_use : dict or None
        Seconds of the budget by use, for runs on Flower: computing, lag and idle in rounds that were merged (means over
        devices), abandoned rounds, between rounds, unused.
    extra : dict
        Keys that this version does not know.
    """

    final_accuracy: float | None
    accuracy: Mapping[str, float | None]
    depth: float
    rounds: int
    time: float
    engine: str | None = None
    slowest_accuracy: float | None = None
    abandoned: int | None = None
    time_use: Mapping[str, float] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def _written(self) -> tuple[Iterable[str], Sequence[str]]:
        return _fields(RunResult), ("final_accuracy",)


def read_failure(data: object) -> dict[str, str]:
    """Check what failed.json holds: ``error``, and ``traceback`` if the code raised an unexpected exception."""
    if not isinstance(data, dict) or not isinstance(data.get("error"), str):
        raise ValueError("it lacks error")
    return data
