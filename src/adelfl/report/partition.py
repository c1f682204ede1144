"""Figure of a partition: the labels of each device."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from adelfl.data import Partition
from adelfl.report.style import RC, figure

_MOST_DEVICES = 1000  # more columns than a figure has pixels


@matplotlib.rc_context(RC)
def draw_partition(partition: Partition, labels: ArrayLike) -> Figure:
    """Draw the number of samples of each device, and the share of each label among them."""
    counts = partition.label_counts(labels)
    devices, classes = counts.shape
    shown = np.unique(np.linspace(0, devices - 1, min(devices, _MOST_DEVICES)).round().astype(int))
    sizes = counts[shown].sum(axis=1)
    fig = figure(8.0, 4.8)
    top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    top.bar(shown + 1, sizes, width=devices / shown.size)
    top.set(ylabel="samples", title="Labels of each device")
    extent = (0.5, devices + 0.5, -0.5, classes - 0.5)
    shares = (counts[shown] / np.maximum(sizes, 1)[:, None]).T
    image = bottom.imshow(shares, aspect="auto", cmap="cividis", origin="lower", extent=extent)
    fig.colorbar(image, ax=bottom, format=PercentFormatter(1.0), label="share of the device's samples")
    bottom.grid(visible=False)
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.set(xlabel="device", ylabel="label")
    return fig
