"""Draw the figures of docs/concepts.md.

    python docs/draw_concepts.py [--out docs/img]

Layer times come from the latency model, plans from the planner, and the last figure from runs of the simulator, which
take about a minute. Only the sketch of a device is not computed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

import adelfl as ad
from adelfl.latency import Exponential
from adelfl.report.style import BLUE, GREEN, GREY, ORANGE, RC, RED, SKY, figure, save
from adelfl.seeds import rng_for

Floats = NDArray[np.float64]

LAYERS = 4
SHADES = ("#0b3c5d", "#2f6f9f", "#6fa8cf", "#b9d6ea")  # one per layer, starting with the last layer of the network
LOST = "#e4e4e4"
SPEEDS = np.array([40.0, 24.0, 18.0, 12.0, 5.0])
NAMES = ("laptop", "new phone", "phone", "old phone", "very old phone")
BATCH, DEADLINE = 16, 3.2


def layer_times(batch: Floats | int, round_: int = 1906) -> Floats:
    """Return the seconds of each device's layers, of shape (devices, layers), starting with the last layer.

    The default round is one in which devices reach every depth.
    """
    mean = np.broadcast_to(np.asarray(batch, dtype=np.float64) / SPEEDS, SPEEDS.shape)
    return Exponential().layer_times(rng_for(7, "concepts", round_), mean, LAYERS, LAYERS)


def _rows(ax: Axes, times: Floats, end: float, *, finished: Floats) -> None:
    """Draw a bar for each device, divided into its layers; unfinished layers are pale."""
    for row, steps in enumerate(times):
        start = 0.0
        for k, step in enumerate(steps):
            counts = bool(finished[row, k])
            width = min(step, max(0.0, end - start))
            if width > 0:
                colour = SHADES[k] if counts else LOST
                ax.barh(row, width, left=start, height=0.62, color=colour, edgecolor="white", linewidth=1.0)
            start += step
    ax.set_yticks(range(len(times)))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def _close(ax: Axes, when: float, text: str) -> None:
    ax.axvline(when, color=RED, linewidth=1.8)
    ax.annotate(
        text, (when, -0.62), xytext=(-5, 0), textcoords="offset points", color=RED, ha="right", va="center", fontsize=9
    )


def draw_stragglers() -> Figure:
    """Draw five devices in rounds that wait for stragglers, drop them, or use their layers."""
    times = layer_times(BATCH)
    done = np.cumsum(times, axis=1)
    last = float(done[:, -1].max())
    with matplotlib.rc_context(RC):
        fig = figure(10.0, 3.3)
        wait, drop, layered = fig.subplots(1, 3, sharex=True)
        _rows(wait, times, last, finished=np.ones_like(done))
        _close(wait, last, "slowest device done")
        wait.set(title="Wait: the round is long")
        whole = np.repeat(done[:, -1:] <= DEADLINE, LAYERS, axis=1)
        _rows(drop, times, DEADLINE, finished=whole)
        drop.set(title="Drop: late work is lost")
        _rows(layered, times, DEADLINE, finished=done <= DEADLINE)
        layered.set(title="Layers: finished layers count")
        for ax in (drop, layered):
            _close(ax, DEADLINE, "deadline")
        for ax in (wait, drop, layered):
            ax.set(xlabel="seconds", xlim=(0, last * 1.02), ylim=(4.5, -1.0))
        wait.set_yticklabels(NAMES)
        for ax in (drop, layered):
            ax.set_yticklabels([])
        handles = [Rectangle((0, 0), 1, 1, color=c) for c in (*SHADES, LOST)]
        words = ["layer 4 (output side)", "layer 3", "layer 2", "layer 1 (input side)", "not used"]
        fig.legend(handles, words, loc="outside lower center", ncols=5)
    return fig


def draw_one_device() -> Figure:
    """Draw a network and a backward pass that the deadline ends."""
    with matplotlib.rc_context(RC):
        fig = figure(10.0, 3.1)
        ax = fig.subplots()
        ax.set_axis_off()
        ax.set(xlim=(0, 10), ylim=(0, 3.1))
        for place, k in enumerate(range(LAYERS - 1, -1, -1)):
            sent = k < 2
            x = 1.6 + 1.85 * place
            box = FancyBboxPatch(
                (x, 1.2),
                1.25,
                0.8,
                boxstyle="round,pad=0.02,rounding_size=0.08",
                facecolor=SHADES[k] if sent else "white",
                edgecolor=SHADES[k] if sent else GREY,
                linestyle="-" if sent else "--",
                linewidth=1.4,
            )
            ax.add_patch(box)
            ax.text(x + 0.625, 1.6, f"layer {place + 1}", ha="center", va="center", color="white" if sent else GREY)
            state = ("finished first", "finished second", "cut off by the deadline", "not started")[k]
            ax.text(x + 0.625, 0.95, state, ha="center", va="top", fontsize=9, color=SHADES[k] if sent else GREY)
        ax.text(0.75, 1.6, "samples", ha="center", va="center")
        ax.text(9.25, 1.6, "loss", ha="center", va="center")
        ax.annotate("", (8.9, 2.35), xytext=(1.1, 2.35), arrowprops={"arrowstyle": "->", "color": GREY, "lw": 1.4})
        ax.text(5.0, 2.45, "forward pass", ha="center", va="bottom", color=GREY)
        ax.annotate("", (4.75, 0.35), xytext=(8.9, 0.35), arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 2.2})
        ax.text(6.9, 0.25, "backward pass, from the last layer", ha="center", va="top", color=BLUE)
        ax.plot([4.6, 4.6], [0.12, 0.6], color=RED, linewidth=2.2)
        ax.text(4.45, 0.35, "deadline", ha="right", va="center", color=RED)
        ax.text(0.05, 2.95, "One device, one round", fontsize=10.5, fontweight="bold", va="top")
    return fig


def draw_starving() -> Figure:
    """Draw how often each layer gets an update for several batch sizes, and the trade-off with gradient noise."""
    fleet = ad.Fleet.lognormal(30, compute=16.0, sigma=0.5, seed=1)
    deadline = 0.45
    with matplotlib.rc_context(RC):
        fig = figure(10.0, 3.3)
        left, right = fig.subplots(1, 2)
        layer = np.arange(1, LAYERS + 1)
        for batch, colour in ((32, RED), (16, ORANGE), (8, GREEN), (4, BLUE)):
            chance = Exponential().delivery(batch / fleet.compute, fleet.upload, deadline, LAYERS)
            filled = 1.0 - np.prod(1.0 - chance, axis=0)
            left.plot(layer, filled, "o-", color=colour, label=f"batch {batch}")
        left.set(title="Share of rounds that train a layer", xlabel="layer (1: input side)", ylim=(0, 1.04))
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.yaxis.set_major_formatter(PercentFormatter(1.0))
        left.legend(loc="lower right")
        batches = np.arange(1, 33)
        chance = Exponential().delivery(batches[:, None] / fleet.compute, fleet.upload, deadline, LAYERS)
        empty = np.prod(1.0 - chance[..., 0], axis=-1)
        right.plot(batches, empty, color=RED, label="rounds without an update of layer 1")
        right.plot(batches, 1.0 / np.sqrt(batches), color=BLUE, label="noise of a gradient (batch 1: 100 %)")
        right.set(
            title="Small batches are noisy, large ones too slow", xlabel="batch size", ylim=(0, 1.04), xlim=(1, 32)
        )
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        right.legend(loc="center right")
    return fig


def draw_merge() -> Figure:
    """Draw which device delivered which layer in one round, and how each layer is averaged."""
    done = np.cumsum(layer_times(BATCH), axis=1) <= DEADLINE
    with matplotlib.rc_context(RC):
        fig = figure(10.0, 3.3)
        ax = fig.subplots()
        ax.set_axis_off()
        ax.set(xlim=(-0.2, 7.6), ylim=(-1.5, 5.4))
        for column in range(LAYERS):
            k = LAYERS - 1 - column
            x = 1.4 + 1.45 * column
            ax.text(x + 0.6, 5.1, f"layer {column + 1}", ha="center", va="center", fontweight="bold")
            contributors = int(done[:, k].sum())
            for row in range(len(NAMES)):
                y = 4.0 - row
                colour = SHADES[k] if done[row, k] else "white"
                edge = SHADES[k] if done[row, k] else "#cfcfcf"
                ax.add_patch(Rectangle((x, y), 1.2, 0.78, facecolor=colour, edgecolor=edge, linewidth=1.2))
                if done[row, k]:
                    light = "white" if k < 2 else "#222222"
                    share = "1" if contributors == 1 else f"1/{contributors}"
                    ax.text(x + 0.6, y + 0.39, share, ha="center", va="center", color=light)
            ax.annotate("", (x + 0.6, -0.75), xytext=(x + 0.6, -0.1), arrowprops={"arrowstyle": "->", "color": GREY})
            result = f"mean of {contributors}" if contributors > 1 else "one update" if contributors else "unchanged"
            ax.text(x + 0.6, -1.0, result, ha="center", va="top", color="#333333" if contributors else RED)
        for row, name in enumerate(NAMES):
            ax.text(1.2, 4.39 - row, name, ha="right", va="center")
        ax.text(1.2, -1.0, "new layer", ha="right", va="top")
    return fig


def draw_plans() -> Figure:
    """Draw planned deadlines for two learning rates, and planned batch sizes of three kinds of device."""
    fleet = ad.Fleet.of(compute=[40, 16, 6], count=[8, 14, 8], names=["fast", "middle", "slow"])
    rates = (
        ("constant learning rate", ad.ConstantRate(0.3), BLUE),
        ("decaying: η₀/(1 + t/20)", ad.InverseDecay(0.3, 20.0), ORANGE),
    )
    with matplotlib.rc_context(RC):
        fig = figure(10.0, 3.3)
        left, right = fig.subplots(1, 2)
        for label, rate, colour in rates:
            problem = ad.Problem(fleet, layers=LAYERS, rounds=100, budget=150.0, learning_rate=rate)
            schedule = ad.plan(problem).schedule
            left.step(np.arange(1, 101), schedule.deadlines, where="mid", color=colour, label=label)
            if colour == BLUE:
                batches = np.array([schedule.batch_sizes(t) for t in range(100)])
        left.axhline(1.5, color=GREY, linestyle="--", linewidth=1.3, label="uniform: budget / rounds")
        left.set(title="Deadline of each round, seconds", xlabel="round", xlim=(1, 100))
        left.set_ylim(0, 4.4)
        left.legend(loc="upper center")
        for group, colour in enumerate((BLUE, SKY, GREY)):
            right.step(
                np.arange(1, 101), batches[:, group], where="mid", color=colour, label=f"{fleet.name(group)} devices"
            )
        right.set(title="Batch size of each device (constant rate)", xlabel="round", xlim=(1, 100))
        right.set_ylim(bottom=0)
        right.legend(loc="upper left")
    return fig


def draw_replanning(seeds: int = 5) -> Figure:
    """Draw plans with and without replanning for a fleet that is three times slower than assumed."""
    misjudged = "fleet.misjudged=3.0"
    variants = (("replanned", "true", BLUE), ("planned once", "false", ORANGE))
    with matplotlib.rc_context(RC):
        fig = figure(10.0, 3.3)
        left, right = fig.subplots(1, 2)
        for label, replan, colour in variants:
            batches, curves, grid = [], [], np.linspace(0.0, 1.0, 101)
            for seed in range(seeds):
                changes = [misjudged, f"training.seed={seed}", f"strategy.options={{replan = {replan}}}"]
                rows: list[dict[str, object]] = []
                experiment = ad.build_experiment(ad.load_run(None, changes))
                ad.simulate(experiment, report=rows.append)
                batches.append([np.mean(row.batch) for row in rows if row.round])  # type: ignore[arg-type]
                known = [(row.time, row.accuracy) for row in rows if row.accuracy is not None]
                budget = experiment.strategy.problem.budget
                curves.append(np.interp(grid * budget, *zip(*known, strict=True)))  # type: ignore[arg-type]
            rounds = min(map(len, batches))
            left.plot(
                np.arange(1, rounds + 1), np.mean([b[:rounds] for b in batches], axis=0), color=colour, label=label
            )
            mean, error = np.mean(curves, axis=0), np.std(curves, axis=0, ddof=1) / np.sqrt(seeds)
            right.plot(grid, mean, color=colour, label=label)
            right.fill_between(grid, mean - error, mean + error, color=colour, alpha=0.16, linewidth=0)
        left.set(title="Mean batch size", xlabel="round", xlim=(1, 100))
        left.set_ylim(bottom=0)
        right.set(title=f"Test accuracy, mean of {seeds} seeds", xlabel="share of the budget", xlim=(0, 1), ylim=(0, 1))
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0))
        right.legend(loc="lower right")
    return fig


FIGURES = {
    "stragglers": draw_stragglers,
    "device": draw_one_device,
    "starving": draw_starving,
    "merge": draw_merge,
    "plans": draw_plans,
    "replanning": draw_replanning,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "img")
    parser.add_argument("--only", choices=sorted(FIGURES), help="draw a single figure")
    args = parser.parse_args()
    for name, draw in FIGURES.items():
        if args.only in (None, name):
            save(draw(), args.out / f"concepts-{name}.png", dpi=130)
