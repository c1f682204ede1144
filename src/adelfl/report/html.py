"""A report as one HTML file, which loads nothing and can be printed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from adelfl.atomic import write_output
from adelfl.errors import ConfigError
from adelfl.records.summary import QUARTERS
from adelfl.report.comparison import Contender, standard_error
from adelfl.report.groups import Gathered, Group, differing
from adelfl.report.pictures import pictures

Cell = str | Group | tuple[str, str]
"""Text, a strategy with its line style, or a CSS class and text."""


@dataclass(frozen=True)
class Table:
    """A table; the columns in ``numbers`` are aligned to the right."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Sequence[int] = ()
    caption: str = ""


def write_report(gathered: Gathered, path: Path, figures: Path | None = None) -> None:
    """Write the page, and every figure as PNG and PDF into the folder ``figures`` if it is given."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: a report's name must end in .html")
    drawn = list(pictures(gathered))
    refused = _refused(gathered)
    titles = {"result": "Result"} | {p.name: p.title for p in drawn}
    titles |= {"refused": "Refused updates"} if refused else {}
    titles |= {"configuration": "Configuration", "runs": "Runs and notes"}
    page = {
        "title": _title(gathered),
        "lede": _lede(gathered),
        "titles": titles,
        "result": _result(gathered),
        "pictures": drawn,
        "refused": refused,
        "seeds": _seeds(gathered.groups),
        "versions": _versions(gathered),
        "notes": _grouped((note, g.label) for g in gathered.groups for run in g.runs for note in run.info.notes),
        "runs": _runs(gathered),
    }
    write_output(path, _template().render(page | _configuration(gathered)))
    if figures is not None:
        for picture in drawn:
            picture.save(figures)


def _template() -> Any:  # noqa: ANN401 - a template of jinja2
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "finalize": _printable}
    return Environment(loader=PackageLoader("adelfl.report"), **options).get_template("report.html")


def _printable(value: object) -> object:
    """Replace control characters in a record's text; they could change the direction or the order of a line."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in value)


def _title(gathered: Gathered) -> str:
    groups, infos = gathered.groups, [run.info for run in gathered.drawn]
    strategies = groups[0].label if len(groups) == 1 else f"{len(groups)} strategies"
    data = {info.data or "unknown data" for info in infos}
    where = data.pop() if len(data) == 1 else f"{len(data)} data sets"
    if any(info.clock == "real" for info in infos):
        where = "Flower"
    return f"{strategies} on {where}, {infos[0].devices} devices"


def _lede(gathered: Gathered) -> str:
    groups, infos = gathered.groups, [run.info for run in gathered.drawn]
    clock = f"{infos[0].clock} seconds" if len({info.clock for info in infos}) == 1 else "seconds"
    low, high = (f"{budget:.4g}" for budget in (min(i.budget for i in infos), max(i.budget for i in infos)))
    time = f"{low} {clock}" if low == high else f"{low} to {high} {clock}, depending on the seed's fleet"
    rounds = max(info.rounds for info in infos)
    sentences = [f"{_count(len(infos), 'run')} of up to {_count(rounds, 'round')} within a time budget of {time}."]
    ranked = [g for g in groups if g is not gathered.oracle and g.finished and not math.isnan(g.contender.final.mean())]
    if ranked and len(groups) > 1:
        best = ranked[0].contender
        share = f", {_of_oracle(best, gathered.oracle)} of the oracle's" if gathered.oracle is not None else ""
        sentences.append(f"Best at the end: {best.label}, with a final accuracy of {_final(best)}{share}.")
    elif ranked:
        sentences.append(f"Final accuracy: {_final(ranked[0].contender)}.")
    if bad := len(gathered.unused) + sum(run.state != "finished" for run in gathered.runs):
        sentences.append(f"{_count(bad, 'run')} did not finish or cannot be used: see Runs.")
    return " ".join(sentences)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _result(gathered: Gathered) -> Table:
    oracle = gathered.oracle
    head = ["strategy", "runs", "final accuracy", *(f"at {q}" for q in QUARTERS), "depth", "rounds"]
    if oracle is not None:
        head.insert(-2, "of oracle")
    rows: list[list[Cell]] = []
    for g in gathered.groups:
        c = g.contender
        row: list[Cell] = [g, f"{g.finished}" if g.finished == g.total else f"{g.finished} of {g.total}"]
        if g.finished:
            share = [] if oracle is None else [_of_oracle(c, oracle)]
            row += [_final(c), *(_percent(c.at(q)) for q in QUARTERS), *share, _percent(c.depth), f"{c.rounds:.0f}"]
        else:
            row += [("warn", "not finished"), *["–"] * (len(head) - 3)]
        rows.append(row)
    error = ", ± standard error over the runs" if any(g.finished > 1 for g in gathered.groups) else ""
    caption = [
        f"Final accuracy: mean over the last tenth of the time budget{error}.",
        "At 25% …: accuracy when that share of the budget was used.",
        "Of oracle: final accuracy as a share of that without any stragglers." if oracle is not None else "",
        "Depth: mean share of the layers that devices finished in time.",
        "Rounds: how many fitted into the budget.",
        "Only finished runs count." if any(g.finished < g.total for g in gathered.groups) else "",
    ]
    return Table(head, rows, range(1, len(head)), " ".join(filter(None, caption)))


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _final(c: Contender) -> str:
    mean = float(c.final.mean())
    if math.isnan(mean):
        return "not evaluated"
    return f"{mean:.1%} ± {100 * standard_error(c.final):.1f}" if c.final.size > 1 else f"{mean:.1%}"


