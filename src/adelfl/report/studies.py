"""Figures of a study: final accuracies side by side, and the regime that fits the paper's baselines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from adelfl.report.style import BLACK, BLUE, GREY, RC, STRATEGY_COLOURS, figure

Floats = NDArray[np.float64]
Curves = Mapping[str, tuple[Floats, Floats]]
Dot = tuple[str, float, float]
"""Name, mean in percent, standard error."""

_TITLE_WIDTH = 42  # characters that fit above a panel


def draw_dots(panels: Sequence[tuple[str, Sequence[Dot]]], title: str, columns: int = 2) -> Figure:
    """Draw panels of (title, rows); the best of each is filled, the last row is the ceiling."""
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    with matplotlib.rc_context(RC):
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
            ax.xaxis.set_major_formatter(PercentFormatter(decimals=0))
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        axes[0].invert_yaxis()
        for ax in axes[-columns:]:
            ax.set_xlabel("final test accuracy ± standard error (dashed: oracle)")
        fig.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return fig


def draw_regime(depth: Floats, misfit: Floats, curves: Curves, points: Curves, *, stated: float, title: str) -> Figure:
    """Draw accuracy relative to the oracle against depth, with the paper's values, beside the misfit.

    Parameters
    ----------
    depth, misfit : ndarray
        Depths, and how far the baselines are from the paper's numbers there.
    curves, points : mapping of str to (ndarray, ndarray)
        For each baseline depths and relative accuracies: ours, and the paper's at the best depth.
    stated : float
        Depth that the paper states.
    title : str
        Title of the figure.
    """
    best, least = float(depth[misfit.argmin()]), float(misfit.min())
    with matplotlib.rc_context(RC):
        fig = figure(9.0, 3.9)
        left, right = fig.subplots(1, 2, width_ratios=(1.4, 1.0))
        for name, (at, relative) in curves.items():
            colour = STRATEGY_COLOURS[name]
            left.plot(at, relative, color=colour, marker="o", markersize=4, label=f"{name}, ours")
            left.plot(*points[name], "D", color=colour, markerfacecolor="white", label=f"{name}, the paper")
        left.set(xlabel="mean depth of backpropagation", ylabel="accuracy / oracle", ylim=(0, 1.08), title="Baselines")
        fig.legend(*left.get_legend_handles_labels(), ncols=3, loc="outside lower center", fontsize=8)
        right.plot(depth, misfit, color=BLACK)
        right.axvline(stated, color=GREY, linestyle="--", linewidth=1.2)
        beside = {"xytext": (-4, 0), "textcoords": "offset points", "ha": "right", "va": "top", "color": GREY}
        right.annotate(f"stated: {stated:.0%}", (stated, 0.98), xycoords=("data", "axes fraction"), **beside)
        right.plot(best, least, "o", color=BLACK)
        right.annotate(f"{best:.0%}", (best, least), xytext=(8, 4),
                       textcoords="offset points")  # fmt: skip
        right.set(xlabel="mean depth at T_max = 2400", ylabel="misfit of the baselines", title="Which depth fits?")
        right.set_ylim(bottom=0)
        for ax in (left, right):
            ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        fig.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return fig
