"""Runs from folders, grouped by strategy: what a report is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adelfl.errors import AdelError, ConfigError
from adelfl.records.reader import run_folders
from adelfl.report.comparison import Contender
from adelfl.report.style import looks_of
from adelfl.report.traces import Trace, read_trace

MOST_GROUPS = 24
"""More lines than these nobody can tell apart."""


@dataclass(frozen=True, eq=False)
class Group:
    """One strategy over its seeds.

    Attributes
    ----------
    contender : Contender
        Its finished runs, summed up.
    traces : list of Trace
        The runs to draw: the finished ones, or all if none is.
    runs : int
        How many there are in all.
    colour, line : str
        How it is drawn.
    """

    contender: Contender
    traces: list[Trace]
    runs: int
    colour: str
    line: str

    @property
    def label(self) -> str:
        """What it is called."""
        return self.contender.label

    @property
    def finished(self) -> int:
        """Runs that came to their end."""
        return len(self.contender.results)


@dataclass(frozen=True, eq=False)
class Gathered:
    """All that was found.

    Attributes
    ----------
    groups : list of Group
        Best final accuracy first.
    traces : list of Trace
        Every run that can be read, by folder.
    troubles : dict
        Folders that cannot be read, and why; and those left out as doubles.
    empty : list of Path
        Places without a run.
    """

    groups: list[Group]
    traces: list[Trace]
    troubles: dict[Path, str]
    empty: list[Path] = field(default_factory=list)

    @property
    def drawn(self) -> list[Trace]:
        """The runs that pictures show."""
        return [trace for group in self.groups for trace in group.traces]

    @property
    def oracle(self) -> Group | None:
        """The ceiling, if it is among them."""
        return next((g for g in self.groups if g.contender.name == "oracle" and g.finished), None)


def gather(places: Sequence[Path]) -> Gathered:
    """Read runs, and folders of runs.

    Raises
    ------
    ConfigError
        If a place does not exist, if no run can be read, or if there are too many strategies for one report.
    """
    traces: list[Trace] = []
    troubles: dict[Path, str] = {}
    folders, empty = run_folders(places)
    for folder in folders:
        try:
            traces.append(read_trace(folder))
        except AdelError as trouble:
            troubles[folder] = str(trouble).removeprefix(f"{folder}: ")
    if not traces:
        folder, why = next(iter(troubles.items()))
        more = f" (nor can {len(troubles) - 1} others)" if len(troubles) > 1 else ""
        raise ConfigError(f"{folder}: cannot be read{more}: {why}")
    by_label = _by_label(_without_doubles(traces, troubles))
    if len(by_label) > MOST_GROUPS:
        raise ConfigError(
            f"these runs are of {len(by_label)} strategies or configurations; a report compares up to {MOST_GROUPS}: "
            "name fewer folders"
        )
    return Gathered(_groups(by_label), traces, troubles, empty)


def _without_doubles(traces: list[Trace], troubles: dict[Path, str]) -> list[Trace]:
    """One run for each strategy, configuration and seed. On a real clock every run is one of its own."""
    kept: dict[object, Trace] = {}
    for trace in sorted(traces, key=lambda trace: trace.state != "finished"):
        key = (trace.label, trace.info.seed, tuple(trace.settings.items()))
        if trace.clock == "virtual" and key in kept:
            where = kept[key].record.folder
            troubles[trace.record.folder] = f"left out: the same strategy, configuration and seed as {where}"
        else:
            kept[key if trace.clock == "virtual" else id(trace)] = trace
    return [trace for trace in traces if trace in kept.values()]


def _by_label(traces: list[Trace]) -> dict[str, list[Trace]]:
    """Seeds of one strategy together; where one label stands for several configurations, what differs is added."""
    same: dict[str, list[Trace]] = {}
    for trace in traces:
        same.setdefault(trace.label, []).append(trace)
    found: dict[str, list[Trace]] = {}
    for label, several in same.items():
        keys = differing([trace.settings for trace in several])
        for trace in several:
            said = [f"{key.rpartition('.')[2]} {trace.settings.get(key, 'unset')}" for key in keys]
            found.setdefault(", ".join([label, *said]), []).append(trace)
    return found


def differing(settings: Sequence[dict[str, str]]) -> list[str]:
    """Keys that do not have one value in all of them."""
    keys = dict.fromkeys(key for s in settings for key in s)
    return [key for key in keys if len({s.get(key) for s in settings}) > 1]


def _groups(by_label: dict[str, list[Trace]]) -> list[Group]:
    contenders = {}
    for label, traces in by_label.items():
        finished = [trace for trace in traces if trace.state == "finished"]
        contenders[label] = Contender(traces[0].name, label, [trace.record for trace in finished])
    order = sorted(contenders, key=lambda label: _rank(contenders[label]))
    found = []
    for label, (colour, line) in zip(order, looks_of([contenders[label].name for label in order]), strict=True):
        contender, traces = contenders[label], by_label[label]
        shown = [trace for trace in traces if trace.state == "finished"] or traces
        found.append(Group(contender, shown, len(traces), colour, line))
    return found


def _rank(contender: Contender) -> tuple[bool, float, str]:
    mean = float(np.mean(contender.final)) if contender.results else math.nan
    return math.isnan(mean), 0.0 if math.isnan(mean) else -mean, contender.label
