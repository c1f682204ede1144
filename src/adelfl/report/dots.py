"""Final accuracies side by side: a dot and its standard error for each strategy, a panel for each setting."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from adelfl.report.style import BLUE, GREY, RC, figure

Row = tuple[str, float, float]
"""Name, mean in percent, standard error."""

_TITLE_WIDTH = 42  # characters that fit above a panel


def draw_dots(panels: Sequence[tuple[str, Sequence[Row]]], title: str, columns: int = 2) -> Figure:
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