def _of_oracle(c: Contender, oracle: Group | None) -> str:
    ceiling = math.nan if oracle is None else float(oracle.contender.final.mean())
    return _percent(float(c.final.mean()) / ceiling) if ceiling else "–"


def _refused(gathered: Gathered) -> Table | None:
    counts = {g: sum((run.refused for run in g.runs), Counter[str]()) for g in gathered.groups}
    total = sum(counts.values(), Counter[str]())
    if not total:
        return None
    reasons = [reason for reason, _ in sorted(total.items(), key=lambda item: (-item[1], item[0]))]
    rows: list[list[Cell]] = [
        [g, *(f"{count[reason] or '–'}" for reason in reasons)] for g, count in counts.items() if count
    ]
    caption = (
        "Updates that arrived but were not merged, by reason, summed over the rounds of all runs. A few late ones are "
        "what deadlines are for; other reasons point to a node that is broken or hostile."
    )
    return Table(["strategy", *reasons], rows, range(1, len(reasons) + 1), caption)


def _configuration(gathered: Gathered) -> dict[str, Any]:
    """Return the settings that all strategies share, by section, and a table of the others."""
    groups = gathered.groups
    settings = [g.runs[0].settings for g in groups]
    differ = [key for key in differing(settings) if key not in ("strategy.name", "flower.method")]
    sections: dict[str, list[str]] = {}
    for key, value in settings[0].items():
        if key not in differ and (len(groups) == 1 or not key.startswith("strategy.")):
            section, _, name = key.rpartition(".")
            sections.setdefault(section or "run", []).append(f"{name} = {value}")
    rows: list[list[Cell]] = [[g, *(s.get(key, "–") for key in differ)] for g, s in zip(groups, settings, strict=True)]
    return {"sections": sections, "differences": Table(["strategy", *differ], rows) if differ else None}


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Collect the second elements by the first ones, each once."""
    groups: dict[str, list[str]] = {}
    for key, value in dict.fromkeys(pairs):
        groups.setdefault(key, []).append(value)
    return groups


def _seeds(groups: Sequence[Group]) -> str:
    by_seeds = _grouped((", ".join(map(str, sorted({r.info.seed for r in g.runs}))), g.label) for g in groups)
    if len(by_seeds) == 1:
        return f"Seeds: {next(iter(by_seeds))}{' for every strategy' if len(groups) > 1 else ''}."
    return "Seeds: " + "; ".join(f"{seeds} for {', '.join(labels)}" for seeds, labels in by_seeds.items()) + "."


def _versions(gathered: Gathered) -> str:
    versions = _grouped(pair for run in gathered.drawn for pair in run.info.versions.items())
    return "Versions: " + (", ".join(f"{name} {' and '.join(v)}" for name, v in versions.items()) or "unknown") + "."


def _runs(gathered: Gathered) -> Table:
    rows: list[list[Cell]] = []
    for run in gathered.runs:
        folder, info, result = run.record.folder, run.info, run.record.result
        final = None if result is None else result.final_accuracy
        state: Cell = run.state
        if folder in gathered.unused:
            state = ("warn", gathered.unused[folder])
        elif run.state == "failed":
            state = ("bad", f"failed: {run.record.failure}")
        elif run.state == "unfinished":
            state = ("warn", "unfinished: interrupted, or still running")
        done = f"{run.lengths.size} of {info.rounds}"
        accuracy = "–" if final is None else f"{final:.1%}"
        rows.append([("path", str(folder)), info.label, str(info.seed), done, accuracy, state])
    read = {run.record.folder for run in gathered.runs}
    corrupt = [(folder, reason) for folder, reason in gathered.unused.items() if folder not in read]
    rows += [[("path", str(f)), "", "", "", "", ("bad", f"corrupt: {reason}")] for f, reason in corrupt]
    return Table(["run", "strategy", "seed", "rounds", "final accuracy", "state"], rows, numbers=(2, 3, 4))
