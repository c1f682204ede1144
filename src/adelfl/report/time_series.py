"""Accuracy and loss against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord, find_runs
from adelfl.report.comparison import Contender, last_values
from adelfl.report.groups import Group
from adelfl.report.run_data import Floats, RunData
from adelfl.report.style import BLUE, GREY, RC, STRATEGY_COLOURS, figure, looks_of, mean_and_error, short

_GRID = np.linspace(0.0, 1.0, 501)


def plot(*runs: str | Path | RunRecord) -> Figure:
    """Draw accuracy against time.

    Parameters
    ----------
    *runs : str, Path or RunRecord
        Folders of runs, or folders with runs below. A single run is drawn with every evaluation, finished or not;
        several runs as means over seeds, one line per strategy.

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
    contenders = [Contender(name, label, members) for (name, label), members in groups.items()]
    info = records[0].info
    return draw_comparison(contenders, f"{info.data}, {info.devices} devices".lstrip(", "))


def _records(run: str | Path | RunRecord) -> list[RunRecord]:
    if isinstance(run, RunRecord):
        return [run]
    folder = Path(run)
    folders = [folder] if (folder / "run.json").exists() else [record.folder for record in find_runs(folder)]
    if not folders:
        raise ConfigError(f"{folder}: neither a run nor a folder with runs below")
    return [RunRecord.open(folder) for folder in folders]


def _draw_run(record: RunRecord) -> Figure:
    info, (times, accuracies) = record.info, record.evaluations
    colour = STRATEGY_COLOURS.get(info.strategy, BLUE)
    with matplotlib.rc_context(RC):
        fig = figure(7.2, 4.2)
        ax = fig.subplots()
        ax.plot(times, accuracies, color=colour, marker="o", markersize=3.5)
        beside: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "color": colour}
        ax.annotate(f"{accuracies[-1]:.1%}", (times[-1], accuracies[-1]), **beside)
        clock = "time" if info.clock == "real" else "virtual time"
        ax.set(xlabel=f"{clock}, seconds", ylabel="test accuracy", xlim=(0, max(info.budget, times[-1])), ylim=(0, 1))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        state = "" if record.result is not None else f", {record.rounds[-1].round} of {info.rounds} rounds so far"
        ax.set_title(f"{info.label}, {info.devices} devices, seed {info.seed}{state}")
    return fig


def draw_comparison(contenders: list[Contender], title: str) -> Figure:
    """Draw mean accuracy and its standard error for each strategy; the oracle is a dashed grey ceiling."""
    budgets = {record.info.budget for c in contenders for record in c.records}
    scale, unit = (budgets.pop(), "virtual time, seconds") if len(budgets) == 1 else (1.0, "share of the time budget")
    with matplotlib.rc_context(RC):
        fig = figure(8.0, 4.8)
        ax = fig.subplots()
        name_ends(ax, plot_accuracy(ax, contenders, scale), scale)
        ax.set(xlabel=unit, title=title)
        ax.text(0.01, 0.98, _about_seeds(contenders), transform=ax.transAxes, va="top", color=GREY)
    return fig


def draw_study(cells: list[tuple[str, list[Contender]]], title: str, *, deadlines: bool = True) -> Figure:
    """Draw a panel of deadlines and one of accuracy against time for each cell.

    Parameters
    ----------
    cells : list of (title, contenders)
        The deadlines are those of the contenders whose records have a schedule.
    title : str
        Title of the figure.
    deadlines : bool
        Whether to draw deadlines.
    """
    columns = 2 if len(cells) == 4 else min(3, len(cells))
    rows = -(-len(cells) // columns)
    with matplotlib.rc_context(RC):
        fig = figure(3.6 * columns, (2.9 if deadlines else 0.8) + 2.7 * rows)
        if deadlines:
            parts = fig.subfigures(2, 1, height_ratios=(2.1, 2.7 * rows), squeeze=False)
            for ax, (name, contenders) in zip(parts[0, 0].subplots(1, columns, squeeze=False)[0], cells, strict=False):
                _plot_deadlines(ax, contenders)
                ax.set(title=name, xlabel="round")
        axes = (parts[1, 0] if deadlines else fig).subplots(rows, columns, squeeze=False).ravel()
        best, lines = 0.0, dict[str, Line2D]()
        for ax, (name, contenders) in zip(axes, cells, strict=False):
            best = max(best, *(end for end, _, _ in plot_accuracy(ax, contenders, 1.0)))
            ax.set(xlabel="share of the time budget", title=name)
            ax.xaxis.set_major_formatter(PercentFormatter(1.0))
            lines |= {c.label: line for c, line in zip(contenders, ax.get_lines(), strict=True)}
        for ax in axes[: len(cells)]:
            ax.set_ylim(0.0, min(1.0, np.ceil(12.0 * best) / 10.0))
        for ax in axes[len(cells) :]:
            ax.set_axis_off()
        fig.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=min(4, len(lines)))
        between = "   " if columns > 2 else "\n"
        fig.suptitle(f"{title}{between}{_about_seeds(cells[0][1])}", fontsize=10.5, x=0.01, ha="left")
    return fig


