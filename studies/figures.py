"""Figures of single studies: gains over settings, the leaderboard, and the regime of Table II."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from adelfl.array_types import Floats
from adelfl.report.style import BLACK, GREY, ORANGE, RC, STRATEGY_COLOURS, figure
from adelfl.theory.participation import expected_depth, smallest_rate

Curves = Mapping[str, tuple[Floats, Floats]]


@matplotlib.rc_context(RC)
def draw_gain(gains: Mapping[str, Mapping[tuple[int, int, float], tuple[float, float]]], title: str) -> Figure:
    """Draw the points gained over baselines, and the line Q(L, λ)^U = 0.2 for devices of one speed.

    ``gains`` has points gained and their standard error, by baseline and (devices, layers, depth).
    """
    keys = list(next(iter(gains.values())))
    U, L = sorted({key[0] for key in keys}), sorted({key[1] for key in keys})
    depths = sorted({key[2] for key in keys})
    most = float(np.quantile([abs(mean) for points in gains.values() for mean, _ in points.values()], 0.97))
    fig = figure(3.1 * len(L) + 1.0, 3.2 * len(gains) + 0.6)
    axes = fig.subplots(len(gains), len(L), squeeze=False, sharex=True, sharey=True)
    image = None
    for row, (baseline, points) in zip(axes, gains.items(), strict=True):
        for ax, layers in zip(row, L, strict=True):
            values = np.array([[points[u, layers, d][0] for d in depths] for u in U])
            errors = np.array([[points[u, layers, d][1] for d in depths] for u in U])
            image = ax.imshow(values, cmap="RdBu", vmin=-most, vmax=most, origin="lower", aspect="auto")
            for i, j in np.ndindex(values.shape):
                # Grey where the difference is within two standard errors of zero.
                clear = abs(values[i, j]) > 2 * errors[i, j]
                dark = abs(values[i, j]) > 0.6 * most
                colour = "white" if dark else "black" if clear else "#888888"
                ax.text(j, i, f"{values[i, j]:+.0f}", ha="center", va="center", color=colour, fontsize=8.5)
            starving = [expected_depth(layers, smallest_rate(layers, u)) / layers for u in U]
            line = np.interp(starving, depths, range(len(depths)))
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


@matplotlib.rc_context(RC)
def draw_board(
    columns: Sequence[tuple[str, str, Mapping[str, tuple[float, float]]]], references: Sequence[str]
) -> Figure:
    """Draw the final accuracy of each method (row) in each setting (column), coloured by how far it is behind.

    A column has a group, a title, and the mean and standard error of each method, in percent. References are shown, but
    are not compared.
    """
    methods = [name for name in columns[0][2] if name not in references]
    mean = {name: np.array([column[2][name][0] for column in columns]) for name in columns[0][2]}
    error = {name: np.nan_to_num([column[2][name][1] for column in columns]) for name in methods}
    best = np.max([mean[name] for name in methods], axis=0)
    methods.sort(key=lambda name: float(np.mean(best - mean[name])))
    behind = np.array([best - mean[name] for name in (*methods, *references)])
    behind[len(methods) :] = np.nan
    fig = figure(1.8 + 0.52 * len(columns), 1.9 + 0.27 * len(behind))
    ax = fig.subplots()
    image = ax.imshow(behind, cmap="YlGnBu_r", vmin=0, vmax=30, aspect="auto")
    for i, name in enumerate((*methods, *references)):
        for j, value in enumerate(mean[name]):
            wins = i < len(methods) and behind[i, j] <= error[name][j]
            colour = "white" if i < len(methods) and behind[i, j] < 13 else "black"
            weight = "bold" if wins else "normal"
            ax.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8, fontweight=weight)
            if wins:
                ax.add_patch(Rectangle((j - 0.47, i - 0.45), 0.94, 0.9, fill=False, color=ORANGE, linewidth=1.8))
    ax.axhline(len(methods) - 0.5, color=BLACK, linewidth=1.2)
    groups = [group for group, _, _ in columns]
    for j in range(len(columns)):
        if j == 0 or groups[j] != groups[j - 1]:
            ax.axvline(j - 0.5, color=BLACK, linewidth=1.2)
            centre = j + (groups.count(groups[j]) - 1) / 2
            ax.text(centre, -0.7, groups[j].replace(", ", "\n"), ha="center", va="bottom", fontsize=8.5)
    ax.set_xticks(range(len(columns)), [title for _, title, _ in columns], rotation=60, ha="right")
    ax.set_yticks(range(len(behind)), [*methods, *references])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    fig.colorbar(image, ax=ax, label="points behind the best method", shrink=0.7, pad=0.01)
    return fig


@matplotlib.rc_context(RC)
def draw_budgets(
    ours: Mapping[str, Sequence[tuple[int, float, float]]], paper: Mapping[int, Mapping[str, float]], oracle: float
) -> Figure:
    """Draw final accuracy against the budget, ours beside the paper's.

    ``ours`` has (budget, mean, standard error) by strategy, and ``paper`` a mean by budget and strategy, in percent.
    """
    fig = figure(9.0, 3.9)
    left, right = fig.subplots(1, 2, sharey=True)
    for name, points in ours.items():
        seconds, mean, error = zip(*points, strict=True)
        left.errorbar(
            seconds, mean, np.nan_to_num(error), color=STRATEGY_COLOURS[name], marker="o", capsize=2, label=name
        )
        if name in next(iter(paper.values())):
            right.plot(list(paper), [row[name] for row in paper.values()], "D-", color=STRATEGY_COLOURS[name])
    left.axhline(oracle, color=GREY, linestyle="--", linewidth=1.3, label="oracle")
    left.set(title="ours", ylabel="final test accuracy", ylim=(0, None))
    right.set(title="the paper (Table II)")
    for ax in (left, right):
        ax.set_xlabel("T_max")
        ax.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    right.set_xlim(left.get_xlim())
    fig.legend(*left.get_legend_handles_labels(), ncols=4, loc="outside lower center", fontsize=8)
    return fig


@matplotlib.rc_context(RC)
def draw_regime(depth: Floats, misfit: Floats, curves: Curves, points: Curves, *, stated: float, title: str) -> Figure:
    """Draw accuracy relative to the oracle against depth, beside the misfit of the baselines to the paper's numbers.

    ``curves`` and ``points`` have depths and relative accuracies of each baseline: ours, and the paper's at the best
    depth. ``stated`` is the depth that the paper states.
    """
    best, least = float(depth[misfit.argmin()]), float(misfit.min())
    fig = figure(9.0, 3.9)
    left, right = fig.subplots(1, 2, width_ratios=(1.4, 1.0))
    for name, (at, relative) in curves.items():
        colour = STRATEGY_COLOURS[name]
        left.plot(at, relative, color=colour, marker="o", markersize=4, label=f"{name}, ours")
        left.plot(*points[name], "D", color=colour, markerfacecolor="white", label=f"{name}, the paper")
    left.set(xlabel="mean depth of backpropagation", ylabel="accuracy / oracle", ylim=(0, 1.08), title="Baselines")
    fig.legend(*left.get_legend_handles_labels(), ncols=3, loc="outside lower center", fontsize=8)
    right.plot(depth, misfit, color=BLACK)
    right.axvline(stated, color=GREY, linestyle="--", linewidth=1.2)
    beside = {"xytext": (-4, 0), "textcoords": "offset points", "ha": "right", "va": "top", "color": GREY}
    right.annotate(f"stated: {stated:.0%}", (stated, 0.98), xycoords=("data", "axes fraction"), **beside)
    right.plot(best, least, "o", color=BLACK)
    right.annotate(f"{best:.0%}", (best, least), xytext=(8, 4), textcoords="offset points")
    right.set(xlabel="mean depth at the largest budget", ylabel="misfit of the baselines", title="Which depth fits?")
    right.set_ylim(bottom=0)
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    fig.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return fig
