"""Figures of a study: accuracies against time, and final accuracies side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from adelfl.report.comparison import Contender
from adelfl.report.style import BLUE, GREY, RC, figure, looks_of
from adelfl.report.time_series import about_seeds, plot_means

Dot = tuple[str, float, float]
"""Name, mean in percent, standard error."""

_TITLE_WIDTH = 42  # characters that fit above a panel


@matplotlib.rc_context(RC)
def draw_study(cells: list[tuple[str, list[Contender]]], title: str, *, deadlines: bool = True) -> Figure:
    """Draw accuracy against time for each cell, a pair of title and contenders, and above it the planned deadlines."""
    columns = 2 if len(cells) == 4 else min(3, len(cells))
    rows = -(-len(cells) // columns)
    fig = figure(max(7.2, 3.6 * columns), (2.9 if deadlines else 0.8) + 2.7 * rows)
    if deadlines:
        parts = fig.subfigures(2, 1, height_ratios=(2.1, 2.7 * rows), squeeze=False)
        for ax, (name, contenders) in zip(parts[0, 0].subplots(1, columns, squeeze=False)[0], cells, strict=False):
            _plot_deadlines(ax, contenders)
            ax.set(title=name, xlabel="round")
    axes = (parts[1, 0] if deadlines else fig).subplots(rows, columns, squeeze=False).ravel()
    best, lines = 0.0, dict[str, Line2D]()
    for ax, (name, contenders) in zip(axes, cells, strict=False):
        best = max(best, *(float(mean[-1]) for mean in plot_means(ax, contenders, 1.0)))
        ax.set(xlabel="share of the time budget", ylabel="test accuracy", title=name)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        lines |= {c.label: line for c, line in zip(contenders, ax.get_lines(), strict=True)}
    for ax in axes[: len(cells)]:
        ax.set_ylim(0.0, min(1.0, np.ceil(12.0 * best) / 10.0))
    for ax in axes[len(cells) :]:
        ax.set_axis_off()
    fig.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=min(4, len(lines)))
    between = "   " if columns > 2 else "\n"
    everyone = [c for _, contenders in cells for c in contenders]
    fig.suptitle(f"{title}{between}{about_seeds(everyone)}", fontsize=10.5, x=0.01, ha="left")
    return fig


def _plot_deadlines(ax: Axes, contenders: list[Contender]) -> None:
    """Plot the planned deadlines of each seed relative to the uniform one, since fleets differ between seeds."""
    for c, (colour, _) in zip(contenders, looks_of([c.name for c in contenders]), strict=True):
        for info in (record.info for record in c.records):
            T = np.asarray(info.deadlines) / info.uniform_deadline
            ax.step(np.arange(1, T.size + 1), T, where="mid", color=colour, alpha=0.7, linewidth=1.2)
    ax.axhline(1.0, color=GREY, linestyle="--", linewidth=1.3)
    ax.set(ylabel="deadline / uniform")
    ax.set_ylim(bottom=0)


@matplotlib.rc_context(RC)
def draw_dots(
    panels: Sequence[tuple[str, Sequence[Dot]]],
    title: str,
) -> Figure:
    """Draw panels of (title, rows); the best mean of each is filled, the last row is drawn as a dashed line."""
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    fig = figure(2.2 + 3.4 * columns, 0.7 + 2.7 * lines)
    axes = fig.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for ax, (name, rows) in zip(axes, panels, strict=False):
        *others, (_, ceiling, _) = rows
        best = max(mean for _, mean, _ in others)
        for y, (_, mean, error) in enumerate(others):
            fill = BLUE if mean == best else "white"
            ax.errorbar(mean, y, xerr=error, fmt="o", color=BLUE, markerfacecolor=fill, capsize=2)
        ax.axvline(ceiling, color=GREY, linestyle="--", linewidth=1.3)
        ax.set_yticks(range(len(others)), [label for label, _, _ in others])
        ax.set(title=textwrap.fill(name, _TITLE_WIDTH))
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.xaxis.set_major_formatter(PercentFormatter())
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    axes[0].invert_yaxis()
    for ax in axes[-columns:]:
        ax.set_xlabel(f"final test accuracy ± standard error (dashed: {panels[0][1][-1][0]})")
    fig.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return fig
