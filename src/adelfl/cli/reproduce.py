"""``adelfl reproduce``."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adelfl.cli.runs import DataDir, On, Where, data_change
from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adelfl.experiments.results import StudyResults
    from adelfl.experiments.study import Study


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
    from adelfl.atomic import write_json, write_output
    from adelfl.cli.display import Display
    from adelfl.experiments.catalogue import NAMES, find_study
    from adelfl.experiments.conduct import Setup, conduct
    from adelfl.experiments.leaderboard import NAMES as LEADERBOARDS
    from adelfl.experiments.results import StudyResults

    several = {"all": NAMES, "leaderboard": LEADERBOARDS}
    studies = [find_study(each, scale.value) for name in names for each in several.get(name, (name,))]
    if as_json and len(studies) > 1:
        raise ConfigError("--json: name one study at a time")
    more = (*(changes or ()), *data_change(data_dir))
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder")
    for study in studies:
        folder = runs / (study.name if scale is Scale.cpu else f"{study.name}-{scale.value}")
        stem = out / folder.name
        earlier = _earlier(study, stem) if resume or summary else None
        minutes = _minutes(stem) if resume or summary else 0.0
        stem.parent.mkdir(parents=True, exist_ok=True)
        if not summary:
            setup = Setup(folder, seeds, first_seed, jobs or os.cpu_count() or 1, more, earlier, on.value)
            with Display(["learning rates"], f"{study.name} ") as display:
                outcome = conduct(study, setup, display, keep=partial(StudyResults.write, stem=stem))
        elif earlier is None:
            raise ConfigError(f"{stem}.csv: there are no rows to summarise yet")
        else:
            outcome = earlier
        outcome.write(stem)
        minutes = max(minutes, round(outcome.core_minutes, 1))
        about = {"study": study.name, "scale": scale.value, "core_minutes": minutes}
        write_json(stem.with_name(f"{stem.name}.json"), {"about": about, **outcome.to_json()})
        _draw(study, outcome, stem)
        if as_json:
            typer.echo(json.dumps(outcome.to_json()))
        else:
            from adelfl.report.terminal import print_study

            print_study(study.title, study.source, outcome.tables(), outcome.to_json()["claims"])
            typer.echo(f"Tables and pictures: {stem}.*   Runs: {folder}")
    if page is not None:
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


def _draw(study: Study, outcome: StudyResults, stem: Path) -> None:
    """Write the pictures of a study."""
    from adelfl.experiments.catalogue import STATED, TABLE_2
    from adelfl.experiments.page import map_gains
    from adelfl.experiments.regime import fit_regime
    from adelfl.report.studies import draw_dots, draw_gain, draw_regime, draw_study
    from adelfl.report.style import save
    from adelfl.report.time_series import evaluated

    # The strategies of each cell whose accuracy over time is known; rows of earlier versions lack it.
    cells = [(title, known) for title, contenders in outcome.contenders() if (known := evaluated(contenders))]
    name, picture = f"{stem.name}.png", None
    if study.drawing == "board":
        name, picture = "leaderboard.png", _board(stem.parent)  # one picture of all leaderboards
    elif study.drawing == "map":
        picture = draw_gain(map_gains(outcome), study.title)
    elif study.drawing == "dots":
        picture = draw_dots([(title, [row[:3] for row in rows]) for title, rows in outcome.tables()], study.title)
    elif cells:
        recorded = all(c.records for _, contenders in cells for c in contenders)
        picture = draw_study(cells, f"{study.title}   ({study.source})", deadlines=recorded)
    if picture is None:
        typer.echo(f"note: no picture of {study.name}: its rows have no curves; run it again for one", err=True)
    else:
        save(picture, stem.with_name(name), dpi=100)
    if study.name == "table-2":
        fit, title = fit_regime(outcome, TABLE_2), "Table II: depth inferred from the accuracy of its baselines"
        picture = draw_regime(fit.depth, fit.misfit, fit.curves, fit.points, stated=STATED, title=title)
        save(picture, stem.with_name(f"{stem.name}-regime.png"), dpi=110)
    if study.headline and cells:
        titles = [cell.title for cell in study.cells if cell.key in study.headline]
        # Variants of a plan are for the tables.
        panels = [(t, [c for c in known if not c.name.startswith("adel[")]) for t, known in cells if t in titles]
        save(draw_study(panels, study.title, deadlines=False), stem.with_name(f"{stem.name}-headline.png"), dpi=110)


def _board(folder: Path) -> Figure | None:
    """Draw all leaderboards in a folder; None if no cell is finished."""
    from adelfl.experiments import leaderboard
    from adelfl.experiments.page import finished
    from adelfl.report.studies import draw_board

    columns = []
    for name in leaderboard.NAMES:
        if (outcome := _earlier(leaderboard.study(name), folder / name)) is None:
            continue
        for cell in finished(outcome):
            fleet, data, time = cell.title.split(", ")
            summaries = {word: outcome.summary(cell, word) for word in outcome.study.strategies}
            scores = {word: (s.mean, s.error) for word, s in summaries.items()}
            columns.append((f"{outcome.study.title.partition(',')[0]}, {fleet}, {data}", time, scores))
    return draw_board(columns, leaderboard.REFERENCES) if columns else None
