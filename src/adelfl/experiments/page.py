"""Tables of docs/reproduction.md, made from the results' CSV files, between marks that name the study.

<!-- results: mnist-mlp -->
...
<!-- end -->
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from adelfl.experiments.catalogue import find_study
from adelfl.experiments.outcome import Outcome, Verdict

_MARKED = re.compile(r"(<!-- (results|claims): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_page(text: str, results: Path) -> str:
    """Write the tables of every study that the page names, from the files in a folder; others stay as they are."""

    def table(found: re.Match[str]) -> str:
        begin, what, name, end = found.groups()
        if not (results / f"{name}.csv").is_file():
            return found[0]
        outcome = Outcome.read(find_study(name), results / name)
        make: Callable[[Outcome], str] = {"results": results_table, "claims": claims_table}[what]
        about = results / f"{name}.json"
        minutes = json.loads(about.read_text(encoding="utf-8"))["about"]["core_minutes"] if about.is_file() else None
        time = f"\n`adelfl reproduce {name}`: {minutes:.0f} core-minutes." if what == "results" and minutes else ""
        return f"{begin}{make(outcome)}{time}\n{end}"

    return _MARKED.sub(table, text)


def results_table(outcome: Outcome) -> str:
    """Final accuracy of every strategy in every cell: mean ± standard error in percent, and the chosen η_0."""
    tables = outcome.tables()
    rows = [["strategy", *(title for title, _ in tables)]]
    for here in zip(*(table for _, table in tables), strict=True):
        row = [here[0][0]]
        for _, mean, error, rate, broke in here:
            failed = f", {broke} broke down" if broke else ""
            row.append(f"{_plus_minus(mean, error)} ({rate:g}{failed})")
        rows.append(row)
    seeds = len(outcome.of(outcome.study.cells[0], outcome.study.strategies[0]))
    note = f"\nFinal test accuracy, %, mean ± standard error of {seeds} seeds (in brackets: the η₀ that was chosen).\n"
    return _markdown(rows) + note


def claims_table(outcome: Outcome) -> str:
    """Each claim of the paper, where we looked, and what we saw."""
    titles = {cell.key: cell.title + (" (the paper's)" if cell.paper else "") for cell in outcome.study.cells}
    rows = [["the paper", "where", "paper", "ours", "verdict"]]
    rows += [[v.claim, titles[v.cell], _claimed(v), _ours(v), v.verdict] for v in outcome.verdicts()]
    return _markdown(rows)


def _claimed(v: Verdict) -> str:
    return "" if v.paper is None else f"{v.paper:+g}"


def _ours(v: Verdict) -> str:
    return f"{v.ours:.2f} ×" if "deadline" in v.claim else _plus_minus(v.ours, v.error, sign=True)


def _plus_minus(mean: float, error: float, *, sign: bool = False) -> str:
    head = f"{mean:+.1f}" if sign else f"{mean:.1f}"
    return head if math.isnan(error) else f"{head} ± {error:.1f}"


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    rule = ["---"] * len(head)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


def map_gains(outcome: Outcome) -> dict[str, dict[tuple[int, int, float], tuple[float, float]]]:
    """Points gained by adel over each baseline, by (devices, layers, depth)."""
    found: dict[str, dict[tuple[int, int, float], tuple[float, float]]] = {}
    for baseline in outcome.study.strategies[1:]:
        for cell in outcome.study.cells:
            U, L, depth = map(int, re.findall(r"\d+", cell.key))
            seen = outcome.difference(cell, "adel", baseline)
            error = 0.0 if np.isnan(seen.error) else seen.error
            found.setdefault(baseline, {})[U, L, depth / 100] = (seen.mean, error)
    return found
