"""Figures of a report over rounds: deadlines, durations, batch sizes, layers and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from adelfl.array_types import Floats
from adelfl.report.groups import Group
from adelfl.report.run_data import RunData
from adelfl.report.style import BLACK, GREY, RC, figure, mean_and_error, short

MOST_DEVICES = 200
"""Largest number of devices in a figure; larger fleets are sampled."""

MOST_CELLS = 250
"""Largest number of columns in a figure; with more rounds, a column is the mean of several."""

_MOST_NAMES = 10
_NOTHING = "#ededed"  # not a colour of the colour map


@matplotlib.rc_context(RC)
def draw_deadlines(groups: Sequence[Group]) -> Figure:
    """Draw planned deadlines against uniform ones, and the durations of every strategy's rounds."""
    uniform = [run.info.uniform_deadline for g in groups for run in g.records]
    alike = max(uniform) < min(uniform) * (1 + 1e-9)
    scale = uniform[0] if alike else 1.0
    fig = figure(10.0, max(3.2, 1.2 + 0.3 * len(groups)))
    if planned := [g for g in groups if any(run.planned.size for run in g.records)]:
        left, right = fig.subplots(1, 2, width_ratios=(1.1, 1.0))
        _plot_plans(left, planned, scale)
        unit = "deadline, seconds" if alike else "deadline / uniform"
        left.set(title="Planned deadlines", xlabel="round", ylabel=unit)
    else:
        right = fig.subplots()
    _plot_lengths(right, groups, scale)
    right.set(title="Durations of rounds", xlabel="seconds" if alike else "duration / uniform deadline")
    return fig


def _plot_plans(ax: Axes, groups: Sequence[Group], scale: float) -> None:
    for g in groups:
        plans = [run.planned / run.info.uniform_deadline * scale for run in g.records if run.planned.size]
        together = _stacked(plans)
        rounds = np.arange(1, together.shape[1] + 1)
        mean, _ = mean_and_error(together)
        ax.step(rounds, mean, where="mid", color=g.colour, linestyle=g.line, label=short(g.label))
        low, high = np.nanmin(together, axis=0), np.nanmax(together, axis=0)
        ax.fill_between(rounds, low, high, step="mid", color=g.colour, alpha=0.16, linewidth=0)
    name = f"uniform{f', {scale:.3g} s' if scale != 1.0 else ''}"
    ax.axhline(scale, color=GREY, linestyle="--", linewidth=1.3, label=name)
    ax.set_ylim(bottom=0, top=1.15 * ax.get_ylim()[1])
    _count_rounds(ax, max(run.info.rounds for g in groups for run in g.records))
    ax.legend(loc="best")


def _plot_lengths(ax: Axes, groups: Sequence[Group], scale: float) -> None:
    """Plot a line from the shortest to the longest round, a bar over the middle half, a dot at the median."""
    furthest, nearest = scale, scale
    for place, g in enumerate(reversed(groups)):
        lengths = np.concatenate([run.lengths / run.info.uniform_deadline * scale for run in g.records])
        low, first, middle, third, high = np.quantile(lengths, (0.0, 0.25, 0.5, 0.75, 1.0))
        ax.hlines(place, low, high, color=g.colour, linewidth=1.4)
        ax.hlines(place, first, third, color=g.colour, linewidth=6.0, alpha=0.55)
        ax.plot(middle, place, "o", color=g.colour)
        furthest, nearest = max(furthest, high), min(nearest, low)
    ax.axvline(scale, color=GREY, linestyle="--", linewidth=1.3, zorder=0)
    if nearest > 0 and furthest > 12.0 * nearest:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.set_xlim(0, 1.08 * furthest)
    ax.set_yticks(range(len(groups)), [short(g.label) for g in reversed(groups)])
    ax.set_ylim(-0.6, len(groups) - 0.4)
    ax.grid(visible=False, axis="y")


@matplotlib.rc_context(RC)
def draw_batches(groups: Sequence[Group]) -> Figure:
    """Draw the median, the middle half and the range of batch sizes, one panel per strategy."""
    fig, axes, _ = _panels(groups, 2.2, sharey=True)
    for ax, g in zip(axes, groups, strict=True):
        sizes, _ = mean_and_error(_stacked([run.batches for run in g.records]))
        edges = np.arange(0.5, len(sizes) + 1)
        low, first, middle, third, high = sizes.T
        ax.stairs(high, edges, baseline=low, fill=True, color=g.colour, alpha=0.16, linewidth=0)
        ax.stairs(third, edges, baseline=first, fill=True, color=g.colour, alpha=0.34, linewidth=0)
        ax.stairs(middle, edges, baseline=None, color=g.colour, linewidth=1.8)
        _count_rounds(ax, g.records[0].info.rounds)
        ax.yaxis.set_major_locator(_integers())
    axes[0].set_ylim(0.0, 1.05 * axes[0].get_ylim()[1])
    fig.supylabel("samples per device", fontsize=9.5)
    keys = (Patch(color=BLACK, alpha=0.16), Patch(color=BLACK, alpha=0.45), Line2D([], [], color=BLACK))
    fig.legend(keys, ("all devices", "middle half", "median device"), loc="outside lower center", ncols=3)
    return fig


