"""``adelfl reproduce``."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adelfl.cli.runs import DataDir, On, Where
from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adelfl.experiments.results import StudyResults
    from adelfl.experiments.study import Study
    from adelfl.report.comparison import Contender


class Scale(StrEnum):
    """Sizes of an experiment."""

    cpu = "cpu"
    full = "full"


def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Studies, leaderboard or all; see docs/reproduction.md.")
    ],
    scale: Annotated[Scale, typer.Option(help="cpu: narrow networks, fewer rounds; full: the paper's.")] = Scale.cpu,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; by default 5 (CIFAR-10: 3).")] = None,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of parallel runs; by default one per core.")] = None,
    on: On = Where.here,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for tables and pictures.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs; finished runs in it are not repeated.")] = Path(
        "runs/reproduce"
    ),
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="section.key=value", help="Change every run, such as engine.device=cuda."),
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Skip runs whose rows are in the folder of tables, from any machine.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Run nothing; summarise the rows that are in the folder of tables.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Fill this page's tables from the folder of results.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the paper's experiments, and report which of its claims hold.

    Each strategy's learning rate is chosen on validation data first. Runs that are finished are not run again.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from adelfl.cli.display import Display
    from adelfl.experiments.catalogue import NAMES, find_study
    from adelfl.experiments.conduct import Setup, conduct
    from adelfl.experiments.leaderboard import NAMES as LEADERBOARDS
    from adelfl.experiments.results import StudyResults

    several = {"all": NAMES, "leaderboard": LEADERBOARDS}
    studies = [find_study(each, scale.value) for name in names for each in several.get(name, (name,))]
    if as_json and len(studies) > 1:
        raise ConfigError("--json: name one study at a time")
    more = list(changes or ())
    if data_dir is not None:
        more.append(f"data.data_dir={json.dumps(str(data_dir.absolute()))}")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder")
    for study in studies:
        folder = runs / (study.name if scale is Scale.cpu else f"{study.name}-{scale.value}")
        stem = out / folder.name
        earlier = _earlier(study, stem) if resume else None
        setup = Setup(folder, seeds, first_seed, jobs or os.cpu_count() or 1, tuple(more), earlier, on.value)
        stem.parent.mkdir(parents=True, exist_ok=True)
        if summary:
            outcome = _earlier(study, stem)
            if outcome is None:
                raise ConfigError(f"{stem}.csv: there are no rows to summarise yet")
        else:
            with Display(["learning rates"], f"{study.name} ") as display:
                outcome = conduct(study, setup, display, keep=partial(StudyResults.write, stem=stem))
        _write(study, outcome, stem, scale, _minutes(stem) if summary or resume else 0.0)
        if as_json:
            typer.echo(json.dumps(outcome.to_json()))
        else:
            from adelfl.report.terminal import print_study

            print_study(study.title, study.source, outcome.tables(), outcome.to_json()["claims"])
            typer.echo(f"Tables and pictures: {stem}.*   Runs: {folder}")
    if page is not None:
        from adelfl.atomic import write_output
        from adelfl.experiments.page import fill_page

        write_output(page, fill_page(page.read_text(encoding="utf-8"), out))


def _earlier(study: Study, stem: Path) -> StudyResults | None:
    """Read the rows that are there already."""
    from adelfl.experiments.results import StudyResults

    return StudyResults.read(study, stem) if stem.with_name(f"{stem.name}.csv").is_file() else None


def _minutes(stem: Path) -> float:
    """Return the computing time that earlier results state: their runs may be on another machine."""
    path = stem.with_name(f"{stem.name}.json")
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["about"]["core_minutes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _write(study: Study, outcome: StudyResults, stem: Path, scale: Scale, minutes: float) -> None:
    """Write tables, claims and pictures; ``minutes`` is the least computing time to state."""
    from adelfl.atomic import write_json
    from adelfl.report.style import save

    outcome.write(stem)
    minutes = max(minutes, round(outcome.core_minutes, 1))
    about: dict[str, Any] = {"study": study.name, "scale": scale.value, "core_minutes": minutes}
    write_json(stem.with_name(f"{stem.name}.json"), {"about": about, **outcome.to_json()})
    board = study.drawing == "board"  # one picture of all leaderboards
    picture = _board(stem.parent) if board else _picture(study, outcome)
    if picture is None:
        typer.echo(f"note: no picture of {study.name}: its rows have no curves; run it again for one", err=True)
    else:
        save(picture, stem.with_name("leaderboard.png" if board else f"{stem.name}.png"), dpi=100)
    if study.name == "table-2":
        from adelfl.experiments.catalogue import STATED, TABLE_2
        from adelfl.experiments.regime import fit_regime
        from adelfl.report.studies import draw_regime

        fit = fit_regime(outcome, TABLE_2)
        title = "Table II: the depth that its baselines point to"
        picture = draw_regime(fit.depth, fit.misfit, fit.curves, fit.points, stated=STATED, title=title)
        save(picture, stem.with_name(f"{stem.name}-regime.png"), dpi=110)
    if study.headline and picture is not None:
        from adelfl.report.studies import draw_study

        titles = [cell.title for cell in study.cells if cell.key in study.headline]
        panels = [
            # Variants of a plan are for the tables.
            (title, [c for c in contenders if not c.name.startswith("adel[")])
            for title, contenders in _evaluated(outcome)
            if title in titles
        ]
        save(draw_study(panels, study.title, deadlines=False), stem.with_name(f"{stem.name}-headline.png"), dpi=110)


def _board(folder: Path) -> Figure | None:
    """Draw all leaderboards in a folder; None if no cell is finished."""
    from adelfl.experiments import leaderboard
    from adelfl.experiments.page import finished
    from adelfl.report.studies import draw_board

    columns = []
    for name in leaderboard.NAMES:
        outcome = _earlier(leaderboard.study(name), folder / name)
        if outcome is None:
            continue
        for cell in finished(outcome):
            fleet, data, time = cell.title.split(", ")
            summaries = {word: outcome.summary(cell, word) for word in outcome.study.strategies}
            scores = {word: (s.mean, s.error) for word, s in summaries.items()}
            columns.append((f"{outcome.study.title.partition(',')[0]}, {fleet}, {data}", time, scores))
    return draw_board(columns, leaderboard.REFERENCES) if columns else None


def _evaluated(outcome: StudyResults) -> list[tuple[str, list[Contender]]]:
    """Return the title and the strategies of each cell whose accuracy over time is known."""
    from adelfl.report.time_series import evaluated

    cells = ((title, evaluated(contenders)) for title, contenders in outcome.contenders())
    return [(title, contenders) for title, contenders in cells if contenders]


def _picture(study: Study, outcome: StudyResults) -> Figure | None:
    """Draw the study; None if the accuracy over time, which its drawing needs, was not kept."""
    if study.drawing == "map":
        from adelfl.experiments.page import map_gains
        from adelfl.report.studies import draw_gain

        return draw_gain(map_gains(outcome), study.title)
    if study.drawing == "dots":
        from adelfl.report.studies import draw_dots

        panels = [(cell, [row[:3] for row in rows]) for cell, rows in outcome.tables()]
        return draw_dots(panels, study.title)
    from adelfl.report.studies import draw_study

    if not (cells := _evaluated(outcome)):
        return None
    recorded = all(c.records for _, contenders in cells for c in contenders)
    return draw_study(cells, f"{study.title}   ({study.source})", deadlines=recorded)
