"""A map of where a plan pays: points gained, over depth and the size of the fleet, one panel per number of layers."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from adelfl.report.style import RC, figure
from adelfl.theory.participation import starving_depth


def draw_gain(gains: Mapping[str, Mapping[tuple[int, int, float], tuple[float, float]]], title: str) -> Figure:
    """Draw points gained over baselines, and the line Q(L, λ)^U = 0.2 for devices of one speed.

    Parameters
    ----------
    gains : mapping
        Baseline → (devices, layers, depth) → points gained and their standard error.
    title : str
        Of the whole.
    """
    keys = list(next(iter(gains.values())))
    U, L = sorted({key[0] for key in keys}), sorted({key[1] for key in keys})
    depths = sorted({key[2] for key in keys})
    most = float(np.quantile([abs(mean) for points in gains.values() for mean, _ in points.values()], 0.97))
    with matplotlib.rc_context(RC):
        fig = figure(3.1 * len(L) + 1.0, 3.2 * len(gains) + 0.6)
        axes = fig.subplots(len(gains), len(L), squeeze=False, sharex=True, sharey=True)
        image = None
        for row, (baseline, points) in zip(axes, gains.items(), strict=True):
            for ax, layers in zip(row, L, strict=True):
                values = np.array([[points[u, layers, d][0] for d in depths] for u in U])
                errors = np.array([[points[u, layers, d][1] for d in depths] for u in U])
                image = ax.imshow(values, cmap="RdBu", vmin=-most, vmax=most, origin="lower", aspect="auto")
                for i, j in np.ndindex(values.shape):
                    # Quiet where the difference is within two standard errors of nothing.
                    clear = abs(values[i, j]) > 2 * errors[i, j]
                    dark = abs(values[i, j]) > 0.6 * most
                    colour = "white" if dark else "black" if clear else "#888888"
                    ax.text(j, i, f"{values[i, j]:+.0f}", ha="center", va="center", color=colour, fontsize=8.5)
                line = [np.interp(starving_depth(layers, u), depths, range(len(depths))) for u in U]
                ax.plot(line, range(len(U)), color="black", linewidth=1.6, linestyle="--")
                ax.grid(visible=False)
                ax.set_xticks(range(len(depths)), [f"{d:.0%}" for d in depths])
                ax.set_yticks(range(len(U)), [f"{u}" for u in U])
                ax.set_title(f"{layers} layers, over {baseline}")
            row[0].set_ylabel("devices")
        for ax in axes[-1]:
            ax.set_xlabel("mean depth without a plan")
        assert image is not None
        fig.colorbar(image, ax=axes, label="points of accuracy gained by the plan", shrink=0.7)
        fig.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    return fig
