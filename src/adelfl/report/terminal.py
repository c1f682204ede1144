"""Tables and summaries for the terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from adelfl.atomic import is_written, locked_inodes
from adelfl.clock import wall_seconds
from adelfl.errors import AdelError, ConfigError
from adelfl.fitting import FittedLaw
from adelfl.planner import Solution, WhatIfRow
from adelfl.records.reader import RunRecord
from adelfl.records.summary import QUARTERS
from adelfl.records.tail import rows_backwards
from adelfl.report.comparison import Contender, plus_minus

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN_GROUPS = 400  # more groups hardly change the averages
_NAMED_GROUPS = 12  # most rows of the table of batch sizes


def sparkline(values: np.ndarray, width: int = 60) -> str:
    """Draw values as a line of blocks, scaled from the lowest to the highest value."""
    if values.size > width:
        values = np.array([part.mean() for part in np.array_split(values, width)])
    low, span = float(values.min()), float(np.ptp(values))
    if span <= 1e-9 * abs(low):
        return _BLOCKS[3] * values.size
    return "".join(_BLOCKS[min(7, int(8 * (v - low) / span))] for v in values)


def _table(*numbers: str, first: str = "", no_wrap: bool = False) -> Table:
    """Return an empty table: a column of text if ``first`` is its title, then columns of numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    if first:
        table.add_column(first, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=no_wrap)
    return table


def _print_whole(table: Table, console: Console) -> None:
    """Print a table without truncated numbers, which rich would print in a narrow terminal.

    In a terminal, text columns are folded; elsewhere, lines are as long as necessary.
    """
    wide = console.options.update(max_width=10_000)
    for column in table.columns:
        if column.no_wrap:  # rich uses the longest word as the minimum width
            column.min_width = max(
                Measurement.get(console, wide, text).maximum for text in (column.header, *column.cells)
            )
    needs = Measurement.get(console, wide, table)
    table.width = max(needs.minimum, min(needs.maximum, console.width)) if console.is_terminal else needs.maximum
    console.print(table, crop=False)


def print_plan(solution: Solution, console: Console | None = None) -> None:
    """Print a plan: a sparkline, a table of some rounds, and its expected outcome."""
    console = console or Console(highlight=False)
    problem, schedule = solution.problem, solution.schedule
    sample = schedule.thinned(_SHOWN_GROUPS)
    T = schedule.deadlines
    how = "tight" if solution.objective == "tight" else f"the paper's bound, {solution.method}"
    console.print(
        f"[bold]{problem.fleet.size} devices, {problem.layers} layer{'s' * (problem.layers > 1)}, {problem.rounds} "
        f"round{'s' * (problem.rounds > 1)} in {problem.budget:g} s[/bold]   "
        f"planned in {solution.seconds * 1e3:.0f} ms ({how})"
    )
    console.print(
        f"deadlines {T[0]:.3g} s [blue]{sparkline(T, 40)}[/blue] {T[-1]:.3g} s (uniform: {T.mean():.3g} s)",
        soft_wrap=True,
    )
    table = _table("round", "deadline", "batch sizes", "mean depth", "first layer empty")
    shown_rounds = 8 if problem.fleet.groups <= 100_000 else 3  # each row takes a pass over the fleet
    rounds = np.unique(np.linspace(0, problem.rounds - 1, min(shown_rounds, problem.rounds)).round().astype(int))
    depth = sample.expected_depth(rounds) / problem.layers
    for t, share in zip(rounds, depth, strict=True):
        sizes = schedule.batch_sizes(int(t))[~schedule.sits_out]
        span = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
        empty = float(schedule.p_empty(int(t))[0])
        often = f"{empty:.2%}" if empty >= 5e-5 else "< 0.01%"
        table.add_row(f"{t + 1}", f"{T[t]:#.4g} s", span, f"{share:.0%}", often)
    _print_whole(table, console)
    _print_groups(solution, console)
    console.print(escape(solution.outcome), soft_wrap=True)
    for s in solution.sitting_out[:5]:
        console.print(f"[red]sits out[/red]: {escape(s.name)} (× {s.count}): {s.reason}", soft_wrap=True)
    if rest := solution.sitting_out[5:]:
        console.print(f"[red]sit out[/red]: {sum(s.count for s in rest)} more devices in {len(rest)} groups")
    console.print(f"limited by: {escape(', '.join(solution.binding))}")
    if solution.grouping_error:
        console.print(f"similar devices were merged; relative error of the batch term: {solution.grouping_error:.1e}")


