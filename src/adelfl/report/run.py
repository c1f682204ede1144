"""Accuracy against time in one line: ``adelfl.plot("runs/x")``."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord, find_runs
from adelfl.report.comparison import Contender
from adelfl.report.curves import draw_comparison
from adelfl.report.style import BLUE, RC, STRATEGY_COLOURS, figure


def plot(*runs: str | Path | RunRecord) -> Figure:
    """Draw accuracy against time.

    Parameters
    ----------
    *runs : str, Path or RunRecord
        Folders of runs, or folders with runs below. Of one run every evaluation is shown, also while it goes; of
        several the mean over seeds, a line per strategy.

    Returns
    -------
    Figure
        Save it with ``.savefig("accuracy.png")``.
    """
    records = [record for run in runs for record in _records(run)]
    if not records:
        raise ConfigError("name at least one run")
    for record in records:
        if record.evaluations[0].size == 0:
            raise ConfigError(f"{record.folder}: accuracy was never evaluated in this run")
    if len(records) == 1:
        return _draw_run(records[0])
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        if record.result is None:
            raise ConfigError(f"{record.folder}: this run is not finished; plot it by itself, or resume it first")
        groups.setdefault((record.info.strategy, record.info.label), []).append(record)
    contenders = [Contender(name, label, found) for (name, label), found in groups.items()]
    info = records[0].info
    return draw_comparison(contenders, f"{info.data}, {info.devices} devices".lstrip(", "))


def _records(run: str | Path | RunRecord) -> list[RunRecord]:
    if isinstance(run, RunRecord):
        return [run]
    folder = Path(run)
    if (folder / "run.json").exists():
        return [RunRecord.open(folder)]
    found = find_runs(folder)
    if not found:
        raise ConfigError(f"{folder}: neither a run nor a folder with runs below")
    return [RunRecord.open(record.folder) for record in found]


def _draw_run(record: RunRecord) -> Figure:
    info = record.info
    times, accuracies = record.evaluations
    colour = STRATEGY_COLOURS.get(info.strategy, BLUE)
    with matplotlib.rc_context(RC):
        fig = figure(7.2, 4.2)
        ax = fig.subplots()
        ax.plot(times, accuracies, color=colour, marker="o", markersize=3.5)
        ax.annotate(
            f"{accuracies[-1]:.1%}",
            (times[-1], accuracies[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
        clock = "time" if info.clock == "real" else "virtual time"
        ax.set(xlabel=f"{clock}, seconds", ylabel="test accuracy", xlim=(0, max(info.budget, times[-1])), ylim=(0, 1))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        state = "" if record.result is not None else f", {record.rounds[-1].round} of {info.rounds} rounds so far"
        ax.set_title(f"{info.label}, {info.devices} devices, seed {info.seed}{state}")
    return fig
