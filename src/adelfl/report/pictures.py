"""The figures of a report, each with a title and an explanation that does not presuppose the paper."""

from __future__ import annotations

import base64
import io
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from adelfl.errors import ConfigError
from adelfl.report.groups import Gathered, Group
from adelfl.report.heatmaps import MOST_CELLS, MOST_DEVICES, draw_contributions, draw_coverage, rounds_per_cell
from adelfl.report.rounds import batch_sizes, draw_batches, draw_deadlines, planned, varied
from adelfl.report.run_data import RunData
from adelfl.report.style import save
from adelfl.report.time_series import draw_progress, evaluated


@dataclass(frozen=True, eq=False)
class Picture:
    """One section of a report."""

    name: str  # of its files, and its anchor on the page
    title: str
    figure: Figure | None  # None if there is nothing to draw
    words: str  # how to read the figure, or why there is none

    def base64(self) -> str:
        """Return the figure as encoded SVG: the same bytes for the same runs."""
        assert self.figure is not None
        out = io.BytesIO()
        with _drawing(), matplotlib.rc_context({"svg.hashsalt": "adelfl"}):
            self.figure.savefig(out, format="svg", dpi=200, metadata={"Date": None})
        return base64.b64encode(out.getvalue()).decode()

    def save(self, folder: Path) -> None:
        """Write the figure, if there is one, as PNG and PDF."""
        if self.figure is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
        # Type 42: conferences refuse matplotlib's default kind of fonts.
        with _drawing(), matplotlib.rc_context({"pdf.fonttype": 42}):
            for suffix in ("png", "pdf"):
                save(self.figure, folder / f"{self.name}.{suffix}", dpi=200)


