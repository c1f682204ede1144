"""A report as one HTML file: opens anywhere, loads nothing, prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from adelfl.atomic import write_output
from adelfl.errors import ConfigError
from adelfl.records.summary import QUARTERS
from adelfl.report.comparison import Contender, standard_error
from adelfl.report.groups import Gathered, Group, differing
from adelfl.report.markup import Html, joined, page, picture, table, tag
from adelfl.report.pictures import pictures
from adelfl.report.traces import Trace


def write_report(gathered: Gathered, path: Path, figures: Path | None = None) -> None:
    """Write the page, and every figure as PNG and PDF if a folder for them is named."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: a report's name must end in .html")
    drawn = list(pictures(gathered))
    sections = [("result", "Result", _result(gathered))]
    for p in drawn:
        body = tag("p", p.words) if p.figure is None else picture(p.svg(), p.title, p.words)
        sections.append((p.name, p.title, body))
    if refused := _refused(gathered):
        sections.append(("refused", "Refused updates", refused))
    sections.append(("configuration", "Configuration", _configuration(gathered)))
    sections.append(("runs", "Runs and notes", joined([_notes(gathered), _runs(gathered)])))
    title = _title(gathered)
    links = (tag("a", name, href=f"#{anchor}") for anchor, name, _ in sections)
    text = page(
        f"{title} · adelfl report",
        tag("h1", title),
        tag("p", _lede(gathered), kind="lede"),
        tag("nav", *links),
        *(joined([tag("h2", name, id=anchor), body]) for anchor, name, body in sections),
        tag("footer", "Made by adelfl report. All of it is in this file, which loads nothing.", kind="soft"),
    )
    write_output(path, text)
    if figures is not None:
        for p in drawn:
            p.save(figures)


def _title(gathered: Gathered) -> str:
    groups, info = gathered.groups, gathered.drawn[0].info
    who = groups[0].label if len(groups) == 1 else f"{len(groups)} strategies"
    real = any(trace.clock == "real" for trace in gathered.drawn)
    data = {trace.info.data or "unknown data" for trace in gathered.drawn}
    where = "Flower" if real else data.pop() if len(data) == 1 else f"{len(data)} data sets"
    return f"{who} on {where}, {info.devices} devices"


def _lede(gathered: Gathered) -> str:
    groups, traces = gathered.groups, gathered.drawn
    budgets = sorted(trace.budget for trace in traces)
    clock = f"{traces[0].clock} seconds" if len({trace.clock for trace in traces}) == 1 else "seconds"
    low, high = f"{budgets[0]:.4g}", f"{budgets[-1]:.4g}"
    time = f"{low} {clock}" if low == high else f"{low} to {high} {clock}, depending on the seed's fleet"
    rounds = max(int(trace.info.rounds) for trace in traces)
    said = [f"{_count(len(traces), 'run')} of up to {_count(rounds, 'round')} within a time budget of {time}."]
    ranked = [g for g in groups if g is not gathered.oracle and g.finished and not math.isnan(g.contender.final.mean())]
    if ranked and len(groups) > 1:
        best = ranked[0].contender
        share = f", {_of_oracle(best, gathered.oracle)} of the oracle's" if gathered.oracle is not None else ""
        said.append(f"Best at the end: {best.label}, with a final accuracy of {_final(best)}{share}.")
    elif ranked:
        said.append(f"Final accuracy: {_final(ranked[0].contender)}.")
    bad = [trace for trace in gathered.traces if trace.state != "finished"]
    if bad or gathered.troubles:
        said.append(f"{_count(len(bad) + len(gathered.troubles), 'run')} did not finish or cannot be used: see Runs.")
    return " ".join(said)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _result(gathered: Gathered) -> Html:
    oracle = gathered.oracle
    head = ["strategy", "runs", "final accuracy", *(f"at {q}" for q in QUARTERS), "depth", "rounds"]
    if oracle is not None:
        head.insert(-2, "of oracle")
    rows = []
    for g in gathered.groups:
        c = g.contender
        runs = f"{g.finished}" if g.finished == g.runs else f"{g.finished} of {g.runs}"
        cells: list[str] = [_named(g), runs]
        if g.finished:
            share = [] if oracle is None else [_of_oracle(c, oracle)]
            cells += [_final(c), *(_percent(c.at(q)) for q in QUARTERS), *share, _percent(c.depth), f"{c.rounds:.0f}"]
        else:
            cells += [tag("span", "not finished", kind="warn"), *["–"] * (len(head) - 3)]
        rows.append(cells)
    return table(head, rows, numbers=range(1, len(head)), caption=_about_result(gathered))


def _about_result(gathered: Gathered) -> str:
    several = any(g.finished > 1 for g in gathered.groups)
    error = ", ± standard error over the runs" if several else ""
    said = [
        f"Final accuracy: mean over the last tenth of the time budget{error}.",
        "At 25% …: accuracy when that share of the budget was used.",
        "Depth: mean share of the layers that devices finished in time.",
        "Rounds: how many fitted into the budget.",
    ]
    if gathered.oracle is not None:
        said.insert(2, "Of oracle: final accuracy as a share of that without any stragglers.")
    if any(g.finished < g.runs for g in gathered.groups):
        said.append("Only finished runs count.")
    return " ".join(said)


