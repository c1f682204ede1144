"""Tables of the documents, made from the results' CSV files, between marks that name what they show.

<!-- results: mnist-mlp -->                                a study's final accuracies
<!-- claims: mnist-mlp -->                                 and its verdicts
<!-- headline: mnist-mlp/depth15-slow table-2/T1200 -->    a row per setting
...
<!-- end -->
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np

from adelfl.experiments.catalogue import find_study
from adelfl.experiments.outcome import Outcome, Verdict
from adelfl.report.comparison import standard_error

_MARKED = re.compile(r"(<!-- (results|claims|headline): ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_page(text: str, results: Path) -> str:
    """Write the tables that a page asks for from the files in a folder; one that has no files stays as it is."""

    def table(found: re.Match[str]) -> str:
        begin, what, names, end = found.groups()
        studies = {word.partition("/")[0] for word in names.split()}
        if not all((results / f"{name}.csv").is_file() for name in studies):
            return found[0]
        outcomes = {name: Outcome.read(find_study(name), results / name) for name in studies}
        if what == "headline":
            return f"{begin}{headline(names.split(), outcomes)}{end}"
        (outcome,) = outcomes.values()
        made = claims_table(outcome) if what == "claims" else results_table(outcome) + _cost(names, results)
        return f"{begin}{made}{end}"

    return _MARKED.sub(table, text)


def _cost(name: str, results: Path) -> str:
    about = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["about"]
    return f"`adelfl reproduce {name}`: {about['core_minutes']:.0f} core-minutes.\n"


def headline(places: list[str], outcomes: dict[str, Outcome]) -> str:
    """One row per setting, ``study/cell``; strategies in columns; the command at the end."""
    shown = ("adel", "salf", "heterofl", "drop", "wait", "oracle")
    rows = [["setting", *shown, "command"]]
    for place in places:
        name, _, key = place.partition("/")
        outcome = outcomes[name]
        cell = next(cell for cell in outcome.study.cells if cell.key == key)
        row = [f"{outcome.study.title}; {cell.title}"]
        for strategy in shown:
            accuracy = outcome.accuracy(cell, strategy)
            row.append(_plus_minus(float(accuracy.mean()), standard_error(accuracy)))
        rows.append([*row, f"`adelfl reproduce {name}`"])
    return _markdown(rows)


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
