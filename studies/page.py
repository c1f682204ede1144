"""Fill the tables of the documentation, between comments that name them, from the CSV files of results.

``python -m studies.page PAGE.md…`` fills the pages from docs/results, or from the folder of ``--results``.

<!-- results: mnist-mlp -->                                final accuracies of a study: a row per cell
<!-- claims: mnist-mlp -->                                 verdicts on the claims of a study
<!-- verdicts: mnist-mlp table-2 -->                      claims of several studies: a row per claim
<!-- seeds: table-2/T1200 mnist-mlp -->                  settings or studies with other seeds, beside ours
<!-- gains: map -->                                        points gained, by how often the first layer stays empty
<!-- headline: mnist-mlp/depth15-slow table-2/T1200 -->    a row per setting
<!-- goals: beyond-digits beyond-mnist -->                 in how many cells our goals are met
<!-- regime: table-2 -->                                   depth inferred from the paper's baselines
<!-- winners: leaderboard-digits -->                       the best method of each cell, and adel
<!-- board: leaderboard-digits -->                         every method in each cell
...
<!-- end -->
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adelfl.atomic import write_output
from adelfl.experiments.results import Final, StudyResults, Verdict
from adelfl.experiments.study import Cell
from adelfl.report.comparison import plus_minus
from adelfl.theory.participation import deadline_for_depth, survival
from studies import find_study
from studies.cifar import REPORTED, STATED
from studies.leaderboard import LEVEL, METHODS, SELF_PACED, finished
from studies.paper import map_gains
from studies.regime import CEILINGS, depth_by_seed, fit_regime

_MARKED = re.compile(
    r"(<!-- (results|claims|verdicts|seeds|gains|headline|goals|regime|winners|board): ([^>]+) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)


_FOLDED = {
    "results": "Table of results",
    "claims": "Verdict on each claim of the paper",
    "board": "Table of all methods",
    "seeds": "Accuracies with both sets of seeds",
}
"""Tables that are folded on a page, with the summary that is shown instead."""


PARTIAL = "partial"
"""Folder of the results of studies that are not finished, in the folder of results."""


OTHER_SEEDS = "first-seed-1000"
"""Folder of results with the seeds from 1000 on, in the folder of results."""


def fill_page(text: str, results: Path) -> str:
    """Fill in the tables of a page from the files in a folder; a table without files stays as it is."""

    def table(match: re.Match[str]) -> str:
        begin, what, names, end = match.groups()
        studies = {word.partition("/")[0] for word in names.split()}
        homes = {name: home for name in studies if (home := _home(name, results)) is not None}
        if len(homes) < len(studies):
            return match[0]
        outcomes = {name: StudyResults.read(find_study(name), home / name) for name, home in homes.items()}
        if what == "seeds":
            content = seeds_table(names.split(), outcomes, results / OTHER_SEEDS)
            return f"{begin}{_folded(what, content)}{end}" if content else match[0]
        if what == "verdicts":
            return f"{begin}{verdicts_table(names.split(), outcomes, homes)}{end}"
        if what in ("headline", "goals"):
            several = {"headline": headline, "goals": goals_table}[what]
            return f"{begin}{several(names.split(), outcomes)}{end}"
        ((outcome, home),) = zip(outcomes.values(), homes.values(), strict=True)
        pictures = results.name if home == results else f"{results.name}/{PARTIAL}"
        tables = {"claims": claims_table, "gains": gains_table, "results": results_table}
        tables |= {"regime": regime_table, "winners": winners_table, "board": board_table}
        content = tables[what](outcome)
        if what not in ("claims", "regime", "winners"):
            content += _cost(names, home)
        if what in _FOLDED:
            content = _folded(what, content)
        if what == "results":
            note = "" if home == results else "*This study is not finished; these are the runs so far.*\n\n"
            content = f"{note}![{outcome.study.title}]({pictures}/{names}.png)\n\n{content}"
        if what == "regime":
            content = f"![Baselines against depth]({pictures}/{names}-regime.png)\n\n{content}"
        return f"{begin}{content}{end}"

    return _MARKED.sub(table, text)


def _folded(what: str, content: str) -> str:
    return f'<details markdown="1">\n<summary>{_FOLDED[what]}</summary>\n\n{content}\n</details>\n'


def _home(name: str, results: Path) -> Path | None:
    """Return the folder with the results of a study, finished or not; None if there are none."""
    return next((f for f in (results, results / PARTIAL) if (f / f"{name}.csv").is_file()), None)


def _cost(name: str, results: Path) -> str:
    about = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["about"]
    minutes = max(1, round(about["core_minutes"]))
    return f"`adelfl reproduce {name}`: {minutes} core-minute{'s' * (minutes > 1)}.\n"


def headline(places: list[str], outcomes: dict[str, StudyResults]) -> str:
    """Return a row per setting, ``study/cell``, with a column per strategy, and the command in the last column."""
    shown = ("adel", "adel-paper", "salf", "drop", "oracle")
    rows = [["setting", *shown, "command"]]
    for place in places:
        name, _, key = place.partition("/")
        outcome = outcomes[name]
        cell = next(cell for cell in outcome.study.cells if cell.key == key)
        row = [f"{outcome.study.title.partition(':')[0]}; {cell.title}"]
        for strategy in shown:
            known = outcome.summary(cell, strategy) if strategy in outcome.study.strategies else None
            row.append("" if known is None else plus_minus(known.mean, known.error))
        rows.append([*row, f"`adelfl reproduce {name}`"])
    return _markdown(rows)


def results_table(outcome: StudyResults) -> str:
    """Return a row per cell: mean ± standard error in percent, the chosen η_0, and the share of the gap closed."""
    study, tables = outcome.study, outcome.tables()
    labels = [summary.label for summary in tables[0][1]]
    planned = [word for word in study.strategies if word.startswith("adel")] if study.gap else []
    # Results of earlier versions lack the accuracy on the classes of the slowest devices.
    slowest = not any(math.isnan(s.slowest) for _, summaries in tables for s in summaries if not math.isnan(s.mean))
    rows = [["setting", *labels, *(f"closed by {outcome.summary(outcome.cells[0], word).label}" for word in planned)]]
    for cell, (title, summaries) in zip(outcome.cells, tables, strict=True):
        row = [title, *(_with_notes(s, slowest=slowest) for s in summaries)]
        for word in planned:
            share = closed(outcome, cell, word)
            row.append("–" if share is None else f"{share[0]:.0%} ± {100 * share[1]:.0f}")
        rows.append(row)
    counts = {len(outcome.of(cell, word)) for cell in outcome.cells for word in study.strategies_of(cell)} - {0}
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    note = f"\nFinal test accuracy, %, mean ± standard error of {seeds} seeds (in brackets: the η₀ that was chosen)"
    if slowest:
        note += "; after the semicolon: accuracy on the classes of the slowest tenth of the devices"
    if planned:
        lower, upper = study.gap
        note += f"; closed: of the gap between {lower} and {upper}, where it is {LEAST_GAP:g} points or more"
    return _markdown(rows) + note + ".\n"


def _with_notes(s: Final, *, slowest: bool) -> str:
    """Return mean ± standard error, a differing median, the chosen rate, broken runs, and the slowest tenth."""
    if math.isnan(s.mean):
        return ""
    broke = f", {s.broke} broke down" if s.broke else ""
    more = f"; {s.slowest:.1f}" if slowest else ""
    return f"{plus_minus(s.mean, s.error)}{_skewed(s.mean, s.median)} ({s.rate:g}{broke}){more}"


def claims_table(outcome: StudyResults) -> str:
    """Return the claims of the paper and our results in each cell: a row per claim."""
    cells = {cell.key: f"{cell.title} ({cell.regime})" if cell.regime else cell.title for cell in outcome.cells}
    by_claim: dict[tuple[str, str], dict[str, str]] = {}
    for v in outcome.verdicts():
        by_claim.setdefault((v.claim, _claimed(v)), {})[v.cell] = f"{_ours(v)}: {v.verdict}"
    rows = [["the paper", "paper", *cells.values()]]
    rows += [[*claim, *(cell.get(key, "") for key in cells)] for claim, cell in by_claim.items()]
    return _markdown(rows)


def verdicts_table(names: list[str], outcomes: dict[str, StudyResults], homes: dict[str, Path]) -> str:
    """Return a row per claim of several studies: the paper's number, ours in both regimes with verdicts, the cost."""
    rows = [["figure", "claim", "the paper", "stated regime", "inferred regime", "command and core-minutes"]]
    for name in names:
        outcome = outcomes[name]
        regimes = {cell.key: cell.regime for cell in outcome.study.cells}
        by_claim: dict[tuple[str, str], dict[str, str]] = {}
        for v in outcome.verdicts():
            by_claim.setdefault((v.claim, _claimed(v)), {})[regimes[v.cell]] = f"{_ours(v)}: {v.verdict}"
        first = [outcome.study.source, _cost(name, homes[name]).strip().rstrip(".")]
        for claim, found in by_claim.items():
            if found.keys() & {"stated", "inferred"}:
                rows.append([first[0], *claim, found.get("stated", ""), found.get("inferred", ""), first[1]])
                first = ["", ""]
    return _markdown(rows)


