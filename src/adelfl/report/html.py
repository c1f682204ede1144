"""A report as one self-contained HTML file, which can be printed; its text is in templates/report.html."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from adelfl.atomic import write_output
from adelfl.errors import ConfigError
from adelfl.records.summary import QUARTERS
from adelfl.report import rounds
from adelfl.report.comparison import Contender
from adelfl.report.groups import Gathered, Group, differing
from adelfl.report.style import save
from adelfl.report.time_series import draw_comparison, evaluated


def write_report(gathered: Gathered, path: Path, figures: Path | None = None) -> None:
    """Write the page, and every figure as PNG and PDF into the folder ``figures`` if it is given."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: the name of a report must end in .html")
    groups, infos = gathered.groups, [run.info for run in gathered.drawn]
    drawn = _draw(groups)
    counts = {g: sum((run.refused for run in g.records), Counter[str]()) for g in groups}
    refused = sum(counts.values(), Counter[str]())
    page = {
        "gathered": gathered,
        "infos": infos,
        "ranked": [g for g in groups if g is not gathered.oracle and g.seeds and not math.isnan(g.final.mean())],
        "figures": {name: _as_base64(picture) for name, picture in drawn.items()},
        "refused": {g: count for g, count in counts.items() if count},
        "reasons": sorted(refused, key=lambda reason: (-refused[reason], reason)),
        "seeds": _grouped((", ".join(map(str, sorted({r.info.seed for r in g.records}))), g.label) for g in groups),
        "versions": _grouped(pair for info in infos for pair in info.versions.items()),
        "notes": _grouped((note, g.label) for g in groups for run in g.records for note in run.info.notes),
        "corrupt": set(gathered.unused) - {run.folder for run in gathered.runs},
        "quarters": QUARTERS,
        "most_cells": rounds.MOST_CELLS,
        "most_devices": rounds.MOST_DEVICES,
    }
    write_output(path, _template().render(page | _configuration(groups)))
    if figures is not None:
        _save_figures(drawn, figures)


def _draw(groups: list[Group]) -> dict[str, Figure]:
    """Draw the figures of a report, by section; those without data are missing."""
    drawn = {
        what: draw_comparison(shown, what=what) for what in ("accuracy", "loss") if (shown := evaluated(groups, what))
    }
    if started := [g for g in groups if any(run.done for run in g.records)]:
        drawn |= {"deadlines": rounds.draw_deadlines(started), "coverage": rounds.draw_coverage(started)}
        drawn |= {"contributions": rounds.draw_contributions(started), "batches": rounds.draw_batches(started)}
    return drawn


@contextmanager
def _drawing(options: Any) -> Iterator[None]:  # noqa: ANN401 - rcParams
    """Suppress warnings about characters that the font does not have; they are drawn as boxes."""
    with warnings.catch_warnings(), matplotlib.rc_context(options):
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def _as_base64(picture: Figure) -> str:
    """Return the figure as encoded SVG: the same bytes for the same runs."""
    out = io.BytesIO()
    with _drawing({"svg.hashsalt": "adelfl"}):
        picture.savefig(out, format="svg", dpi=200, metadata={"Date": None})
    return base64.b64encode(out.getvalue()).decode()


def _save_figures(drawn: dict[str, Figure], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
    # Type 42, because conferences reject the fonts that matplotlib embeds by default.
    with _drawing({"pdf.fonttype": 42}):
        for name, picture in drawn.items():
            for suffix in ("png", "pdf"):
                save(picture, folder / f"{name}.{suffix}", dpi=200)


def _template() -> Any:  # noqa: ANN401 - a template of jinja2
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "finalize": _printable}
    environment = Environment(loader=PackageLoader("adelfl.report"), **options)
    environment.filters |= {"percent": _percent, "final": _final}
    return environment.get_template("report.html")


def _printable(value: object) -> object:
    """Replace control characters in a record's text, which could change the order of a line."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in value)


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _final(c: Contender) -> str:
    return "not evaluated" if math.isnan(c.final.mean()) else c.final_text


def _configuration(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the settings that all strategies share, by section, and the keys that differ."""
    settings = [g.records[0].settings for g in groups]
    differ = [key for key in differing(settings) if key not in ("strategy.name", "flower.method")]
    sections: dict[str, list[str]] = {}
    for key, value in settings[0].items():
        if key not in differ and (len(groups) == 1 or not key.startswith("strategy.")):
            section, _, name = key.rpartition(".")
            sections.setdefault(section or "run", []).append(f"{name} = {value}")
    return {"sections": sections, "differ": differ}


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Collect the second elements by the first ones, each once."""
    groups: dict[str, list[str]] = {}
    for key, value in dict.fromkeys(pairs):
        groups.setdefault(key, []).append(value)
    return groups