def _print_groups(solution: Solution, console: Console) -> None:
    """Print the batch sizes of device groups in some rounds, "–" for a group that sits out; of many groups, some."""
    schedule, fleet = solution.schedule, solution.problem.fleet
    rounds = np.unique(np.linspace(0, schedule.rounds - 1, min(4, schedule.rounds)).round().astype(np.int64))
    groups = np.arange(fleet.groups)
    if groups.size > _NAMED_GROUPS:
        places = np.linspace(0, groups.size - 1, _NAMED_GROUPS).round().astype(np.int64)
        groups = np.argsort(fleet.compute, kind="stable")[places]
    table = _table("devices", *(f"round {t + 1}" for t in rounds), first="batch size of", no_wrap=True)
    sizes = np.array([schedule.batch_sizes(int(t), groups) for t in rounds])
    for i, column in zip(groups, sizes.T, strict=True):
        shown = (f"{size}" if size else "–" for size in column)
        table.add_row(escape(fleet.name(int(i))), f"{fleet.count[i]}", *shown)
    _print_whole(table, console)
    if groups.size < fleet.groups:
        console.print(f"[dim]{groups.size} of {fleet.groups} device groups, from the slowest to the fastest[/dim]")


def print_comparison(contenders: list[Contender], console: Console | None = None) -> None:
    """Print the table of a comparison, best first."""
    console = console or Console(highlight=False)
    ceiling = next((float(c.final.mean()) for c in contenders if c.name == "oracle"), None)
    titles = ("final", *(f"at\n{q}" for q in QUARTERS), "of\noracle", "depth", "rounds")
    table = _table(*titles, first="strategy", no_wrap=True)
    for c in sorted(contenders, key=lambda c: -float(c.final.mean())):
        share = f"{float(c.final.mean()) / ceiling:.0%}" if ceiling else "–"
        style = "bold blue" if c.name == "adel" else "dim" if c.name == "oracle" else ""
        quarters = [f"{c.at(q):.0%}" for q in QUARTERS]
        means = [c.final_text, *quarters, share, f"{c.depth:.0%}", f"{c.rounds:.0f}"]
        table.add_row(escape(c.label), *means, style=style)
    _print_whole(table, console)
    console.print(
        f"[dim]{escape(_seeds(contenders))}; final: mean over the last tenth of the budget, "
        "which may differ from the end of the plotted line; depth: mean share of layers that devices finished in time"
        "[/dim]",
        soft_wrap=not console.is_terminal,
    )


def _seeds(contenders: list[Contender]) -> str:
    """State over how many seeds means are, and the strategies of which fewer runs finished."""
    most = max(c.final.size for c in contenders)
    fewer = ", ".join(f"{c.final.size} of {c.label}" for c in contenders if c.final.size < most)
    seeds = f"mean ± standard error over {most} seeds" if most > 1 else "one seed"
    return seeds + (f" ({fewer}: the others failed)" if fewer else "")