def seeds_table(places: list[str], outcomes: dict[str, StudyResults], others: Path) -> str:
    """Return a row per strategy and setting: its accuracy with our seeds, with other seeds, and their difference."""
    rows = [["study", "setting", "strategy", "our seeds", "other seeds", "difference ÷ its standard error"]]
    ratios = []
    for place in places:
        name, _, key = place.partition("/")
        ours, stem = outcomes[name], others / name
        if not stem.with_name(f"{name}.csv").is_file():
            continue
        again = StudyResults.read(ours.study, stem)
        for cell, word in itertools.product(ours.study.cells, ours.study.strategies):
            if (key and cell.key != key) or min(len(r.of(cell, word)) for r in (ours, again)) < 2:
                continue
            a, b = ours.summary(cell, word), again.summary(cell, word)
            ratios.append((b.mean - a.mean) / math.hypot(a.error, b.error))
            counts = (f"{plus_minus(s.mean, s.error)} ({len(r.of(cell, word))})" for s, r in ((a, ours), (b, again)))
            rows.append([name, cell.title, a.label, *counts, f"{ratios[-1]:+.1f}"])
    if not ratios:
        return ""
    near = sum(abs(ratio) <= 2 for ratio in ratios)
    note = (
        f"\nFinal test accuracy, %, mean ± standard error (number of seeds). {near} of {len(ratios)} differ by at most "
    )
    return f"{_markdown(rows)}{note}two standard errors.\n"


