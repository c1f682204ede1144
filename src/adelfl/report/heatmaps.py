"""Heat maps: layers and devices over the rounds, gains over settings, labels over devices."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from adelfl.data import Partition
from adelfl.report.groups import Group
from adelfl.report.run_data import Floats, RunData
from adelfl.report.style import RC, figure, integers, mean_and_error, panels, short, stacked

MOST_DEVICES = 200
"""Largest number of rows of a map of devices; larger fleets are sampled."""

MOST_CELLS = 250
"""Largest number of columns of a map; with more rounds a column is the mean of several."""

_MOST_NAMES = 10
_MOST_BARS = 60
_NOTHING = "#ededed"  # not a colour of the map


def draw_coverage(groups: list[Group]) -> Figure:
    """Draw the share of devices whose layer was merged, rounds by layers, mean over seeds, a panel per strategy."""
    names = [g.runs[0].info.layers for g in groups]
    alike = all(layers == names[0] for layers in names)
    with matplotlib.rc_context(RC):
        fig, axes, columns = panels(len(groups), min(3.6, 1.25 + 0.13 * max(map(len, names))))
        for place, (ax, g, layers) in enumerate(zip(axes, groups, names, strict=True)):
            share, _ = mean_and_error(stacked([run.coverage for run in g.runs]))
            image = _show(ax, share.T, g.runs[0].info.rounds)
            every = -(-len(layers) // _MOST_NAMES)
            named = not alike or place % columns == 0
            ticks = [short(name, 14) if named else "" for name in layers[::every]]
            ax.set_yticks(range(1, len(layers) + 1, every), ticks)
            ax.set_title(_title(g.label, g.runs))
        _finish(fig, axes, columns, image, "share of devices")
    return fig


def draw_contributions(runs: list[tuple[str, RunData]]) -> Figure:
    """Draw the share of each device's layers that was merged, devices by rounds, one panel per (label, run)."""
    used = [used_work(run) for _, run in runs]
    with matplotlib.rc_context(RC):
        fig, axes, columns = panels(len(runs), min(3.4, 1.6 + 0.025 * max(map(len, used))))
        for place, (ax, work, (label, run)) in enumerate(zip(axes, used, runs, strict=True)):
            image = _show(ax, work, run.info.rounds)
            ax.set_yticks([])
            ax.set_title(_title(label, [run]))
            if place % columns == 0:
                ax.set_ylabel("devices")
        _finish(fig, axes, columns, image, "share of its layers")
    return fig


def used_work(run: RunData) -> Floats:
    """Return the merged share of each device's layers, shape (devices, rounds); NaN where it took no part.

    Devices are sorted by their mean, largest first; more than MOST_DEVICES are sampled evenly in that order.
    """
    t = np.repeat(np.arange(len(run.devices)), [devices.size for devices in run.devices])
    share = np.concatenate(run.depths)
    devices, row = np.unique(np.concatenate(run.devices), return_inverse=True)
    order = np.argsort(-np.bincount(row, share) / np.bincount(row), kind="stable")
    if order.size > MOST_DEVICES:
        order = order[np.linspace(0, order.size - 1, MOST_DEVICES).round().astype(int)]
    place = np.full(devices.size, -1)
    place[order] = np.arange(order.size)
    kept = place[row] >= 0
    work = np.full((order.size, len(run.devices)), np.nan)
    work[place[row][kept], t[kept]] = share[kept]
    return work


def rounds_per_cell(rounds: int) -> int:
    """Return the number of rounds that one column of a map averages."""
    return max(1, -(-rounds // MOST_CELLS))


def _show(ax: Axes, values: Floats, rounds: int) -> AxesImage:
    """Show values of shape (rows, rounds done), the first row at the top, blank up to ``rounds``."""
    rows, done = values.shape
    together = rounds_per_cell(done)
    starts = range(0, done, together)
    cells = np.array([mean_and_error(values[:, t : t + together].T)[0] for t in starts]).reshape(-1, rows).T
    end = 0.5 + len(starts) * together
    look: dict[str, Any] = {"aspect": "auto", "cmap": "cividis", "interpolation": "nearest"}
    image = ax.imshow(cells, vmin=0, vmax=1, extent=(0.5, end, rows + 0.5, 0.5), **look)
    ax.set_xlim(0.5, max(rounds, done, 1) + 0.5)
    ax.xaxis.set_major_locator(integers(6))
    if max(rounds, done) < 2:
        ax.set_xticks([1])
    ax.set_facecolor(_NOTHING)
    ax.grid(visible=False)
    return image


def _title(label: str, runs: list[RunData]) -> str:
    """Return the label, with the number of finished rounds if that is not all of them."""
    done, rounds = max(run.lengths.size for run in runs), runs[0].info.rounds
    return short(label) if done >= rounds else f"{short(label)}, {done} of {rounds} rounds"


def _finish(fig: Figure, axes: list[Axes], columns: int, image: AxesImage, label: str) -> None:
    for ax in axes[-columns:]:
        ax.set_xlabel("round")
    aspect = 14 * -(-len(axes) // columns)
    fig.colorbar(image, ax=axes, format=PercentFormatter(1.0), label=label, shrink=0.9, aspect=aspect, pad=0.01)


def draw_partition(partition: Partition, labels: ArrayLike, title: str = "Who holds which labels") -> Figure:
    """Draw label counts: a bar per device for few devices, a heat map for many (at most a thousand)."""
    counts = partition.label_counts(labels)
    devices, classes = counts.shape
    with matplotlib.rc_context(RC):
        fig = figure(8.0, 4.2)
        ax = fig.subplots()
        if devices <= _MOST_BARS:
            colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, classes))
            below = np.zeros(devices)
            for c in range(classes):
                ax.bar(np.arange(1, devices + 1), counts[:, c], bottom=below, width=0.9, color=colours[c], label=f"{c}")
                below += counts[:, c]
            ax.set(ylabel="samples", title=title)
            ax.legend(title="label", loc="center left", bbox_to_anchor=(1.0, 0.5))
        else:
            shown = np.unique(np.linspace(0, devices - 1, min(devices, 1000)).round().astype(int))
            shares = counts[shown] / counts[shown].sum(axis=1, keepdims=True)
            extent = (0.5, devices + 0.5, -0.5, classes - 0.5)
            image = ax.imshow(shares.T, aspect="auto", cmap="cividis", origin="lower", extent=extent)
            fig.colorbar(image, ax=ax, label="share of the device's samples")
            ax.grid(visible=False)
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set(ylabel="label", title=title)
        ax.set_xlabel("device")
    return fig