@contextmanager
def _drawing() -> Iterator[None]:
    """Suppress warnings about characters that the font lacks; they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


_NOTHING = "No round was finished yet."


def pictures(gathered: Gathered) -> Iterator[Picture]:
    """Draw all figures of a report."""
    groups = gathered.groups
    for what, title in (("accuracy", "Accuracy over time"), ("loss", "Loss over time")):
        if evaluated(groups, what):
            yield Picture(what, title, draw_progress(groups, what), _about_progress(gathered, what))
        else:
            yield Picture(what, title, None, f"No {what} was recorded.")
    started = [g for g in groups if any(run.lengths.size for run in g.runs)]
    runs = _representatives(started)
    titles = ("Deadlines, and how long rounds took", "Which layers were trained", "Who contributed")
    names = ("deadlines", "coverage", "contributions")
    if not started:
        yield from (Picture(name, title, None, _NOTHING) for name, title in zip(names, titles, strict=True))
    else:
        yield Picture(names[0], titles[0], draw_deadlines(started), _about_deadlines(started))
        yield Picture(names[1], titles[1], draw_coverage(started), _about_coverage(started))
        yield Picture(names[2], titles[2], draw_contributions(runs), _about_contributions(runs))
    yield Picture("batches", "Batch sizes", draw_batches(groups) if varied(groups) else None, _about_batches(groups))


def _representatives(groups: list[Group]) -> list[tuple[str, RunData]]:
    """Return one run of each group, with the seed that most groups have."""
    seeds = Counter(seed for g in groups for seed in {run.info.seed for run in g.runs})
    return [
        (g.label, min((run for run in g.runs if run.devices), key=lambda r: (-seeds[r.info.seed], r.info.seed)))
        for g in groups
    ]


def _about_progress(gathered: Gathered, what: str) -> str:
    groups, clocks = gathered.groups, {run.info.clock for run in gathered.drawn}
    missing = [g.label for g in groups if g not in evaluated(groups, what)]
    sentences = ["Loss on the test samples against time: lower is better."]
    if what == "accuracy":
        sentences = ["Share of the test samples that the model gets right, against time."]
    if any(len(g.runs) > 1 for g in groups):
        sentences.append("Lines are means over seeds, bands ± one standard error.")
    if what == "accuracy":
        if clocks == {"virtual"}:
            sentences.append("Time is virtual: what the simulated fleet would need, not what this computer took.")
        if clocks == {"real"}:
            sentences.append("Time is real: seconds since the server began.")
        if gathered.oracle is not None:
            sentences.append("The oracle, dashed, is a ceiling, not a method: every device finishes in time.")
    if missing:
        sentences.append(f"Not evaluated: {', '.join(missing)}.")
    return " ".join(sentences)


def _about_deadlines(groups: list[Group]) -> str:
    uniform = "The uniform deadline (dashed) shares the time budget equally among the rounds."
    took = (
        "a thin line from the shortest round to the longest, a bar over the middle half, and a dot at the median. "
        "A method that waits for every device takes as long as its slowest one."
    )
    if not planned(groups):
        return f"How long rounds took: {took} {uniform}"
    band = " (mean over seeds; the band spans all of them)" if any(len(g.runs) > 1 for g in planned(groups)) else ""
    return (
        f"Left: when the plan closes each round{band}. {uniform} A longer round lets slow devices finish more layers, "
        f"but makes other rounds shorter. Right: how long rounds really took: {took}"
    )


def _about_coverage(groups: list[Group]) -> str:
    runs = [run for g in groups for run in g.runs]
    mean = ", mean over seeds" if len(runs) > len(groups) else ""
    blank = ""
    if any(run.lengths.size < run.info.rounds for run in runs):
        blank = " Pale grey: rounds that were not done, since the time budget was used up or the run is not finished."
    return (
        f"For each round and layer: the share of the round's devices whose work on that layer was merged{mean}. "
        "Devices work backwards, from the last layer (bottom) to the first (top), so short time starves the first "
        f"layers: dark means that no device trains them.{blank}{_about_cells(runs)}"
    )


def _about_contributions(runs: list[tuple[str, RunData]]) -> str:
    seeds = ", ".join(sorted({str(run.info.seed) for _, run in runs}))
    what = f"One run of each strategy (seed {seeds})" if len(runs) > 1 else f"One run (seed {seeds})"
    most = max(len({int(u) for devices in run.devices for u in devices}) for _, run in runs)
    sentences = [
        f"{what}: a row per device, those that gave most on average at the top, and a column per round. Yellow: all of "
        "its layers were merged; dark: none was, because time ran out or because the method takes finished work only."
    ]
    if any(devices.size < most for _, run in runs for devices in run.devices):
        sentences.append("Pale grey: took no part in that round.")
    if most > MOST_DEVICES:
        sentences.append(f"Shown are {MOST_DEVICES} of up to {most} devices, evenly spaced in that order.")
    return " ".join(sentences) + _about_cells([run for _, run in runs])


def _about_cells(runs: list[RunData]) -> str:
    most = max(run.lengths.size for run in runs)
    if most <= MOST_CELLS:
        return ""
    return f" Where there are more than {MOST_CELLS} rounds, a column is the mean of up to {rounds_per_cell(most)}."


def _about_batches(groups: list[Group]) -> str:
    fixed: dict[tuple[float, str], list[str]] = {}
    idle: dict[str, list[str]] = {}
    for g in groups:
        if len(sizes := batch_sizes(g)) == 1:
            fixed.setdefault((sizes.pop(), _idle_share(g)), []).append(g.label)
        elif sizes and _idle_share(g):
            idle.setdefault(_idle_share(g), []).append(g.label)
    sentences = []
    if varied(groups):
        sentences.append(
            "How many samples devices train on in a round: the line is the median device, the darker band the middle "
            "half, the lighter one all of them. Fewer samples for a slow device mean more layers in time, but a "
            "noisier step."
        )
    sentences += [f"Left out: the {share} that have no samples ({', '.join(names)})." for share, names in idle.items()]
    for (size, share), labels in sorted(fixed.items()):
        devices = f"every device that trains, none for the other {share}" if share else "every device"
        sentences.append(f"Always {size:g} for {devices}: {', '.join(labels)}.")
    return " ".join(sentences) or _NOTHING


def _idle_share(group: Group) -> str:
    """Return the share of devices with an empty batch, in words; an empty text if there are none."""
    idle = sum(int(run.idle.sum()) for run in group.runs)
    share = idle / max(1, sum(devices.size for run in group.runs for devices in run.devices))
    return "" if not idle else f"{share:.0%} of devices" if share >= 0.005 else "fewer than 1% of devices"
