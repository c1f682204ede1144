"""Accuracy and loss against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adelfl.array_types import Floats
from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.report.comparison import Contender
from adelfl.report.groups import gather
from adelfl.report.style import GREY, RC, figure, looks_of, mean_and_error, short

C = TypeVar("C", bound=Contender)

_GRID = np.linspace(0.0, 1.0, 1001)


def plot(*runs: str | Path | RunRecord) -> Figure:
    """Draw accuracy against time, a line per strategy: its mean over seeds. Save with ``.savefig("accuracy.png")``.

    Parameters
    ----------
    *runs : str, Path or RunRecord
        Runs, their folders, or folders that contain runs. Unfinished runs of a strategy are drawn only if it has no
        finished ones.
    """
    if not runs:
        raise ConfigError("plot: give at least one run")
    groups = evaluated(gather([run.folder if isinstance(run, RunRecord) else Path(run) for run in runs]).groups)
    if not groups:
        raise ConfigError("plot: accuracy was never evaluated in these runs; give others")
    info = groups[0].records[0].info
    return draw_comparison(groups, f"{info.data}, {info.devices} devices".lstrip(", "))


def evaluated(contenders: Sequence[C], what: str = "accuracy") -> list[C]:
    """Return the contenders whose ``accuracy`` or ``loss`` was evaluated."""
    return [c for c in contenders if np.isfinite(c.curve(_GRID, what)).any()]


@matplotlib.rc_context(RC)
def draw_comparison(contenders: Sequence[Contender], title: str = "", what: str = "accuracy") -> Figure:
    """Draw the mean accuracy or loss of each strategy with its standard error; the oracle is a dashed grey line."""
    infos = [record.info for c in contenders for record in c.records]
    clocks, budgets = {info.clock for info in infos}, [info.budget for info in infos]
    clock = short(f"{clocks.pop()} time" if len(clocks) == 1 else "time")
    alike = max(budgets) < min(budgets) * (1 + 1e-9)
    scale, unit = (budgets[0], "seconds") if alike else (1.0, "share of the budget")
    fig = figure(9.0, max(4.6, 0.25 * len(contenders)))
    ax = fig.subplots()
    means = plot_means(ax, contenders, scale, what)
    values = np.concatenate(means)
    ax.set(xlabel=f"{clock}, {unit}", ylabel=f"test {what}", title=title)
    if what == "accuracy":
        ax.set_ylim(0.0, max(0.1, min(1.0, math.ceil(11.0 * values.max()) / 10.0)))
    elif values.min() > 0 and values.max() > 20.0 * np.median(values):
        ax.set_yscale("log")
    elif values.min() < 0.6 * values.max():
        ax.set_ylim(min(0.0, values.min()), 1.05 * values.max())
    if not alike:
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ends = [float(mean[-1]) for mean in means]
    order = np.argsort(ends)[::-1]  # as the lines end, from top to bottom
    labels = [short(contenders[i].label) + ("" if contenders[i].seeds else "\n(not finished)") for i in order]
    fig.legend([ax.get_lines()[i] for i in order], labels, loc="outside right upper")
    note = about_seeds(contenders)
    if what == "accuracy":
        note += "\nfinal accuracies in tables are means over the last tenth of the time"
    fig.supxlabel(note.strip(), fontsize="medium", color=GREY)  # below the axes, since lines may be anywhere in them
    return fig


def plot_means(ax: Axes, contenders: Sequence[Contender], scale: float, what: str = "accuracy") -> list[Floats]:
    """Plot the mean of each contender over its seeds; return the finite values of each line."""
    means = []
    for c, (colour, line) in zip(contenders, looks_of([c.name for c in contenders]), strict=True):
        mean, error = mean_and_error(c.curve(_GRID, what))
        width = 1.6 if c.name == "oracle" else 2.2
        ax.step(_GRID * scale, mean, where="post", color=colour, linestyle=line, linewidth=width)
        low, high = mean - error, mean + error
        ax.fill_between(_GRID * scale, low, high, step="post", color=colour, alpha=0.16, linewidth=0)
        means.append(mean[np.isfinite(mean)])
    ax.set_xlim(0, scale)
    if what == "accuracy":
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return means


def about_seeds(contenders: Sequence[Contender]) -> str:
    """Return a note on the number of seeds that the lines average over; empty for one seed."""
    seeds = sorted({c.seeds for c in contenders if c.seeds} or {1})
    span = f"{seeds[-1]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean of {span} seeds, band: ± standard error" if seeds[-1] > 1 else ""
