"""Figure of the labels of each device."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from adelfl.data import Partition
from adelfl.report.style import RC, figure

_MOST_BARS = 60


def draw_partition(partition: Partition, labels: ArrayLike, title: str = "Who holds which labels") -> Figure:
    """Draw label counts: a bar per device for few devices, a heat map for many (a sample of a thousand at most)."""
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
            image = ax.imshow(
                shares.T,
                aspect="auto",
                cmap="cividis",
                origin="lower",
                extent=(0.5, devices + 0.5, -0.5, classes - 0.5),
            )
            fig.colorbar(image, ax=ax, label="share of the device's samples")
            ax.grid(visible=False)
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set(ylabel="label", title=title)
        ax.set_xlabel("device")
    return fig