def _named(g: Group) -> Html:
    line = {"-": "solid", ":": "dotted"}.get(g.line, "dashed")
    swatch = tag("span", kind="swatch", style=f"border-top: 3px {line} {g.colour}")
    return tag("div", swatch, tag("span", g.label, kind="name"), kind="strategy")


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


def _refused(gathered: Gathered) -> Html | None:
    groups = [g for g in gathered.groups if any(trace.refused for trace in g.traces)]
    if not groups:
        return None
    counts = [sum((trace.refused for trace in g.traces), Counter[str]()) for g in groups]
    reasons = sorted({reason for count in counts for reason in count}, key=lambda r: -sum(c[r] for c in counts))
    caption = (
        "Updates that arrived but were not merged, by reason, summed over the rounds of all runs. A few late ones are "
        "what deadlines are for; other reasons point to a node that is broken or hostile."
    )
    rows = [
        [_named(g), *(f"{count[reason]}" if count[reason] else "–" for reason in reasons)]
        for g, count in zip(groups, counts, strict=True)
    ]
    return table(["strategy", *reasons], rows, numbers=range(1, len(reasons) + 1), caption=caption)


def _configuration(gathered: Gathered) -> Html:
    groups = gathered.groups
    settings = [g.traces[0].settings for g in groups]
    differ = [key for key in differing(settings) if key not in ("strategy.name", "flower.method")]
    sections: dict[str, list[str]] = {}
    for key, value in settings[0].items():
        if key not in differ and (len(groups) == 1 or not key.startswith("strategy.")):
            section, _, name = key.rpartition(".")
            sections.setdefault(section or "run", []).append(f"{name} = {value}")
    blocks = (
        tag("div", tag("b", section), *(tag("code", line) for line in lines)) for section, lines in sections.items()
    )
    parts = [tag("p", _seeds(gathered)), tag("p", _versions(gathered.drawn)), tag("div", *blocks, kind="settings")]
    if differ:
        rows = [[_named(g), *(s.get(key, "–") for key in differ)] for g, s in zip(groups, settings, strict=True)]
        parts += [tag("h3", "What differs between them"), table(["strategy", *differ], rows)]
    return joined(parts)


def _seeds(gathered: Gathered) -> str:
    by_seeds: dict[str, list[str]] = {}
    for g in gathered.groups:
        seeds = ", ".join(str(seed) for seed in sorted({trace.info.seed for trace in g.traces}))
        by_seeds.setdefault(seeds, []).append(g.label)
    if len(by_seeds) == 1:
        return f"Seeds: {next(iter(by_seeds))}{' for every strategy' if len(gathered.groups) > 1 else ''}."
    return "Seeds: " + "; ".join(f"{seeds} for {', '.join(labels)}" for seeds, labels in by_seeds.items()) + "."


def _versions(traces: Sequence[Trace]) -> str:
    found: dict[str, dict[str, None]] = {}
    for trace in traces:
        for name, version in trace.info.versions.items():
            found.setdefault(str(name), {})[str(version)] = None
    return "Versions: " + (", ".join(f"{name} {' and '.join(v)}" for name, v in found.items()) or "unknown") + "."


def _notes(gathered: Gathered) -> Html:
    said: dict[str, dict[str, None]] = {}
    for g in gathered.groups:
        for trace in g.traces:
            for note in trace.info.notes:
                said.setdefault(str(note), {})[g.label] = None
    return joined(tag("p", tag("b", f"{', '.join(labels)}: "), note, kind="note") for note, labels in said.items())


def _runs(gathered: Gathered) -> Html:
    rows: list[list[str]] = []
    for trace in gathered.traces:
        folder, info, result = trace.record.folder, trace.info, trace.record.result
        final = None if result is None else result.final_accuracy
        state: str = trace.state
        if folder in gathered.troubles:
            state = tag("span", gathered.troubles[folder], kind="warn")
        elif trace.state == "failed":
            state = tag("span", f"failed: {trace.record.failure}", kind="bad")
        elif trace.state == "unfinished":
            state = tag("span", "unfinished: interrupted, or still running", kind="warn")
        accuracy = "–" if final is None else f"{final:.1%}"
        done = f"{trace.lengths.size} of {info.rounds}"
        rows.append([tag("span", str(folder), kind="path"), trace.label, str(info.seed), done, accuracy, state])
    read = {trace.record.folder for trace in gathered.traces}
    for folder, why in gathered.troubles.items():
        if folder not in read:
            state = tag("span", f"corrupt: {why}", kind="bad")
            rows.append([tag("span", str(folder), kind="path"), "", "", "", "", state])
    return table(["run", "strategy", "seed", "rounds", "final accuracy", "state"], rows, numbers=(2, 3, 4))
