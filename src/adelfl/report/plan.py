"""Figures of one plan, and of plans for several values of a setting."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from adelfl.planner import Solution, WhatIfRow
from adelfl.report.style import BLUE, GREY, ORANGE, RC, RED, SERIES, figure, short

_AXES = {"budget": "time budget, seconds", "rounds": "rounds in the same time", "without": "slowest devices left out"}
_SHOWN_GROUPS = 400  # more groups do not change the figure visibly


@matplotlib.rc_context(RC)
def draw_plan(solution: Solution) -> Figure:
    """Draw deadlines, depth, layer coverage and batch sizes over the rounds."""
    fig = figure(10.0, 6.4)
    (top_left, top_right), (low_left, low_right) = fig.subplots(2, 2)
    _draw_deadlines(top_left, solution)
    _draw_depth(top_right, solution)
    _draw_batches(low_left, solution)
    _draw_coverage(fig, low_right, solution)
    for ax in (low_left, low_right):
        ax.set_xlabel("round")
    fig.suptitle("\n".join(textwrap.wrap(solution.outcome, 125)), fontsize=9, x=0.01, ha="left", color="#333333")
    return fig


def _rounds(solution: Solution) -> np.ndarray:
    R = solution.problem.rounds
    return np.unique(np.linspace(0, R - 1, min(150, R)).round().astype(int))


def _draw_deadlines(ax: Axes, solution: Solution) -> None:
    T = solution.schedule.deadlines
    t = np.arange(1, T.size + 1)
    uniform = solution.uniform.deadline
    ax.step(t, T, where="mid", color=BLUE, label="plan")
    ax.axhline(uniform, color=GREY, linestyle="--", linewidth=1.3, label=f"uniform deadline, {uniform:.3g} s")
    ax.fill_between(t, T, uniform, where=(uniform < T).tolist(), step="mid", color=BLUE, alpha=0.15, linewidth=0)
    ax.fill_between(t, T, uniform, where=(uniform > T).tolist(), step="mid", color=ORANGE, alpha=0.2, linewidth=0)
    ax.set_ylim(bottom=0, top=1.12 * T.max())
    ax.set(title="Deadlines", ylabel="deadline, seconds")
    ax.legend(loc="best")


def _draw_depth(ax: Axes, solution: Solution) -> None:
    rounds = _rounds(solution)
    L = solution.problem.layers
    plan = solution.schedule.thinned(_SHOWN_GROUPS).expected_depth(rounds) / L
    without = float(solution.baseline.thinned(_SHOWN_GROUPS).expected_depth([0])[0]) / L
    ax.plot(rounds + 1, plan, color=BLUE, label="plan")
    batch = solution.problem.batch
    ax.axhline(without, color=GREY, linestyle="--", linewidth=1.3, label=f"uniform deadline, batch {batch}")
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set(title="Mean depth of the devices", ylabel="share of layers")
    ax.legend(loc="upper right")


def _draw_coverage(fig: Figure, ax: Axes, solution: Solution) -> None:
    rounds = _rounds(solution)
    share = solution.schedule.thinned(_SHOWN_GROUPS).delivery(rounds)
    L, R = solution.problem.layers, solution.problem.rounds
    image = ax.imshow(
        share.T, aspect="auto", cmap="cividis", vmin=0, vmax=1, origin="lower", extent=(0.5, R + 0.5, 0.5, L + 0.5)
    )
    fig.colorbar(image, ax=ax, format=PercentFormatter(1.0), label="devices that deliver it")
    ax.grid(visible=False)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(title="Layer coverage", ylabel="layer (1 = input)")


def _draw_batches(ax: Axes, solution: Solution) -> None:
    rounds = _rounds(solution)
    schedule = solution.schedule.thinned(_SHOWN_GROUPS)
    takes_part = ~schedule.sits_out
    sizes = np.array([schedule.batch_sizes(int(t))[takes_part] for t in rounds])
    if sizes.shape[1] <= len(SERIES):
        names = [short(schedule.fleet.name(int(g))) for g in np.flatnonzero(takes_part)]
        for u, (name, colour) in enumerate(zip(names, SERIES, strict=False)):
            ax.step(rounds + 1, sizes[:, u], where="mid", color=colour, label=name)
    else:
        low, middle, high = np.quantile(sizes, (0.0, 0.5, 1.0), axis=1)
        ax.fill_between(rounds + 1, low, high, color=BLUE, alpha=0.18, linewidth=0, label="smallest to largest")
        ax.plot(rounds + 1, middle, color=BLUE, label="median device group")
    batch = solution.problem.batch
    ax.axhline(batch, color=GREY, linestyle="--", linewidth=1.3, label=f"without a plan, {batch}")
    ax.set_ylim(0, 1.1 * max(batch, sizes.max()))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(title="Batch sizes", ylabel="samples per device")
    if out := sum(s.count for s in solution.sitting_out):
        ax.plot([], [], " ", label=f"sitting out: {out} of {solution.problem.fleet.size}")
    ax.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")


@matplotlib.rc_context(RC)
def draw_what_if(rows: Sequence[WhatIfRow], key: str) -> Figure:
    """Draw the error of each plan against the value: the excess if ``key`` is the budget, otherwise the bound."""
    error = "excess" if key == "budget" else "bound"
    planned = [row for row in rows if row.infeasible is None]
    fig = figure(6.0, 3.9)
    ax = fig.subplots()
    lines = {error: (".-", BLUE, "plan")}
    if key == "budget":
        lines["uniform_excess"] = ("--", GREY, "best uniform deadline")
    for name, (line, colour, label) in lines.items():
        values = [getattr(row, name) for row in planned]
        ax.plot([row.value for row in planned], values, line, color=colour, label=label)
    if without := [row.value for row in rows if row.infeasible is not None]:
        ax.plot(without, [0.02] * len(without), "x", color=RED, transform=ax.get_xaxis_transform(), label="no plan")
    ax.set(xlabel=_AXES[key], ylabel=error)
    if key == "budget":
        ax.set(xscale="log", yscale="log" if planned else "linear")
    ax.legend()
    return fig
