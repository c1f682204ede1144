"""What changes from round to round, as lines: accuracy and loss, deadlines, batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from adelfl.report.curves import name_ends
from adelfl.report.groups import Group
from adelfl.report.style import BLACK, GREY, RC, figure, panels
from adelfl.report.traces import Floats, Trace

_GRID = np.linspace(0.0, 1.0, 501)


def short(text: str, most: int = 32) -> str:
    """Text that a picture can hold: one line, no longer than ``most`` characters, nothing that fonts do not know."""
    found = "".join(c if c.isprintable() else " " for c in text).strip()
    found = found if len(found) <= most else f"{found[: most - 1]}…"
    return found.replace("$", r"\$")  # which would begin a formula


def stacked(arrays: Sequence[Floats]) -> Floats:
    """Arrays of unequal length in one, filled up with NaN at their ends."""
    longest = max(len(a) for a in arrays)
    return np.array([np.concatenate([a, np.full((longest - len(a), *a.shape[1:]), np.nan)]) for a in arrays])


def mean_and_error(values: Floats) -> tuple[Floats, Floats]:
    """Mean over the first axis and its standard error, of what is known; NaN where nothing is, or just one value."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    mean = np.where(known, values, 0.0).sum(axis=0) / np.where(count > 0, count, np.nan)
    squares = np.where(known, values - mean, 0.0) ** 2
    return mean, np.sqrt(squares.sum(axis=0) / np.where(count > 1, count - 1.0, np.nan) / np.maximum(count, 1))


def evaluated(groups: list[Group], what: str) -> list[Group]:
    """Those of whom ``accuracy`` or ``loss`` is known."""
    return [g for g in groups if any(np.isfinite(getattr(trace, what)).any() for trace in g.traces)]


def draw_progress(groups: list[Group], what: str) -> Figure:
    """Draw the mean ``accuracy`` or ``loss`` of each strategy against time, with its standard error."""
    groups = evaluated(groups, what)
    scale, unit = _time_axis([trace for g in groups for trace in g.traces])
    with matplotlib.rc_context(RC):
        fig = figure(10.0, max(4.1, 0.25 * len(groups)))
        ax = fig.subplots()
        found = []
        for g in groups:
            curves = np.array([_curve(trace, getattr(trace, what)) for trace in g.traces])
            mean, error = mean_and_error(curves)
            width = 1.6 if g.line == "--" else 2.2
            ax.step(_GRID * scale, mean, where="post", color=g.colour, linestyle=g.line, linewidth=width)
            low, high = mean - error, mean + error
            ax.fill_between(_GRID * scale, low, high, step="post", color=g.colour, alpha=0.16, linewidth=0)
            found.append(mean[np.isfinite(mean)])
        values = np.concatenate(found)
        ax.set(xlabel=unit, xlim=(0, scale), ylabel=f"test {what}")
        if what == "accuracy":
            ax.set_ylim(0.0, max(0.1, min(1.0, math.ceil(11.0 * values.max()) / 10.0)))
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        elif values.min() > 0 and values.max() > 20.0 * np.median(values):
            ax.set_yscale("log")
        elif values.min() < 0.6 * values.max():
            ax.set_ylim(min(0.0, values.min()), 1.05 * values.max())
        if scale == 1.0:
            ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        labels = [short(g.label) + ("" if g.finished else "\n(not finished)") for g in groups]
        ends = [(float(mean[-1]), label, g.colour) for g, label, mean in zip(groups, labels, found, strict=True)]
        name_ends(ax, ends, scale)
    return fig


def _curve(trace: Trace, values: Floats) -> Floats:
    """What the last evaluation said at each share of the budget; NaN before the first and after an early end."""
    known = np.isfinite(values)
    times, values = np.minimum(trace.evaluated[known], trace.budget), values[known]  # a real clock may overrun
    if times.size == 0:
        return np.full_like(_GRID, np.nan)
    moments = _GRID * trace.budget * (1 + 1e-9)
    last = np.searchsorted(times, moments, side="right") - 1
    found = np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
    if trace.state != "finished":
        found[moments > times[-1] + trace.budget * _GRID[1]] = np.nan
    return found


def _time_axis(traces: list[Trace]) -> tuple[float, str]:
    clocks = {trace.clock for trace in traces}
    clock = f"{clocks.pop()} time" if len(clocks) == 1 else "time"
    budgets = [trace.budget for trace in traces]
    if max(budgets) < min(budgets) * (1 + 1e-9):
        return budgets[0], f"{short(clock)}, seconds"
    return 1.0, f"{short(clock)}, share of the budget"


def _whole() -> MaxNLocator:
    return MaxNLocator(integer=True, nbins=7, steps=(1, 2, 5, 10))


def planned(groups: list[Group]) -> list[Group]:
    """Those with a schedule before the first round."""
    return [g for g in groups if any(trace.planned is not None for trace in g.traces)]


