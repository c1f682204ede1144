"""Typed contents of a run's folder, and their JSON.

Writers build these classes without checks, since a row is built in every round; ``from_json`` checks what it reads and
raises ValueError. Keys that this version does not know are kept in ``extra``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

Check = Callable[[Any], Any]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value  # an int stays one, so that JSON is reproduced


def _positive(check: Check) -> Check:
    def checked(value: object) -> Any:  # noqa: ANN401 - as the check returns
        if not (number := check(value)) > 0:
            raise ValueError
        return number

    return checked


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _counts(value: object) -> list[int]:
    """Check a list with one count per device or layer; it may be long, so no Python loop."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        raise TypeError
    return value


def _list_of(check: Check) -> Check:
    def checked(value: object) -> list[Any]:
        if not isinstance(value, list):
            raise TypeError
        return [check(element) for element in value]

    return checked


def _mapping_to(check: Check) -> Check:
    return lambda value: {key: check(element) for key, element in _mapping(value).items()}


def _nullable(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _sections(value: object) -> dict[str, Any]:
    """Check a configuration: the sections that readers use must be mappings."""
    config = _mapping(value)
    for name in ("strategy", "training", "flower"):
        section = _mapping(config.get(name, {}))
        _mapping(section.get("options", {}))
        _count(section.get("local_iterations", 1))
    return config


def _schedule(value: object) -> dict[str, Any]:
    schedule = _mapping(value)
    _list_of(_number)(schedule.get("deadlines", []))
    return schedule


def _layers(value: object) -> list[str]:
    names: list[str] = _list_of(_text)(value)
    if not names:
        raise ValueError
    return names


def _checked(kind: type[Any], checks: Mapping[str, Check], data: object) -> dict[str, Any]:
    """Return the constructor's arguments for JSON data; null stands for the default of an optional field."""
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if missing := required - data.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    arguments: dict[str, Any] = {"extra": {key: value for key, value in data.items() if key not in checks}}
    for key, check in checks.items():
        value = data.get(key)
        if value is None and key not in required:
            continue
        try:
            arguments[key] = check(value)
        except (TypeError, ValueError):
            raise ValueError(f"{key} cannot be {str(value)[:60]!r}") from None
    return arguments


@dataclass(frozen=True, slots=True)
class Row:
    """One merge: a line of rounds.jsonl.

    Attributes
    ----------
    round : int
        Version of the weights after the merge; row 0 describes the initial model.
    time : float
        Seconds since the run began, on the run's clock.
    loss, accuracy : float or None
        On the test set; None where the model was not evaluated.
    deadline : float or None
        Seconds that the round was planned to take; None in row 0.
    length : float or None
        Seconds that it took, where that may differ from the deadline.
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
    loss: float | None = None
    accuracy: float | None = None
    deadline: float | None = None
    length: float | None = None
    train_loss: float | None = None
    batch: Sequence[int] = ()
    depth: Sequence[int] = ()
    contributors: Sequence[int] = ()
    devices: Sequence[int] | None = None
    gradients: dict[str, Any] | None = None
    nodes: Sequence[str] | None = None
    abandoned: bool = False
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration(self) -> float | None:
        """Seconds that the round took; None in row 0."""
        return self.deadline if self.length is None else self.length

    def to_json(self) -> dict[str, Any]:
        """Return the line of rounds.jsonl, as a dict."""
        line: dict[str, Any] = {"round": self.round, "time": self.time}
        if self.deadline is not None:
            line["deadline"] = self.deadline
        if self.length is not None:
            line["length"] = self.length
        line["loss"], line["accuracy"] = self.loss, self.accuracy
        if self.deadline is not None:
            line["train_loss"], line["batch"], line["depth"] = self.train_loss, self.batch, self.depth
            line["contributors"] = self.contributors
        if self.devices is not None:
            line["devices"] = self.devices
        if self.gradients is not None:
            line["gradients"] = self.gradients
        if self.nodes is not None:
            line["nodes"] = self.nodes
        if self.nodes is not None or self.abandoned or self.rejected or self.late:
            line["abandoned"], line["rejected"], line["late"] = self.abandoned, self.rejected, self.late
        return {**line, **self.extra} if self.extra else line

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Check a line of rounds.jsonl."""
        row = cls(**_checked(cls, _ROW, data))
        devices = len(row.depth)
        for name in ("batch", "devices", "nodes"):
            values = getattr(row, name)
            if values is not None and len(values) != devices:
                raise ValueError(f"round {row.round} has {devices} depths, but {name} has {len(values)} values")
        return row


_ROW: dict[str, Check] = {
    "round": _count,
    "time": _number,
    "deadline": _number,
    "length": _number,
    "loss": _number,
    "accuracy": _number,
    "train_loss": _number,
    "batch": _counts,
    "depth": _counts,
    "contributors": _counts,
    "devices": _counts,
    "gradients": _mapping,
    "nodes": _list_of(_text),
    "abandoned": _boolean,
    "rejected": _mapping_to(_count),
    "late": _mapping_to(_count),
}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known before the first round: run.json.

    Attributes
    ----------
    config : dict
        The run's configuration, by sections.
    seed : int
    strategy, label : str
        The strategy's name, and its name in reports.
    budget : float
        T_max, seconds.
    rounds : int
    layers : sequence of str
        Names, input side first.
    devices : int
    data : str
        Name of the data set.
    inputs : dict
        Digests of the files and objects that the run depends on.
    constants, schedule : dict or None
        The problem's constants and the plan, as far as they are known.
    notes : sequence of str
        Remarks of the strategy.
    versions : dict
        Package versions.
    made_by : str or None
        ``simulate`` for an experiment that was built in Python.
    nodes : sequence of str or None
        Flower's nodes.
    clock : str
        ``virtual`` or ``real``.
    started : float or None
        Seconds since 1970, for a real clock.
    extra : dict
        Keys that this version does not know.
    """

    config: Mapping[str, Any]
    seed: int
    strategy: str
    label: str
    budget: float
    rounds: int
    layers: Sequence[str]
    devices: int
    data: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    made_by: str | None = None
    nodes: Sequence[str] | None = None
    clock: str = "virtual"
    started: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the strategy."""
        section = self.config.get("strategy", self.config.get("flower", {}))
        options: Mapping[str, Any] = section.get("options", {})
        return options

    @property
    def local_iterations(self) -> int:
        """Local steps per round, E."""
        section = self.config.get("training", self.config.get("flower", {}))
        return max(1, int(section.get("local_iterations", 1)))

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

    def to_json(self) -> dict[str, Any]:
        """Return what run.json holds."""
        kept = {key: value for key in _INFO if (value := getattr(self, key)) is not None or key == "schedule"}
        if self.clock == "virtual":
            del kept["clock"]
        return kept | dict(self.extra)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Check what run.json holds."""
        return cls(**_checked(cls, _INFO, data))


_INFO: dict[str, Check] = {  # in the order of run.json
    "config": _sections,
    "inputs": _mapping_to(_text),
    "seed": _count,
    "strategy": _text,
    "label": _text,
    "data": _text,
    "budget": _positive(_number),
    "rounds": _positive(_count),
    "layers": _layers,
    "devices": _positive(_count),
    "nodes": _list_of(_text),
    "constants": _mapping,
    "schedule": _schedule,
    "notes": _list_of(_text),
    "clock": _text,
    "started": _number,
    "versions": _mapping_to(_text),
    "made_by": _text,
}


@dataclass(frozen=True, slots=True)
class RunResult:
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
    abandoned : int or None
        Rounds without a merge, for runs on Flower.
    extra : dict
        Keys that this version does not know.
    """

    final_accuracy: float | None
    accuracy: Mapping[str, float | None]
    depth: float
    rounds: int
    time: float
    engine: str | None = None
    abandoned: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what result.json holds."""
        optional = ("engine", "abandoned")
        kept = {key: value for key in _RESULT if (value := getattr(self, key)) is not None or key not in optional}
        return kept | dict(self.extra)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Check what result.json holds."""
        return cls(**_checked(cls, _RESULT, data))


_RESULT: dict[str, Check] = {
    "final_accuracy": _nullable(_number),
    "accuracy": _mapping_to(_nullable(_number)),
    "depth": _number,
    "rounds": _count,
    "time": _number,
    "engine": _text,
    "abandoned": _count,
}


def read_failure(data: object) -> dict[str, str]:
    """Check what failed.json holds: ``error``, and ``traceback`` if the code raised an unexpected exception."""
    if not isinstance(data, dict) or not isinstance(data.get("error"), str):
        raise ValueError("it lacks error")
    return data
