"""Accuracy against virtual time, with bands over seeds."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from adelfl.report.comparison import Contender
from adelfl.report.style import GREY, RC, SERIES, STRATEGY_COLOURS, figure


def draw_comparison(contenders: list[Contender], title: str) -> Figure:
    """Draw mean accuracy and its standard error for each strategy; the oracle is a dashed grey ceiling."""
    grid = np.linspace(0.0, 1.0, 1001)
    budgets = {record.about["budget"] for c in contenders for record in c.records}
    scale, unit = (budgets.pop(), "virtual time, seconds") if len(budgets) == 1 else (1.0, "share of the time budget")
    with matplotlib.rc_context(RC):
        fig = figure(8.0, 4.8)
        ax = fig.subplots()
        ends = []
        for i, c in enumerate(contenders):
            curve = c.curve(grid)
            mean = curve.mean(axis=0)
            error = curve.std(axis=0, ddof=1) / np.sqrt(len(curve)) if len(curve) > 1 else np.zeros_like(mean)
            oracle = c.name == "oracle"
            colour = GREY if oracle else STRATEGY_COLOURS.get(c.name, SERIES[i % len(SERIES)])
            ax.plot(
                grid * scale, mean, color=colour, linestyle="--" if oracle else "-", linewidth=1.6 if oracle else 2.2
            )
            ax.fill_between(grid * scale, mean - error, mean + error, color=colour, alpha=0.16, linewidth=0)
            ends.append((float(mean[-1]), c.label, colour))
        heights = _spread([e[0] for e in ends], 0.055)
        for (_, label, colour), y in zip(ends, heights, strict=True):
            ax.annotate(label, (scale, y), xytext=(6, 0), textcoords="offset points", color=colour, va="center")
        ax.set(xlabel=unit, ylabel="test accuracy", title=title, xlim=(0, scale), ylim=(0, 1.0))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        seeds = max(len(c.records) for c in contenders)
        if seeds > 1:
            ax.text(
                0.01,
                0.98,
                f"mean of {seeds} seeds, band: ± standard error",
                transform=ax.transAxes,
                va="top",
                color=GREY,
            )
    return fig


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
