"""Figure of the rows of :func:`adelfl.what_if`."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from adelfl.planner import WhatIfRow
from adelfl.report.style import BLUE, GREEN, GREY, ORANGE, RC, RED, figure

_AXES = {"budget": "time budget, seconds", "rounds": "rounds in the same time", "without": "slowest devices left out"}


def draw_what_if(rows: Sequence[WhatIfRow], key: str, devices: int) -> Figure:
    """Draw the error (budget: the excess, otherwise the bound), and shares of layers, rounds and devices."""
    names = ("value", "excess", "uniform_excess", "bound", "depth", "first_layer_empty", "served")
    value, excess, uniform, bound, depth, empty, served = np.array(
        [[getattr(row, name) for row in rows] for name in names], dtype=np.float64
    )  # None becomes NaN
    with matplotlib.rc_context(RC):
        fig = figure(9.0, 3.9)
        left, right = fig.subplots(1, 2)
        if key == "budget":
            left.set(title="Excess", ylabel="excess, the part that a plan can change", yscale="log")
            left.plot(value, uniform, "--", color=GREY, label="best uniform deadline")
        else:
            left.set(title="Bound", ylabel="bound on the squared error")
        left.plot(value, excess if key == "budget" else bound, ".-", color=BLUE, label="plan")
        right.set(title="Expected shares under the plan", ylim=(-0.03, 1.03))
        right.plot(value, depth, ".-", color=BLUE, label="layers finished")
        right.plot(value, empty, ".-", color=ORANGE, label="rounds with an empty first layer")
        right.plot(value, served / devices, color=GREEN, drawstyle="steps-mid", label="devices served")
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        infeasible = value[np.isnan(excess)]
        for ax in (left, right):
            if key != "without" and value[-1] >= 10 * value[0]:
                ax.set_xscale("log")
            elif key != "budget":
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            if infeasible.size:
                bottom = ax.get_xaxis_transform()
                ax.plot(infeasible, 0 * infeasible + 0.02, "x", color=RED, transform=bottom, label="no plan")
            ax.set_xlabel(_AXES[key])
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return fig