def _claimed(v: Verdict) -> str:
    return "" if v.paper is None else f"{v.paper:+g}"


def _ours(v: Verdict) -> str:
    if "deadline" in v.claim:
        return f"{v.ours:.2f} ×"
    return plus_minus(v.ours, v.error, sign=True) + _skewed(v.ours, v.median, sign=True)


def regime_table(outcome: StudyResults) -> str:
    """Return the inferred depth, the misfits and ADEL-FL's accuracy, for possible accuracies of the paper's oracle."""
    paper, highest = REPORTED[outcome.study.name]
    ours, theirs = "ADEL-FL, share of the oracle's accuracy: ours", "the paper's"
    rows = [["the paper's oracle, %", "best depth", "misfit there", f"misfit at {STATED:.0%}", ours, theirs]]
    for ceiling in (highest, *(c for c in CEILINGS if c > highest)):
        regime = fit_regime(outcome, paper, ceiling)
        misfits = f"{regime.misfit.min():.2f}", f"{regime.at(STATED):.2f}"
        rows.append([f"{ceiling:g}", f"{regime.best:.0%}", *misfits, *map(_shares, regime.compared["adel-paper"])])
    each = depth_by_seed(outcome, paper, highest)
    budgets = f" ADEL-FL at T_max = {', '.join(map(str, sorted(paper)))}." if len(paper) > 1 else ""
    seeds = ", ".join(f"{depth:.0%}" for depth in each)
    return _markdown(rows) + f"\nBest depth for one seed at a time: {seeds} (oracle {highest:g}).{budgets}\n"


