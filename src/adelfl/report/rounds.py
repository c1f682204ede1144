"""Deadlines, durations and batch sizes against rounds."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from adelfl.report.groups import Group
from adelfl.report.style import BLACK, GREY, RC, figure, integers, mean_and_error, panels, short, stacked


def planned(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with a schedule before the first round."""
    return [g for g in groups if any(run.planned is not None for run in g.runs)]


def draw_deadlines(groups: Sequence[Group]) -> Figure:
    """Draw planned deadlines against uniform ones, and the durations of every strategy's rounds."""
    uniform = [run.info.uniform_deadline for g in groups for run in g.runs]
    alike = max(uniform) < min(uniform) * (1 + 1e-9)
    scale = uniform[0] if alike else 1.0
    with matplotlib.rc_context(RC):
        fig = figure(10.0, max(3.2, 1.2 + 0.3 * len(groups)))
        if with_plan := planned(groups):
            left, right = fig.subplots(1, 2, width_ratios=(1.1, 1.0))
            _plot_plans(left, with_plan, scale)
            unit = "deadline, seconds" if alike else "deadline / uniform"
            left.set(title="What was planned", xlabel="round", ylabel=unit)
        else:
            right = fig.subplots()
        _plot_lengths(right, groups, scale)
        right.set(title="How long rounds took", xlabel="seconds" if alike else "multiples of the uniform one")
    return fig


def _plot_plans(ax: Axes, groups: Sequence[Group], scale: float) -> None:
    for g in groups:
        plans = [run.planned / run.info.uniform_deadline * scale for run in g.runs if run.planned is not None]
        together = stacked(plans)
        rounds = np.arange(1, together.shape[1] + 1)
        mean, _ = mean_and_error(together)
        ax.step(rounds, mean, where="mid", color=g.colour, linestyle=g.line, label=short(g.label))
        low, high = np.nanmin(together, axis=0), np.nanmax(together, axis=0)
        ax.fill_between(rounds, low, high, step="mid", color=g.colour, alpha=0.16, linewidth=0)
    name = f"uniform{f', {scale:.3g} s' if scale != 1.0 else ''}"
    ax.axhline(scale, color=GREY, linestyle="--", linewidth=1.3, label=name)
    ax.set_ylim(bottom=0, top=1.15 * ax.get_ylim()[1])
    ax.set_xlim(0.5, max(2, max(run.info.rounds for g in groups for run in g.runs)) + 0.5)
    ax.xaxis.set_major_locator(integers())
    ax.legend(loc="best")


def _plot_lengths(ax: Axes, groups: Sequence[Group], scale: float) -> None:
    """Plot a line from the shortest to the longest round, a bar over the middle half, a dot at the median."""
    furthest, nearest = scale, scale
    for place, g in enumerate(reversed(groups)):
        lengths = np.concatenate([run.lengths / run.info.uniform_deadline * scale for run in g.runs])
        if lengths.size == 0:
            continue
        low, first, middle, third, high = np.quantile(lengths, (0.0, 0.25, 0.5, 0.75, 1.0))
        ax.plot((low, high), (place, place), color=g.colour, linewidth=1.4, solid_capstyle="butt")
        ax.plot((first, third), (place, place), color=g.colour, linewidth=6.0, alpha=0.55, solid_capstyle="butt")
        ax.plot(middle, place, "o", color=g.colour, markersize=6.0)
        furthest, nearest = max(furthest, high), min(nearest, low)
    ax.axvline(scale, color=GREY, linestyle="--", linewidth=1.3, zorder=0)
    if nearest > 0 and furthest > 12.0 * nearest:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlim(nearest / 1.4, furthest * 1.4)
    else:
        ax.set_xlim(0, 1.08 * furthest)
    ax.set_yticks(range(len(groups)), [short(g.label) for g in reversed(groups)])
    ax.set_ylim(-0.6, len(groups) - 0.4)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def varied(groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose batch sizes differ between devices or rounds."""
    return [g for g in groups if len(batch_sizes(g)) > 1]


def batch_sizes(group: Group) -> set[float]:
    """Return the smallest and the largest batch size: one value if all are alike, none if there are none."""
    sizes = np.concatenate([run.batches for run in group.runs])
    sizes = sizes[np.isfinite(sizes)]
    return {float(sizes.min()), float(sizes.max())} if sizes.size else set()


def draw_batches(groups: Sequence[Group]) -> Figure:
    """Draw the median, the middle half and the range of batch sizes, one panel per group that varies."""
    groups = varied(groups)
    with matplotlib.rc_context(RC):
        fig, axes, columns = panels(len(groups), 2.6, sharey=True)
        for ax, g in zip(axes, groups, strict=True):
            sizes, _ = mean_and_error(stacked([run.batches for run in g.runs]))
            rounds = np.arange(1, len(sizes) + 1)
            low, first, middle, third, high = sizes.T
            ax.fill_between(rounds, low, high, step="mid", color=g.colour, alpha=0.16, linewidth=0)
            ax.fill_between(rounds, first, third, step="mid", color=g.colour, alpha=0.34, linewidth=0)
            ax.step(rounds, middle, where="mid", color=g.colour)
            ax.set(title=short(g.label), xlim=(0.5, max(2, len(sizes)) + 0.5))
            ax.xaxis.set_major_locator(integers())
            ax.yaxis.set_major_locator(integers())
        axes[0].set_ylim(bottom=0.0)
        for ax in axes[-columns:]:
            ax.set_xlabel("round")
        fig.supylabel("samples per device", fontsize=9.5)
        keys = (Patch(color=BLACK, alpha=0.16), Patch(color=BLACK, alpha=0.45), Line2D([], [], color=BLACK))
        fig.legend(keys, ("all devices", "middle half", "median device"), loc="outside lower center", ncols=3)
    return fig