@matplotlib.rc_context(RC)
def draw_coverage(groups: Sequence[Group]) -> Figure:
    """Draw the share of devices whose layer was merged, layers by rounds, mean over seeds, a panel per strategy."""
    names = [g.records[0].info.layers for g in groups]
    alike = all(layers == names[0] for layers in names)
    fig, axes, columns = _panels(groups, min(3.6, 1.25 + 0.13 * max(map(len, names))))
    for place, (ax, g, layers) in enumerate(zip(axes, groups, names, strict=True)):
        share, _ = mean_and_error(_stacked([run.coverage for run in g.records]))
        image = _show(ax, share.T, g.records[0].info.rounds)
        every = -(-len(layers) // _MOST_NAMES)
        named = not alike or place % columns == 0
        ticks = [short(name, 14) if named else "" for name in layers[::every]]
        ax.set_yticks(range(1, len(layers) + 1, every), ticks)
    _add_colorbar(fig, axes, columns, image, "share of devices")
    return fig


@matplotlib.rc_context(RC)
def draw_contributions(groups: Sequence[Group]) -> Figure:
    """Draw the share of each device's layers that was merged, devices by rounds, for one run of each strategy."""
    runs = [min((run for run in g.records if run.done), key=lambda run: run.info.seed) for g in groups]
    used = [used_work(run) for run in runs]
    fig, axes, columns = _panels(groups, min(3.4, 1.6 + 0.025 * max(map(len, used))))
    for ax, work, run in zip(axes, used, runs, strict=True):
        image = _show(ax, work, run.info.rounds)
        ax.set_yticks([])
        ax.set_ylabel("devices")
    _add_colorbar(fig, axes, columns, image, "share of its layers")
    return fig


def used_work(run: RunData) -> Floats:
    """Return the merged share of each device's layers, shape (devices, rounds); NaN where it took no part.

    Devices are sorted by their mean, largest first; more than MOST_DEVICES are sampled evenly in that order.
    """
    numbers, shares = run.work
    t, share = np.repeat(np.arange(len(numbers)), [n.size for n in numbers]), np.concatenate(shares)
    devices, row = np.unique(np.concatenate(numbers), return_inverse=True)
    order = np.argsort(-np.bincount(row, share) / np.bincount(row), kind="stable")
    shown = order[np.linspace(0, order.size - 1, min(order.size, MOST_DEVICES)).round().astype(int)]
    place = np.full(devices.size, -1)
    place[shown] = np.arange(shown.size)
    kept = place[row] >= 0
    work = np.full((shown.size, len(numbers)), np.nan)
    work[place[row][kept], t[kept]] = share[kept]
    return work


def _show(ax: Axes, values: Floats, rounds: int) -> AxesImage:
    """Show values of shape (rows, rounds done), the first row at the top, blank up to ``rounds``."""
    rows, done = values.shape
    together = max(1, -(-done // MOST_CELLS))
    starts = range(0, done, together)
    cells = np.array([mean_and_error(values[:, t : t + together].T)[0] for t in starts]).reshape(-1, rows).T
    end = 0.5 + len(starts) * together
    look: dict[str, Any] = {"aspect": "auto", "cmap": "cividis", "interpolation": "nearest"}
    image = ax.imshow(cells, vmin=0, vmax=1, extent=(0.5, end, rows + 0.5, 0.5), **look)
    _count_rounds(ax, max(rounds, done))
    ax.set_facecolor(_NOTHING)
    ax.grid(visible=False)
    return image


def _add_colorbar(fig: Figure, axes: list[Axes], columns: int, image: AxesImage, label: str) -> None:
    aspect = 14 * -(-len(axes) // columns)
    fig.colorbar(image, ax=axes, format=PercentFormatter(1.0), label=label, shrink=0.9, aspect=aspect, pad=0.01)


def _panels(groups: Sequence[Group], height: float, *, sharey: bool = False) -> tuple[Figure, list[Axes], int]:
    """Return a figure with an axis per group, each ``height`` inches high, the axes, and their number per row."""
    columns = 2 if len(groups) == 4 else min(3, len(groups))
    rows = -(-len(groups) // columns)
    fig = figure(10.0, 0.5 + height * rows)
    axes = fig.subplots(rows, columns, squeeze=False, sharey=sharey).ravel().tolist()
    for ax in axes[len(groups) :]:
        ax.set_axis_off()
    for ax, g in zip(axes, groups, strict=False):
        done, rounds = max(run.lengths.size for run in g.records), g.records[0].info.rounds
        ax.set_title(short(g.label) if done >= rounds else f"{short(g.label)}, {done} of {rounds} rounds")
    for ax in axes[: len(groups)][-columns:]:
        ax.set_xlabel("round")
    return fig, axes[: len(groups)], columns


def _count_rounds(ax: Axes, rounds: int) -> None:
    ax.set_xlim(0.5, max(1, rounds) + 0.5)
    ax.xaxis.set_major_locator(_integers(6))
    if rounds < 2:
        ax.set_xticks([1])


def _integers(most: int = 7) -> MaxNLocator:
    return MaxNLocator(integer=True, nbins=most, steps=(1, 2, 5, 10))


def _stacked(arrays: Sequence[Floats]) -> Floats:
    """Stack arrays of unequal length, filled up with NaN at their ends."""
    longest = max(len(a) for a in arrays)
    return np.array([np.concatenate([a, np.full((longest - len(a), *a.shape[1:]), np.nan)]) for a in arrays])
