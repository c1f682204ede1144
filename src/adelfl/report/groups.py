"""Runs of a report, grouped by strategy and configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adelfl.errors import AdelError, ConfigError
from adelfl.records.reader import run_folders
from adelfl.report.comparison import Contender
from adelfl.report.run_data import RunData, read_run
from adelfl.report.style import looks_of

MOST_GROUPS = 24
"""Largest number of lines that readers can distinguish in one figure."""


@dataclass(frozen=True, eq=False)
class Group(Contender):
    """One strategy over its seeds, with its colour and line style."""

    records: list[RunData]  # runs to draw: the finished ones, or all if none is finished
    total: int  # number of its runs, finished or not
    colour: str
    line: str


@dataclass(frozen=True, eq=False)
class Gathered:
    """The content of a report."""

    groups: list[Group]  # sorted by final accuracy, best first
    runs: list[RunData]  # every readable run, by folder
    unused: dict[Path, str]  # unreadable folders and duplicates, with the reason
    empty: list[Path] = field(default_factory=list)  # paths without a run

    @property
    def drawn(self) -> list[RunData]:
        """The runs in the figures."""
        return [run for group in self.groups for run in group.records]

    @property
    def oracle(self) -> Group | None:
        """The oracle's group, if it has finished runs."""
        return next((g for g in self.groups if g.name == "oracle" and g.seeds), None)


def gather(places: Sequence[Path]) -> Gathered:
    """Read runs and folders of runs; raise ConfigError if none can be read, or if there are too many strategies."""
    runs: list[RunData] = []
    unused: dict[Path, str] = {}
    folders, empty = run_folders(places)
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except AdelError as error:
            unused[folder] = str(error).removeprefix(f"{folder}: ")
    if not runs:
        folder, reason = next(iter(unused.items()))
        more = f" (nor can {len(unused) - 1} others)" if len(unused) > 1 else ""
        raise ConfigError(f"{folder}: cannot be read{more}: {reason}")
    by_label = _by_label(_without_duplicates(runs, unused))
    if len(by_label) > MOST_GROUPS:
        raise ConfigError(
            f"{len(by_label)} strategies or configurations are too many; give runs of up to {MOST_GROUPS}"
        )
    return Gathered(_groups(by_label), runs, unused, empty)


def _without_duplicates(runs: list[RunData], unused: dict[Path, str]) -> list[RunData]:
    """Keep one run per strategy, configuration and seed, but all runs on a real clock."""
    kept: dict[object, RunData] = {}
    for run in sorted(runs, key=lambda run: run.state != "finished"):
        same = (run.info.label, run.info.seed, tuple(run.settings.items()))
        key: object = same if run.info.clock == "virtual" else id(run)
        if key in kept:
            folder = kept[key].folder
            unused[run.folder] = f"left out: has the same strategy, configuration and seed as {folder}"
        else:
            kept[key] = run
    return [run for run in runs if run in kept.values()]


def _by_label(runs: list[RunData]) -> dict[str, list[RunData]]:
    """Group runs by label; where one label has several configurations, the differing keys are added to it."""
    same: dict[str, list[RunData]] = {}
    for run in runs:
        same.setdefault(run.info.label, []).append(run)
    groups: dict[str, list[RunData]] = {}
    for label, several in same.items():
        keys = differing([run.settings for run in several])
        for run in several:
            values = [f"{key.rpartition('.')[2]} {run.settings.get(key, 'unset')}" for key in keys]
            groups.setdefault(", ".join([label, *values]), []).append(run)
    return groups


def differing(settings: Sequence[dict[str, str]]) -> list[str]:
    """Return the keys whose values differ."""
    keys = dict.fromkeys(key for s in settings for key in s)
    return [key for key in keys if len({s.get(key) for s in settings}) > 1]


def _groups(by_label: dict[str, list[RunData]]) -> list[Group]:
    drawn = {label: [r for r in runs if r.state == "finished"] or runs for label, runs in by_label.items()}
    contenders = sorted((Contender(runs[0].name, label, runs) for label, runs in drawn.items()), key=_rank)
    looks = looks_of([contender.name for contender in contenders])
    return [
        Group(c.name, c.label, drawn[c.label], len(by_label[c.label]), colour, line)
        for c, (colour, line) in zip(contenders, looks, strict=True)
    ]


def _rank(contender: Contender) -> tuple[bool, float, str]:
    mean = float(np.mean(contender.final)) if contender.seeds else math.nan
    return math.isnan(mean), 0.0 if math.isnan(mean) else -mean, contender.label