def draw_deadlines(groups: list[Group]) -> Figure:
    """Draw planned deadlines against uniform ones, and how long the rounds of every strategy took."""
    uniform = [trace.uniform for g in groups for trace in g.traces]
    alike = max(uniform) < min(uniform) * (1 + 1e-9)
    scale = uniform[0] if alike else 1.0
    unit = "seconds" if alike else "multiples of the uniform one"
    with_plan = planned(groups)
    with matplotlib.rc_context(RC):
        height = max(3.2, 1.2 + 0.3 * len(groups))
        fig = figure(10.0, height)
        if with_plan:
            left, right = fig.subplots(1, 2, width_ratios=(1.1, 1.0))
            _plot_plans(left, with_plan, scale)
            left.set(
                title="What was planned", xlabel="round", ylabel="deadline, seconds" if alike else "deadline / uniform"
            )
        else:
            right = fig.subplots()
        _plot_lengths(right, groups, scale)
        right.set(title="How long rounds took", xlabel=unit)
    return fig


def _plot_plans(ax: Axes, groups: list[Group], scale: float) -> None:
    for g in groups:
        plans = stacked([trace.planned / trace.uniform * scale for trace in g.traces if trace.planned is not None])
        rounds = np.arange(1, plans.shape[1] + 1)
        mean, _ = mean_and_error(plans)
        ax.step(rounds, mean, where="mid", color=g.colour, linestyle=g.line, label=short(g.label))
        low, high = np.nanmin(plans, axis=0), np.nanmax(plans, axis=0)
        ax.fill_between(rounds, low, high, step="mid", color=g.colour, alpha=0.16, linewidth=0)
    ax.axhline(
        scale, color=GREY, linestyle="--", linewidth=1.3, label=f"uniform{f', {scale:.3g} s' if scale != 1.0 else ''}"
    )
    ax.set_ylim(bottom=0, top=1.15 * ax.get_ylim()[1])
    ax.set_xlim(0.5, max(2, max(trace.info.rounds for g in groups for trace in g.traces)) + 0.5)
    ax.xaxis.set_major_locator(_whole())
    ax.legend(loc="best")


def _plot_lengths(ax: Axes, groups: list[Group], scale: float) -> None:
    """A line from the shortest to the longest round, a bar over the middle half, a dot at the median."""
    furthest, nearest = scale, scale
    for place, g in enumerate(reversed(groups)):
        lengths = np.concatenate([trace.lengths / trace.uniform * scale for trace in g.traces])
        if lengths.size == 0:
            continue
        low, first, middle, third, high = np.quantile(lengths, (0.0, 0.25, 0.5, 0.75, 1.0))
        ax.plot((low, high), (place, place), color=g.colour, linewidth=1.4, solid_capstyle="butt")
        ax.plot((first, third), (place, place), color=g.colour, linewidth=6.0, alpha=0.55, solid_capstyle="butt")
        ax.plot(middle, place, "o", color=g.colour, markersize=6.0)
        furthest, nearest = max(furthest, high), min(nearest, low)
    ax.axvline(scale, color=GREY, linestyle="--", linewidth=1.3, zorder=0)
    if nearest > 0 and furthest > 12.0 * nearest:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlim(nearest / 1.4, furthest * 1.4)
    else:
        ax.set_xlim(0, 1.08 * furthest)
    ax.set_yticks(range(len(groups)), [short(g.label) for g in reversed(groups)])
    ax.set_ylim(-0.6, len(groups) - 0.4)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)


def varied(groups: list[Group]) -> list[Group]:
    """Those whose batch sizes differ between devices or rounds."""
    return [g for g in groups if len(one_batch(g)) > 1]


def one_batch(group: Group) -> set[float]:
    """Smallest and largest batch size of any device in any round: one value if they are all alike, none if unknown."""
    sizes = np.concatenate([trace.batches for trace in group.traces])
    sizes = sizes[np.isfinite(sizes)]
    return {float(sizes.min()), float(sizes.max())} if sizes.size else set()


def draw_batches(groups: list[Group]) -> Figure:
    """Draw the median batch size over the devices, the middle half and the span, a panel for each that varies."""
    groups = varied(groups)
    with matplotlib.rc_context(RC):
        fig, axes, columns = panels(len(groups), 2.6, sharey=True)
        for ax, g in zip(axes, groups, strict=True):
            sizes, _ = mean_and_error(stacked([trace.batches for trace in g.traces]))
            rounds = np.arange(1, len(sizes) + 1)
            low, first, middle, third, high = sizes.T
            ax.fill_between(rounds, low, high, step="mid", color=g.colour, alpha=0.16, linewidth=0)
            ax.fill_between(rounds, first, third, step="mid", color=g.colour, alpha=0.34, linewidth=0)
            ax.step(rounds, middle, where="mid", color=g.colour)
            ax.set(title=short(g.label), xlim=(0.5, max(2, len(sizes)) + 0.5))
            ax.xaxis.set_major_locator(_whole())
            ax.yaxis.set_major_locator(_whole())
        axes[0].set_ylim(bottom=0.0)
        for ax in axes[-columns:]:
            ax.set_xlabel("round")
        fig.supylabel("samples per device", fontsize=9.5)
        keys = (Patch(color=BLACK, alpha=0.16), Patch(color=BLACK, alpha=0.45), Line2D([], [], color=BLACK))
        names = ("all devices", "middle half", "median device")
        fig.legend(keys, names, loc="outside lower center", ncols=3)
    return fig