def _shares(values: NDArray[np.float64]) -> str:
    return ", ".join("–" if math.isnan(value) else f"{value:.0%}" for value in values)


LEAST_GAP = 5.0
"""Smallest gap, in points, for which a closed share is stated; the share of a smaller gap would be noise."""


def closed(outcome: StudyResults, cell: Cell, word: str) -> tuple[float, float] | None:
    """Return the share of the gap that a strategy closes, with its jackknife error; None if the gap is small."""
    low, high, here = (outcome.accuracy(cell, w) for w in (*outcome.study.gap, word))
    if high.mean() - low.mean() < LEAST_GAP:
        return None

    def share(kept: NDArray[np.bool_]) -> float:
        return float((here[kept] - low[kept]).mean() / (high[kept] - low[kept]).mean())

    n = here.size
    left_out = np.array([share(np.arange(n) != i) for i in range(n)]) if n > 1 else np.zeros(1)
    return share(np.ones(n, dtype=bool)), float(np.sqrt((n - 1) / n * np.sum((left_out - left_out.mean()) ** 2)))


def goals_table(names: list[str], outcomes: dict[str, StudyResults]) -> str:
    """Return for each study where at least 90 % of the gap is closed, and where the paper's plan is better."""
    rows = [["study", "gaps of 5 points", "90 % of it closed", "least closed", "worse than adel-paper by > 1 s.e."]]
    for name in names:
        outcome = outcomes[name]
        shares = [(closed(outcome, cell, "adel"), cell.title) for cell in outcome.study.cells]
        gaps = [(share[0], title) for share, title in shares if share is not None]
        worse = []
        for cell in outcome.study.cells:
            gain = outcome.difference(cell, "adel", "adel-paper")
            if gain.mean < -gain.error:
                worse.append(f"{cell.title} ({plus_minus(gain.mean, gain.error, sign=True)})")
        least = "–" if not gaps else "{:.0%} ({})".format(*min(gaps))
        met = sum(share >= 0.9 for share, _ in gaps)
        rows.append([name, f"{len(gaps)} of {len(outcome.study.cells)}", f"{met}", least, "; ".join(worse) or "none"])
    return _markdown(rows)


def best_method(outcome: StudyResults, cell: Cell, *without: str) -> str:
    """Return the method with the highest mean accuracy in a cell of the leaderboard."""
    methods = [word for word in METHODS if word not in without and outcome.of(cell, word)]
    return max(methods, key=lambda word: float(outcome.accuracy(cell, word).mean()))


def winners_table(outcome: StudyResults) -> str:
    """Return the best method of each cell, the gain of adel over the best other method, and the clairvoyant."""
    rows = [["setting", "best", "accuracy", "adel", "adel − best other", "clairvoyant", "best chose", "adel chose"]]
    for cell in finished(outcome):
        best, other = best_method(outcome, cell), best_method(outcome, cell, "adel")
        shown = {word: outcome.summary(cell, word) for word in (best, "adel", "clairvoyant")}
        accuracy = {word: plus_minus(s.mean, s.error) for word, s in shown.items()}
        gain = outcome.difference(cell, "adel", other)
        chose = [_chosen(outcome, cell, word) for word in (best, "adel")]
        behind = f"{plus_minus(gain.mean, gain.error, sign=True)} ({other})"
        row = [cell.title, best, accuracy[best], accuracy["adel"], behind, accuracy["clairvoyant"], *chose]
        rows.append([f"**{text}**" if text == best == "adel" else text for text in row])
    return _markdown(rows) + "\n"


