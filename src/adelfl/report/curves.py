"""Accuracy against virtual time, with bands over seeds."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adelfl.report.comparison import Contender
from adelfl.report.style import GREY, RC, figure, looks_of


def draw_comparison(contenders: list[Contender], title: str) -> Figure:
    """Draw mean accuracy and its standard error for each strategy; the oracle is a dashed grey ceiling."""
    budgets = {record.info.budget for c in contenders for record in c.records}
    scale, unit = (budgets.pop(), "virtual time, seconds") if len(budgets) == 1 else (1.0, "share of the time budget")
    with matplotlib.rc_context(RC):
        fig = figure(8.0, 4.8)
        ax = fig.subplots()
        ends = plot_accuracy(ax, contenders, scale)
        name_ends(ax, ends, scale)
        ax.set(xlabel=unit, title=title)
        if said := _about_seeds(contenders):
            ax.text(0.01, 0.98, said, transform=ax.transAxes, va="top", color=GREY)
    return fig


def draw_study(cells: list[tuple[str, list[Contender]]], title: str, *, deadlines: bool = True) -> Figure:
    """Draw a panel of deadlines and one of accuracy against time for each cell.

    Parameters
    ----------
    cells : list of (title, contenders)
        The contenders of a cell whose records hold a schedule give the deadlines.
    title : str
        Of the whole.
    deadlines : bool
        Whether there are panels of deadlines.
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
        best = 0.0
        for ax, (name, contenders) in zip(axes, cells, strict=False):
            best = max(best, *(end for end, _, _ in plot_accuracy(ax, contenders, 1.0)))
            ax.set(xlabel="share of the time budget", title=name)
            ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        for ax in axes[: len(cells)]:
            ax.set_ylim(0.0, min(1.0, np.ceil(12.0 * best) / 10.0))
        for ax in axes[len(cells) :]:
            ax.set_axis_off()
        lines = {
            c.label: line
            for ax, (_, contenders) in zip(axes, cells, strict=False)
            for c, line in zip(contenders, ax.get_lines(), strict=True)
        }
        fig.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=min(4, len(lines)))
        between = "   " if columns > 2 else "\n"
        fig.suptitle(f"{title}{between}{_about_seeds(cells[0][1])}", fontsize=10.5, x=0.01, ha="left")
    return fig


def plot_accuracy(ax: Axes, contenders: list[Contender], scale: float) -> list[tuple[float, str, str]]:
    """Plot mean accuracy of each contender over its seeds; where each ends, its label and colour."""
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
    for (_, label, colour), y in zip(ends, heights, strict=True):
        ax.annotate(
            label,
            (1.0, y),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            va="center",
        )


def _about_seeds(contenders: list[Contender]) -> str:
    seeds = sorted({c.seeds for c in contenders})
    span = f"{seeds[-1]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"mean of {span} seeds, band: ± standard error" if seeds[-1] > 1 else ""


def _plot_deadlines(ax: Axes, contenders: list[Contender]) -> None:
    """Planned deadlines of each seed, as multiples of the uniform one: fleets differ between seeds."""
    for c, (colour, _) in zip(contenders, looks_of([c.name for c in contenders]), strict=True):
        for record in c.records:
            T = np.asarray(record.info.deadlines)
            if T.size:
                uniform = record.info.uniform_deadline
                ax.step(np.arange(1, T.size + 1), T / uniform, where="mid", color=colour, alpha=0.7, linewidth=1.2)
    ax.axhline(1.0, color=GREY, linestyle="--", linewidth=1.3)
    ax.set(ylabel="deadline / uniform")
    ax.set_ylim(bottom=0)


def _spread(values: list[float], gap: float) -> list[float]:
    """Move labels apart so that none covers another or leaves the top, keeping their order."""
    placed = np.array(values)
    rising = np.argsort(placed, kind="stable")
    for low, high in pairwise(rising):
        placed[high] = max(placed[high], placed[low] + gap)
    placed[rising[-1]] = min(placed[rising[-1]], 1.0)
    for high, low in pairwise(rising[::-1]):
        placed[low] = min(placed[low], placed[high] - gap)
    found: list[float] = placed.tolist()
    return found