def print_study(
    title: str,
    source: str,
    tables: Sequence[tuple[str, Sequence[tuple[str, float, float, float, int, float, float]]]],
    claims: list[dict[str, Any]],
    console: Console | None = None,
) -> None:
    """Print a study: a table of final accuracies over cells, and a verdict on each claim."""
    console = console or Console(highlight=False)
    console.print(f"[bold]{escape(title)}[/bold]   {escape(source)}")
    for cell, rows in tables:
        tenths = [] if all(math.isnan(row[6]) for row in rows) else ["slowest tenth"]
        table = _table("final", *tenths, "learning rate", "broke down", first=cell)
        table.columns[0].min_width = 40
        known = [row for row in rows if not math.isnan(row[1])]  # not every strategy runs in every cell
        for label, mean, error, rate, broke, _, slowest in sorted(known, key=lambda row: -row[1]):
            tenth = "" if math.isnan(slowest) else f"{slowest:.1f}%"
            table.add_row(
                escape(label), plus_minus(mean, error, "%"), *[tenth for _ in tenths], f"{rate:g}", f"{broke or ''}"
            )
        _print_whole(table, console)
    for claim in claims:
        spread = "" if claim["se"] is None else f" ± {claim['se']:.1f}"
        claimed = f"{claim['paper']}, {claim['cell']}: {claim['ours']:.1f}{spread}"
        console.print(f"[bold]{claim['verdict']}[/bold]: {escape(claimed)}", soft_wrap=True)


def print_profile(
    batch_sizes: Sequence[int],
    forward: np.ndarray,
    backward: np.ndarray,
    names: Sequence[str],
    laws: Sequence[FittedLaw],
    variation: float,
    console: Console | None = None,
) -> None:
    """Print the profile of a machine: median milliseconds by batch size, and how well each law fits."""
    console = console or Console(highlight=False)
    table = _table("batch", "forward, ms", "backward, ms", "slowest layer")
    for size, ahead, back in zip(batch_sizes, forward, backward, strict=True):
        layer = np.median(back, axis=0)
        slowest = f"{names[int(layer.argmax())]}, {layer.max() / layer.sum():.0%}"
        table.add_row(
            f"{size}", f"{1e3 * np.median(ahead):.2f}", f"{1e3 * np.median(back.sum(1)):.2f}", escape(slowest)
        )
    _print_whole(table, console)
    console.print(
        f"The time of a backward pass varies by {variation:.0%} (standard deviation over mean); "
        f"{len(names)} exponential layers would vary by {len(names) ** -0.5:.0%}.",
        soft_wrap=True,
    )
    names_of_laws = ", ".join(f"{law.name} (distance {law.distance:.2f})" for law in laws)
    console.print(f"Distributions of the layer times per sample, best fit first: {names_of_laws}.", soft_wrap=True)


