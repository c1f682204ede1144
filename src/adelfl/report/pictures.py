"""The pictures of a report, each with a title and an explanation for people who have not read the paper."""

from __future__ import annotations

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
from adelfl.report.lines import (
    draw_batches,
    draw_deadlines,
    draw_progress,
    evaluated,
    one_batch,
    planned,
    varied,
)
from adelfl.report.maps import MOST_CELLS, MOST_DEVICES, draw_contributions, draw_coverage, rounds_per_cell
from adelfl.report.style import save
from adelfl.report.traces import Trace


@dataclass(frozen=True, eq=False)
class Picture:
    """One section of a report.

    Attributes
    ----------
    name : str
        Of its files, and its anchor on the page.
    title : str
    figure : Figure or None
        None if there is nothing to draw; the words then say why.
    words : str
        What it shows and how to read it.
    """

    name: str
    title: str
    figure: Figure | None
    words: str

    def svg(self) -> bytes:
        """The figure as it stands in the page: the same bytes for the same runs."""
        assert self.figure is not None
        out = io.BytesIO()
        with _drawing(), matplotlib.rc_context({"svg.hashsalt": "adelfl"}):
            self.figure.savefig(out, format="svg", dpi=200, metadata={"Date": None})
        return out.getvalue()

    def save(self, folder: Path) -> None:
        """Write the figure as PNG and PDF, fit for a paper, if there is one."""
        if self.figure is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as trouble:
            raise ConfigError(f"{folder}: cannot be written ({trouble.strerror})") from None
        # Type 42: conferences refuse matplotlib's own kind of fonts.
        with _drawing(), matplotlib.rc_context({"pdf.fonttype": 42}):
            for ending in ("png", "pdf"):
                save(self.figure, folder / f"{self.name}.{ending}", dpi=200)