def board_table(outcome: StudyResults) -> str:
    """Return a row per method: accuracy, time to the level, and share of device time that counted, in each cell."""
    cells = finished(outcome)
    rows = [["", *(cell.title for cell in cells)]]
    for word in outcome.study.strategies:
        row = [word]
        for cell in cells:
            s, level = outcome.summary(cell, word), LEVEL * float(outcome.accuracy(cell, "clairvoyant").mean())
            reached = outcome.reached(cell, word, level)
            time = "–" if np.isnan(reached).any() else f"{reached.mean():.0%}"
            counted = "" if word == "oracle" else f"; {np.mean([run.counted for run in outcome.of(cell, word)]):.0%}"
            row.append(f"{plus_minus(s.mean, s.error)}; {time}{counted}")
        rows.append(row)
    seeds = {len(outcome.of(cell, word)) for cell in cells for word in outcome.study.strategies}
    note = (
        f"\nFinal test accuracy, %, mean ± standard error of {min(seeds)} seeds; share of the budget until {LEVEL:.0%} "
        "of the clairvoyant's accuracy (–: not in every run); share of the devices' time that was spent on computing "
        "what was merged.\n"
    )
    return _markdown(rows) + note


def _chosen(outcome: StudyResults, cell: Cell, word: str) -> str:
    """Return the chosen rate, local steps, rounds and options as a short text."""
    run = outcome.of(cell, word)[0]
    names = {"training.local_iterations": "E", "training.rounds": "R", "training.batch": "S"}
    pairs = dict(pair.split("=", 1) for pair in run.choice.split())
    if word in SELF_PACED:
        del pairs["training.rounds"]
    short = [f"{names.get(key, key.rpartition('.')[2])} {value}" for key, value in pairs.items()]
    return ", ".join([f"η {run.rate:g}", *short])


_FAR = 5.0
"""Difference between mean and median, in points, above which the median is stated."""


def _skewed(mean: float, median: float, *, sign: bool = False) -> str:
    return f", median {plus_minus(median, math.nan, sign=sign)}" if abs(mean - median) > _FAR else ""


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    rule = ["---"] * len(head)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *body))


_BANDS = (0.0, 0.02, 0.2, 0.5, 0.8, 1.0)


def gains_table(outcome: StudyResults) -> str:
    """Return the map in five rows: settings grouped by how often the first layer stays empty without a plan."""
    gains = map_gains(outcome)
    empty = {place: _first_layer_empty(*place) for place in next(iter(gains.values()))}
    rows = [["first layer empty in", "settings", *(f"points over {b}: mean (lowest to highest)" for b in gains)]]
    for low, high in itertools.pairwise(_BANDS):
        here = [place for place, p in empty.items() if low <= p < high or p == high == 1.0]
        row = [f"{low:.0%} to {high:.0%} of rounds", f"{len(here)}"]
        for points in gains.values():
            values = [points[place][0] for place in here]
            row.append(f"{np.mean(values):+.1f} ({min(values):+.0f} to {max(values):+.0f})")
        rows.append(row)
    return _markdown(rows) + "\n"


def _first_layer_empty(U: int, L: int, depth: float) -> float:
    """Return Q(L, λ)^U at the rate λ of a mean depth, for devices of one speed."""
    rate = deadline_for_depth(depth, L, 1.0, 0.0, 1)
    return float(np.exp(U * survival(L, rate)[0][L - 1]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fill the tables of pages from a folder of results.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    for path in arguments.pages:
        write_output(path, fill_page(path.read_text(encoding="utf-8"), arguments.results))
