"""Figure of the inferred regime: baselines against depth, and the misfit to the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from adelfl.report.style import BLACK, GREY, RC, STRATEGY_COLOURS, figure

Floats = NDArray[np.float64]
Curves = Mapping[str, tuple[Floats, Floats]]


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
