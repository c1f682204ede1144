"""Accuracy and loss against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adelfl.errors import ConfigError
from adelfl.records.reader import RunRecord
from adelfl.report.comparison import Contender
from adelfl.report.groups import gather
from adelfl.report.style import GREY, RC, Floats, figure, looks_of, mean_and_error, short

C = TypeVar("C", bound=Contender)

_GRID = np.linspace(0.0, 1.0, 1001)


def plot(*runs: str | Path | RunRecord) -> Figure:
    """Draw accuracy against time, a line per strategy: its mean over seeds.

    Parameters
    ----------
    *runs : str, Path or RunRecord
        Folders of runs, or folders with runs below. Runs that are not finished are drawn if their strategy has no
        finished ones.

    Returns
    -------
    Figure
        Save it with ``.savefig("accuracy.png")``.
    """
    if not runs:
        raise ConfigError("name at least one run")
    groups = evaluated(gather([run.folder if isinstance(run, RunRecord) else Path(run) for run in runs]).groups)
    if not groups:
        raise ConfigError("accuracy was never evaluated in these runs")
    info = groups[0].records[0].info
    return draw_comparison(groups, f"{info.data}, {info.devices} devices".lstrip(", "))


def evaluated(contenders: Sequence[C], what: str = "accuracy") -> list[C]:
    """Return the contenders whose ``accuracy`` or ``loss`` was evaluated."""
    return [c for c in contenders if np.isfinite(c.curve(_GRID, what)).any()]


def draw_comparison(contenders: Sequence[Contender], title: str = "", what: str = "accuracy") -> Figure:
    """Draw the mean accuracy or loss of each strategy, and its standard error; the oracle is a dashed grey ceiling."""
    infos = [record.info for c in contenders for record in c.records]
    clocks, budgets = {info.clock for info in infos}, [info.budget for info in infos]
    clock = short(f"{clocks.pop()} time" if len(clocks) == 1 else "time")
    alike = max(budgets) < min(budgets) * (1 + 1e-9)
    scale, unit = (budgets[0], "seconds") if alike else (1.0, "share of the budget")
    with matplotlib.rc_context(RC):
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
        _name_ends(ax, contenders, [float(mean[-1]) for mean in means], scale)
        ax.text(0.01, 0.98, about_seeds(contenders), transform=ax.transAxes, va="top", color=GREY)
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


def _name_ends(ax: Axes, contenders: Sequence[Contender], ends: list[float], x: float) -> None:
    """Write labels beside the ends of lines, joined to them in their colour and style; limits must be set before."""
    to_axes = ax.transData + ax.transAxes.inverted()
    levels = [float(to_axes.transform((x, y))[1]) for y in ends]
    heights = _spread(levels, min(0.055, 1.0 / len(ends)))
    beside: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction", "va": "center"}
    looks = looks_of([c.name for c in contenders])
    for c, (colour, line), level, y in zip(contenders, looks, levels, heights, strict=True):
        label = short(c.label) + ("" if c.seeds else "\n(not finished)")
        leader = {
            "arrowstyle": "-",
            "color": colour,
            "linestyle": line,
            "linewidth": 1.5,
            "shrinkA": 1,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        }
        ax.annotate(label, (1.0, level), xytext=(1.04, y), color=colour, arrowprops=leader, **beside)


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


def about_seeds(contenders: Sequence[Contender]) -> str:
    """Return how many seeds the lines average over; an empty text for one."""
    seeds = sorted({c.seeds for c in contenders if c.seeds} or {1})
    span = f"{seeds[-1]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean of {span} seeds, band: ± standard error" if seeds[-1] > 1 else ""
