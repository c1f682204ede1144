"""Figure of a machine's profile: layer times by batch size, and their distribution with fitted laws."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from adelfl.fitting import FittedLaw
from adelfl.report.style import BLUE, GREY, RC, SERIES, figure

Floats = NDArray[np.float64]


def draw_profile(
    batch_sizes: Sequence[int],
    backward: Floats,
    names: Sequence[str],
    line: tuple[float, float],
    per_sample: Floats,
    laws: Sequence[FittedLaw],
) -> Figure:
    """Draw measured and modelled layer times.

    ``backward`` has the seconds of each layer, shape (batch sizes, repeats, L), input side first; ``line`` the seconds
    per layer and step, and per sample and layer; ``per_sample`` the seconds per sample of every layer and step;
    ``laws`` the fitted laws, the best one first.
    """
    sizes = np.asarray(batch_sizes, dtype=np.float64)
    with matplotlib.rc_context(RC):
        fig = figure(11.0, 4.2)
        left, middle, right = fig.subplots(1, 3)
        mean = backward.mean(axis=2)
        for size, times in zip(sizes, mean, strict=True):
            left.plot(np.full(times.size, size), 1e3 * times, "o", color=BLUE, alpha=0.35, markersize=3.5)
        grid = np.linspace(0.0, 1.05 * sizes.max(), 50)
        left.plot(grid, 1e3 * (line[0] + line[1] * grid), color=GREY, linestyle="--")
        left.set(
            title="Mean layer of a step", xlabel="batch size", ylabel="milliseconds", xlim=(0, None), ylim=(0, None)
        )
        last = 1e3 * backward[-1]
        middle.boxplot(last, orientation="horizontal", widths=0.6, showfliers=False, tick_labels=list(names))
        middle.set(title=f"Each layer, batch {batch_sizes[-1]}", xlabel="milliseconds", xlim=(0, None))
        shares = (np.arange(per_sample.size) + 0.5) / per_sample.size
        right.step(1e6 * np.sort(per_sample), shares, color="black", linewidth=2.4, label="measured")
        inner = np.linspace(0.005, 0.99, 200)
        for law, colour in zip(laws, SERIES, strict=False):
            label = f"{law.name} (distance {law.distance:.2f})"
            right.plot(1e6 * law.quantile(inner), inner, color=colour, linewidth=1.4, label=label)
        right.set(title="Layer times per sample", xlabel="microseconds", ylabel="share finished", ylim=(0, 1))
        right.set_xlim(0, 1.3e6 * float(np.quantile(per_sample, 0.99)))
        right.legend(loc="lower right", fontsize=8)
    return fig
