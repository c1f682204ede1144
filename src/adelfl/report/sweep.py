"""A sweep as a picture: what can be expected against time, rounds, or devices left out."""

from __future__ import annotations

import textwrap
from itertools import groupby

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from adelfl.planner.sweep import Point, Sweep
from adelfl.report.style import BLUE, GREEN, GREY, ORANGE, RC, RED, figure

Floats = NDArray[np.float64]

_AXES = {
    "budget": "time budget, seconds",
    "rounds": "rounds in the same time",
    "without": "slowest devices left out",
}
_MARKED = 40  # points; marks of more would make a line of their own
_FADED = 0.4


def draw_sweep(sweep: Sweep, title: str) -> Figure:
    """Draw excess, bound and mean depth over the values.

    The knee is marked, points without a plan are shaded. Lines break where devices join or leave, and what is not
    compared for that reason is faded.
    """
    with matplotlib.rc_context(RC):
        fig = figure(11.5, 4.4)
        left, middle, right = fig.subplots(1, 3)
        left.set(title="Excess", ylabel="excess, what a plan can change", yscale="log")
        middle.set(title="Bound", ylabel="bound on the squared error")
        _draw_error(left, sweep, "excess")
        _draw_error(middle, sweep, "bound")
        _look_at_compared(middle, sweep)
        _draw_shares(right, sweep)
        for ax in (left, middle, right):
            _finish(ax, sweep)
        named = {
            label: line for ax in (left, right) for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        if any(p not in sweep.compared for p in _feasible(sweep)):
            named["faded: other devices served"] = Line2D([], [], color=BLUE, alpha=_FADED)
        fig.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(4, len(named)))
        said = "\n".join(textwrap.wrap(sweep.outcome, 150))
        fig.suptitle(f"{title}\n{said}", fontsize=9, x=0.01, ha="left", color="#333333")
    return fig


def _feasible(sweep: Sweep) -> list[Point]:
    return [p for p in sweep.points if p.trouble is None]


def _draw_lines(ax: Axes, sweep: Sweep, key: str, name: str, **look: object) -> None:
    """Draw one number of all points, a line for each stretch of them that may be compared."""
    together = groupby(_feasible(sweep), key=lambda p: None if sweep.key == "without" else p.served)
    for points in (list(group) for _, group in together):
        compared = points[0] in sweep.compared
        line = [getattr(p, key) for p in points]
        lone = "." if len(points) == 1 else ""
        marked: dict[str, object] = {"marker": lone, **look, "alpha": 1.0 if compared else _FADED}
        ax.plot([p.value for p in points], line, label=name if compared else None, **marked)  # type: ignore[arg-type]


def _mark(sweep: Sweep) -> dict[str, object]:
    return {"color": BLUE, "marker": "o" if len(sweep.points) <= _MARKED else "", "markersize": 3.5}


def _draw_error(ax: Axes, sweep: Sweep, error: str) -> None:
    _draw_lines(ax, sweep, f"uniform_{error}", "best uniform deadline", color=GREY, linestyle="--", linewidth=1.3)
    _draw_lines(ax, sweep, error, "plan", **_mark(sweep))
    if sweep.knee is not None and error == sweep.error:
        knee = next(p for p in sweep.points if p.value == sweep.knee.value)
        ax.plot(
            knee.value,
            getattr(knee, error),
            "o",
            color=ORANGE,
            markersize=9,
            markeredgecolor="white",
            markeredgewidth=1.2,
            zorder=5,
        )


def _look_at_compared(ax: Axes, sweep: Sweep) -> None:
    """Let a bound that explodes, where devices join or for the uniform deadline, not hide the plan's."""
    values = [p.bound for p in sweep.compared if p.bound is not None]
    if len(values) > 1 and (span := max(values) - min(values)) > 0:
        ax.set_ylim(min(values) - 0.07 * span, max(values) + 0.4 * span)


def _draw_shares(ax: Axes, sweep: Sweep) -> None:
    points = _feasible(sweep)
    _draw_lines(ax, sweep, "depth", "plan", **_mark(sweep))
    served = [p.served / sweep.devices for p in points]
    ax.step([p.value for p in points], served, where="mid", color=GREEN, label="devices served")
    ax.set(title="Mean depth, and devices served", ylabel="share of layers; share of devices", ylim=(0, 1.03))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))


def _finish(ax: Axes, sweep: Sweep) -> None:
    """Shade where there is no plan, mark what the file says, and make the axis speak."""
    values = np.array([p.value for p in sweep.points])
    if sweep.key == "without":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        span = values[-1] / values[0]
        subs = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0) if span < 12 else (1.0, 2.0, 5.0) if span < 60 else (1.0,)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=subs))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    edges = _edges(values, sweep.key != "without")
    label = "no plan"
    for i in np.flatnonzero([p.trouble is not None for p in sweep.points]):
        ax.axvspan(edges[i], edges[i + 1], color=RED, alpha=0.15, linewidth=0, label=label)
        label = ""
    if values[0] < sweep.now < values[-1]:
        ax.axvline(sweep.now, color=GREY, linewidth=1.0, linestyle=":", label=f"as given: {sweep.words(sweep.now)}")
    if sweep.knee is not None:
        name = f"{'soft knee' if sweep.knee.soft else 'knee'}: {sweep.words(sweep.knee.value)}"
        ax.axvline(sweep.knee.value, color=ORANGE, linewidth=1.3, zorder=1, label=name)
    ax.set(xlabel=_AXES[sweep.key], xlim=(edges[0], edges[-1]))


def _edges(values: Floats, logarithmic: bool) -> Floats:
    """Where the cell of each value ends: half way between neighbours, on the axis's own scale."""
    v = np.log(values) if logarithmic else values
    edges = np.concatenate([[1.5 * v[0] - 0.5 * v[1]], 0.5 * (v[1:] + v[:-1]), [1.5 * v[-1] - 0.5 * v[-2]]])
    return np.exp(edges) if logarithmic else edges