def plot_accuracy(ax: Axes, contenders: list[Contender], scale: float) -> list[tuple[float, str, str]]:
    """Plot the mean accuracy of each contender over its seeds; return last value, label and colour of each line."""
    grid = np.linspace(0.0, 1.0, 1001)
    ends = []
    for c, (colour, line) in zip(contenders, looks_of([c.name for c in contenders]), strict=True):
        curve = c.curve(grid)
        mean = curve.mean(axis=0)
        error = curve.std(axis=0, ddof=1) / np.sqrt(len(curve)) if len(curve) > 1 else np.zeros_like(mean)
        ax.plot(grid * scale, mean, color=colour, linestyle=line, linewidth=1.6 if c.name == "oracle" else 2.2)
        ax.fill_between(grid * scale, mean - error, mean + error, color=colour, alpha=0.16, linewidth=0)
        ends.append((float(mean[-1]), c.label, colour))
    ax.set(ylabel="test accuracy", xlim=(0, scale), ylim=(0, 1.0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    return ends


def name_ends(ax: Axes, ends: list[tuple[float, str, str]], x: float) -> None:
    """Write labels beside the ends (height, label, colour) of lines that stop at ``x``; limits must be set before."""
    to_axes = ax.transData + ax.transAxes.inverted()
    heights = _spread([float(to_axes.transform((x, y))[1]) for y, _, _ in ends], min(0.055, 1.0 / len(ends)))
    beside: dict[str, Any] = {
        "xycoords": "axes fraction",
        "xytext": (6, 0),
        "textcoords": "offset points",
        "va": "center",
    }
    for (_, label, colour), y in zip(ends, heights, strict=True):
        ax.annotate(label, (1.0, y), color=colour, **beside)


def _spread(values: list[float], gap: float) -> list[float]:
    """Move labels apart so that none covers another or leaves the top, keeping their order."""
    placed = np.array(values)
    rising = np.argsort(placed, kind="stable")
    for low, high in pairwise(rising):
        placed[high] = max(placed[high], placed[low] + gap)
    placed[rising[-1]] = min(placed[rising[-1]], 1.0)
    for high, low in pairwise(rising[::-1]):
        placed[low] = min(placed[low], placed[high] - gap)
    heights: list[float] = placed.tolist()
    return heights


def _about_seeds(contenders: list[Contender]) -> str:
    seeds = sorted({c.seeds for c in contenders})
    span = f"{seeds[-1]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean of {span} seeds, band: ± standard error" if seeds[-1] > 1 else ""


def _plot_deadlines(ax: Axes, contenders: list[Contender]) -> None:
    """Plot the planned deadlines of each seed as multiples of the uniform one, since fleets differ between seeds."""
    for c, (colour, _) in zip(contenders, looks_of([c.name for c in contenders]), strict=True):
        for info in (record.info for record in c.records):
            T = np.asarray(info.deadlines) / info.uniform_deadline
            ax.step(np.arange(1, T.size + 1), T, where="mid", color=colour, alpha=0.7, linewidth=1.2)
    ax.axhline(1.0, color=GREY, linestyle="--", linewidth=1.3)
    ax.set(ylabel="deadline / uniform")
    ax.set_ylim(bottom=0)


def evaluated(groups: Sequence[Group], what: str) -> list[Group]:
    """Return the groups whose ``accuracy`` or ``loss`` was evaluated."""
    return [g for g in groups if any(np.isfinite(getattr(run, what)).any() for run in g.runs)]


def draw_progress(groups: Sequence[Group], what: str) -> Figure:
    """Draw the mean ``accuracy`` or ``loss`` of each strategy against time, with its standard error."""
    groups = evaluated(groups, what)
    scale, unit = _time_axis([run for g in groups for run in g.runs])
    with matplotlib.rc_context(RC):
        fig = figure(10.0, max(4.1, 0.25 * len(groups)))
        ax = fig.subplots()
        means = []
        for g in groups:
            mean, error = mean_and_error(np.array([_curve(run, getattr(run, what)) for run in g.runs]))
            width = 1.6 if g.line == "--" else 2.2
            ax.step(_GRID * scale, mean, where="post", color=g.colour, linestyle=g.line, linewidth=width)
            low, high = mean - error, mean + error
            ax.fill_between(_GRID * scale, low, high, step="post", color=g.colour, alpha=0.16, linewidth=0)
            means.append(mean[np.isfinite(mean)])
        values = np.concatenate(means)
        ax.set(xlabel=unit, xlim=(0, scale), ylabel=f"test {what}")
        if what == "accuracy":
            ax.set_ylim(0.0, max(0.1, min(1.0, math.ceil(11.0 * values.max()) / 10.0)))
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        elif values.min() > 0 and values.max() > 20.0 * np.median(values):
            ax.set_yscale("log")
        elif values.min() < 0.6 * values.max():
            ax.set_ylim(min(0.0, values.min()), 1.05 * values.max())
        if scale == 1.0:
            ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        labels = [short(g.label) + ("" if g.finished else "\n(not finished)") for g in groups]
        ends = [(float(mean[-1]), label, g.colour) for g, label, mean in zip(groups, labels, means, strict=True)]
        name_ends(ax, ends, scale)
    return fig


def _curve(run: RunData, values: Floats) -> Floats:
    """Return the last evaluation at each share of the budget; NaN before the first and after an early end."""
    known = np.isfinite(values)
    budget = run.info.budget
    times = np.minimum(run.evaluated[known], budget)  # a real clock may overrun
    curve = last_values(times, values[known], _GRID * budget)
    if run.state != "finished" and times.size:
        curve[_GRID * budget > times[-1] + budget * _GRID[1]] = np.nan
    return curve


def _time_axis(runs: list[RunData]) -> tuple[float, str]:
    clocks = {run.info.clock for run in runs}
    clock = f"{clocks.pop()} time" if len(clocks) == 1 else "time"
    budgets = [run.info.budget for run in runs]
    if max(budgets) < min(budgets) * (1 + 1e-9):
        return budgets[0], f"{short(clock)}, seconds"
    return 1.0, f"{short(clock)}, share of the budget"
