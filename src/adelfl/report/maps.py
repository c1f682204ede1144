"""What happened in every round to every layer and every device, as heat maps."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter

from adelfl.report.groups import Group
from adelfl.report.lines import mean_and_error, short, stacked
from adelfl.report.style import RC, panels
from adelfl.report.traces import Floats, Trace

MOST_DEVICES = 200
"""Rows of a map of devices; of a larger fleet a sample is shown."""

MOST_CELLS = 250
"""Columns of a map; with more rounds each stands for the mean of several."""

_MOST_NAMES = 10
_NOTHING = "#ededed"  # which is no colour of the map


def draw_coverage(groups: list[Group]) -> Figure:
    """Draw the share of devices whose layer was merged, rounds by layers, mean over seeds, a panel per strategy."""
    names = [g.traces[0].info.layers for g in groups]
    alike = all(layers == names[0] for layers in names)
    with matplotlib.rc_context(RC):
        fig, axes, columns = panels(len(groups), min(3.6, 1.25 + 0.13 * max(map(len, names))))
        for place, (ax, g, layers) in enumerate(zip(axes, groups, names, strict=True)):
            share, _ = mean_and_error(stacked([trace.coverage for trace in g.traces]))
            image = _show(ax, share.T, int(g.traces[0].info.rounds))
            every = -(-len(layers) // _MOST_NAMES)
            named = not alike or place % columns == 0
            said = [short(name, 14) if named else "" for name in layers[::every]]
            ax.set_yticks(range(1, len(layers) + 1, every), said)
            ax.set_title(_title(g.label, g.traces))
        _finish(fig, axes, columns, image, "share of devices")
    return fig


def draw_contributions(runs: list[tuple[str, Trace]]) -> Figure:
    """Draw how much of each device's work was used, devices by rounds, a panel for each (label, run)."""
    used = [used_work(trace) for _, trace in runs]
    with matplotlib.rc_context(RC):
        fig, axes, columns = panels(len(runs), min(3.4, 1.6 + 0.025 * max(map(len, used))))
        for place, (ax, work, (label, trace)) in enumerate(zip(axes, used, runs, strict=True)):
            image = _show(ax, work, int(trace.info.rounds))
            ax.set_yticks([])
            ax.set_title(_title(label, [trace]))
            if place % columns == 0:
                ax.set_ylabel("devices")
        _finish(fig, axes, columns, image, "share of its layers")
    return fig


def used_work(trace: Trace) -> Floats:
    """Share of its layers that each device gave in each round, shape (devices, rounds); NaN where it was not asked.

    Those who gave most on average come first. Of more than MOST_DEVICES a sample is taken, evenly spaced in that order.
    """
    t = np.repeat(np.arange(len(trace.asked)), [asked.size for asked in trace.asked])
    share = np.concatenate(trace.depths)
    devices, row = np.unique(np.concatenate(trace.asked), return_inverse=True)
    order = np.argsort(-np.bincount(row, share) / np.bincount(row), kind="stable")
    if order.size > MOST_DEVICES:
        order = order[np.linspace(0, order.size - 1, MOST_DEVICES).round().astype(int)]
    place = np.full(devices.size, -1)
    place[order] = np.arange(order.size)
    kept = place[row] >= 0
    found = np.full((order.size, len(trace.asked)), np.nan)
    found[place[row][kept], t[kept]] = share[kept]
    return found


def rounds_per_cell(rounds: int) -> int:
    """How many rounds one column of a map stands for."""
    return max(1, -(-rounds // MOST_CELLS))


def _show(ax: Axes, values: Floats, rounds: int) -> AxesImage:
    """Values of shape (rows, rounds done), the first row at the top; blank up to ``rounds``."""
    rows, done = values.shape
    together = rounds_per_cell(done)
    starts = range(0, done, together)
    cells = np.array([mean_and_error(values[:, t : t + together].T)[0] for t in starts]).reshape(-1, rows).T
    end = 0.5 + len(starts) * together
    image = ax.imshow(
        cells,
        aspect="auto",
        cmap="cividis",
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(0.5, end, rows + 0.5, 0.5),
    )
    ax.set_xlim(0.5, max(rounds, done, 1) + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=(1, 2, 5, 10)))
    if max(rounds, done) < 2:
        ax.set_xticks([1])
    ax.set_facecolor(_NOTHING)
    ax.grid(visible=False)
    return image


def _title(label: str, traces: list[Trace]) -> str:
    """The label, and how many rounds were done if that is not all of them."""
    done, rounds = max(trace.lengths.size for trace in traces), int(traces[0].info.rounds)
    return short(label) if done >= rounds else f"{short(label)}, {done} of {rounds} rounds"


def _finish(fig: Figure, axes: list[Axes], columns: int, image: AxesImage, label: str) -> None:
    for ax in axes[-columns:]:
        ax.set_xlabel("round")
    aspect = 14 * -(-len(axes) // columns)
    fig.colorbar(image, ax=axes, format=PercentFormatter(1.0), label=label, shrink=0.9, aspect=aspect, pad=0.01)