@contextmanager
def _drawing() -> Iterator[None]:
    """Do not warn of names in letters that the font does not have: they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def pictures(gathered: Gathered) -> Iterator[Picture]:
    """Draw all that these runs have to show."""
    groups = gathered.groups
    for what, title in (("accuracy", "Accuracy over time"), ("loss", "Loss over time")):
        known = evaluated(groups, what)
        figure = draw_progress(groups, what) if known else None
        yield Picture(what, title, figure, _about_progress(gathered, what) if known else f"No {what} was recorded.")
    started = [g for g in groups if any(trace.lengths.size for trace in g.traces)]
    yield Picture(
        "deadlines",
        "Deadlines, and how long rounds took",
        draw_deadlines(started) if started else None,
        _about_deadlines(started) if started else _NOTHING,
    )
    yield Picture(
        "coverage",
        "Which layers were trained",
        draw_coverage(started) if started else None,
        _about_coverage(started) if started else _NOTHING,
    )
    runs = _representatives(started)
    yield Picture(
        "contributions",
        "Who contributed",
        draw_contributions(runs) if runs else None,
        _about_contributions(runs) if runs else _NOTHING,
    )
    yield Picture("batches", "Batch sizes", draw_batches(groups) if varied(groups) else None, _about_batches(groups))


_NOTHING = "No round was finished yet."


def _about_progress(gathered: Gathered, what: str) -> str:
    missing = [g.label for g in gathered.groups if g not in evaluated(gathered.groups, what)]
    said = [
        "Share of the test samples that the model gets right, against time."
        if what == "accuracy"
        else "Loss on the test samples against time: lower is better."
    ]
    if any(len(g.traces) > 1 for g in gathered.groups):
        said.append("Lines are means over seeds, bands ± one standard error: where bands overlap, it may be luck.")
    if what == "accuracy":
        if all(trace.clock == "virtual" for trace in gathered.drawn):
            said.append("Time is virtual: what the simulated fleet would need, not what this computer took.")
        if all(trace.clock == "real" for trace in gathered.drawn):
            said.append("Time is real: seconds since the server began.")
        if gathered.oracle is not None:
            said.append("The oracle, dashed, is a ceiling and no method: every device finishes everything in time.")
    if missing:
        said.append(f"Not evaluated: {', '.join(missing)}.")
    return " ".join(said)


def _about_deadlines(groups: list[Group]) -> str:
    uniform = "The uniform deadline (dashed) shares the time budget equally among the rounds."
    took = (
        "a thin line from the shortest round to the longest, a bar over the middle half, and a dot at the median. "
        "A method that waits for everybody takes as long as its slowest device."
    )
    if not planned(groups):
        return f"How long rounds took: {took} {uniform}"
    band = " (mean over seeds; the band spans all of them)" if any(len(g.traces) > 1 for g in planned(groups)) else ""
    return (
        f"Left: when the plan closes each round{band}. {uniform} A longer round lets slow devices finish more layers, "
        f"but has to be paid for with shorter ones elsewhere. Right: how long rounds really took: {took}"
    )


def _about_coverage(groups: list[Group]) -> str:
    mean = ", mean over seeds" if any(len(g.traces) > 1 for g in groups) else ""
    return (
        f"For each round and layer: the share of the devices asked whose work on that layer was merged{mean}. Devices "
        "work backwards, from the last layer (bottom) to the first (top), so short time starves the first layers: dark "
        f"means that nobody trains them.{_about_blank(groups)}{_about_cells([t for g in groups for t in g.traces])}"
    )


def _about_contributions(runs: list[tuple[str, Trace]]) -> str:
    seeds = ", ".join(sorted({str(trace.info.seed) for _, trace in runs}))
    what = f"One run of each strategy (seed {seeds})" if len(runs) > 1 else f"One run (seed {seeds})"
    most = max(len({int(u) for asked in trace.asked for u in asked}) for _, trace in runs)
    said = [
        f"{what}: a row per device, those that gave most on average at the top, "
        "and a column per round. Yellow: all of its layers were merged; dark: nothing was, because time ran out "
        "or because the method takes finished work only."
    ]
    if any(len({asked.size for asked in trace.asked}) > 1 or trace.asked[0].size < most for _, trace in runs):
        said.append("Pale grey: not asked in that round.")
    if most > MOST_DEVICES:
        said.append(f"Shown are {MOST_DEVICES} of up to {most} devices, evenly spaced in that order.")
    return " ".join(said) + _about_cells([trace for _, trace in runs])


def _about_blank(groups: list[Group]) -> str:
    short = any(trace.lengths.size < trace.info.rounds for g in groups for trace in g.traces)
    return (
        " Pale grey: rounds that were not done, since the time budget was used up or the run is not finished."
        if short
        else ""
    )


def _about_cells(traces: list[Trace]) -> str:
    most = max(trace.lengths.size for trace in traces)
    if most <= MOST_CELLS:
        return ""
    return f" Where there are more than {MOST_CELLS} rounds, a column is the mean of up to {rounds_per_cell(most)}."


def _about_batches(groups: list[Group]) -> str:
    fixed: dict[tuple[float, str], list[str]] = {}
    idle: dict[str, list[str]] = {}
    for g in groups:
        if len(sizes := one_batch(g)) == 1:
            fixed.setdefault((sizes.pop(), _idle_share(g)), []).append(g.label)
        elif sizes and _idle_share(g):
            idle.setdefault(_idle_share(g), []).append(g.label)
    said = []
    if varied(groups):
        said.append(
            "How many samples devices train on in a round: the line is the median device, the darker band the middle "
            "half, the lighter one all of them. Fewer samples for a slow device mean more layers in time, but a "
            "noisier step."
        )
    said += [f"Left out: the {share} that have no samples ({', '.join(labels)})." for share, labels in idle.items()]
    for (size, share), labels in sorted(fixed.items()):
        who = f"every device that trains, none for the other {share}" if share else "every device"
        said.append(f"Always {size:g} for {who}: {', '.join(labels)}.")
    return " ".join(said) or _NOTHING


def _idle_share(group: Group) -> str:
    """Return the share of devices asked whose batch was empty, in words; an empty text if there was none."""
    idle = sum(int(trace.idle.sum()) for trace in group.traces)
    asked = sum(devices.size for trace in group.traces for devices in trace.asked)
    if not idle:
        return ""
    share = idle / asked
    return f"{share:.0%} of devices" if share >= 0.005 else "fewer than 1% of devices"


def _representatives(groups: list[Group]) -> list[tuple[str, Trace]]:
    """One run of each: of the seed that most of them have, the lowest of those."""
    groups = [g for g in groups if any(trace.asked for trace in g.traces)]
    seeds = Counter(trace.info.seed for g in groups for trace in {t.info.seed: t for t in g.traces}.values())
    order = {seed: place for place, seed in enumerate(sorted(seeds, key=lambda seed: (-seeds[seed], seed)))}
    return [(g.label, min((t for t in g.traces if t.asked), key=lambda trace: order[trace.info.seed])) for g in groups]