def print_runs(records: list[RunRecord], root: Path, console: Console | None = None) -> None:
    """Print one line per run."""
    console = console or Console(highlight=False)
    if not records:
        console.print(f"no runs below {escape(str(root))}")
        return
    locked = locked_inodes()
    table = _table()
    for title in ("run", "strategy", "seed", "rounds", "accuracy", "state"):
        number = title in ("seed", "rounds", "accuracy")
        table.add_column(title, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for record in records:
        try:
            table.add_row(escape(str(record.folder)), *_line(record, locked))
        except AdelError as error:
            table.add_row(escape(str(record.folder)), *4 * ("",), f"[red]unreadable: {escape(str(error))}[/red]")
    _print_whole(table, console)


def _line(record: RunRecord, locked: set[int]) -> tuple[str, str, str, str, str]:
    info, result = record.info, record.result
    if result is not None:
        record.check_last(next(rows_backwards(record.folder / "rounds.jsonl"), None))
        final = result.final_accuracy
        accuracy, rounds, state = "" if final is None else f"{final:.1%}", str(result.rounds), "finished"
    else:
        _, accuracies = record.evaluations
        accuracy = f"{accuracies[-1]:.1%}" if accuracies.size else ""
        rounds = f"{record.rounds[-1].round if record.rounds else 0}/{info.rounds}"
        again = f"adelfl resume {escape(shlex.quote(str(record.folder)))}"
        if info.clock == "real":
            again = "start its ServerApp again to continue it"
        elif info.made_by == "simulate":
            again = "call simulate(experiment, record=...) again to continue it"
        files = [record.folder / name for name in ("run.json", "rounds.jsonl")]
        changed = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
        state = f"stopped; {again}"
        if is_written(record.folder, math.inf, locked):
            state = "running"
        elif is_written(record.folder, wall_seconds() - changed, locked):
            state = f"running, or just stopped; {again}"
        state = f"[yellow]{state}[/yellow]"
        if record.failure is not None:
            state = f"[red]failed: {escape(record.failure)}[/red]"
    return escape(info.label), str(info.seed), rounds, accuracy, state


def print_run(record: RunRecord, console: Console | None = None) -> None:
    """Print a run: its settings, accuracy and deadlines, and the contributors per layer."""
    console = console or Console(highlight=False)
    info = record.info
    if any(row.round > 0 and len(row.contributors) != len(info.layers) for row in record.rounds):
        raise ConfigError(f"{record.folder}: rounds.jsonl and run.json have different numbers of layers")
    label, seed, rounds, accuracy, state = _line(record, locked_inodes())
    console.print(f"[bold]{label}[/bold], seed {seed}, {info.devices} devices, {len(info.layers)} layers: {state}")
    accuracy = accuracy or "not evaluated"
    console.print(f"rounds {rounds}, accuracy {accuracy}, budget {info.budget:.4g} {info.clock} seconds")
    console.print(f"wall time {record.wall_seconds:.2f} s; " + ", ".join(f"{k} {v}" for k, v in info.versions.items()))
    if record.result is not None and (use := record.result.time_use):
        parts = ", ".join(f"{name} {seconds / info.budget:.0%}" for name, seconds in use.items())
        console.print(f"time      {parts} of the budget")
    _, accuracies = record.evaluations
    if accuracies.size > 1:
        console.print(f"accuracy  [blue]{sparkline(accuracies, 60)}[/blue]  {accuracies[0]:.0%} → {accuracies[-1]:.0%}")
    rows = [row for row in record.rounds if row.round > 0]
    if not rows:
        return
    console.print(f"deadlines [blue]{sparkline(np.array([row.deadline for row in rows]), 60)}[/blue]")
    contributors = np.array([row.contributors for row in rows])
    table = _table("contributors a round", "rounds without any", first="layer")
    for name, column in zip(info.layers, contributors.T, strict=True):
        table.add_row(escape(name), f"{column.mean():.1f}", f"{(column == 0).mean():.0%}")
    _print_whole(table, console)


def print_what_if(rows: Sequence[WhatIfRow], key: str, console: Console | None = None) -> None:
    """Print a line per row, then the number of rows without a plan and the first reason."""
    console = console or Console(highlight=False)
    name = {"without": "devices\nleft out", "budget": "budget,\nseconds"}.get(key, f"\n{key}")
    columns = (name, "excess,\nplan", "excess,\nuniform", "bound,\nplan", "mean\ndepth", "first layer\nempty")
    table = _table(*columns, "devices\nserved", no_wrap=True)
    for r in rows:
        if r.infeasible is None:
            errors = (f"{r.excess:.3e}", f"{r.uniform_excess:.3e}", f"{r.bound:#.6g}")
            table.add_row(f"{r.value:g}", *errors, f"{r.depth:.0%}", f"{r.first_layer_empty:.2g}", f"{r.served}")
        else:
            table.add_row(f"{r.value:g}", *5 * ["–"], "[red]no plan[/red]")
    _print_whole(table, console)
    if reasons := [f"at {r.value:g}, {r.infeasible}" for r in rows if r.infeasible is not None]:
        console.print(escape(f"No plan for {len(reasons)} of {len(rows)} values: {reasons[0]}."), soft_wrap=True)
