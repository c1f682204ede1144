"""``adelfl reproduce``."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adelfl.cli.runs import DataDir, On, Where, data_change
from adelfl.errors import ConfigError
from adelfl.plugins import import_object

if TYPE_CHECKING:
    from adelfl.experiments.results import StudyResults
    from adelfl.experiments.study import Study


Scale = StrEnum("Scale", ["cpu", "full"])


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Names of the repository's studies, leaderboard, all, or your own study as package.module:STUDY.",
        ),
    ],
    scale: Annotated[Scale, typer.Option(help="cpu: narrow networks, fewer rounds; full: the paper's.")] = Scale.cpu,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; by default 5 (CIFAR-10: 3).")] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="First seed; the others follow it.")] = 0,
    cells: Annotated[
        list[str] | None, typer.Option("--cell", help="Run only this setting, as named in the CSV; repeat for more.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of parallel runs; by default one per core.")] = None,
    on: On = Where.here,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for tables and figures.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/reproduce"),
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="section.key=value", help="Change every run, such as engine.device=cuda."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip runs whose results are already in --out.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Run nothing; summarise the results in --out.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Run studies, such as the paper's experiments, and report which claims hold.

    Each strategy's learning rate is chosen on validation data first. Finished runs are not repeated.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from adelfl.atomic import write_json
    from adelfl.cli.display import Display
    from adelfl.experiments.conduct import Setup, conduct
    from adelfl.experiments.results import StudyResults

    studies = [study for name in names for study in _find(name, scale.value)]
    if as_json and len(studies) > 1:
        raise ConfigError("--json: name one study at a time")
    more = (*(changes or ()), *data_change(data_dir))
    if cells and summary:
        raise ConfigError("--cell: has no effect with --summary, which runs nothing; leave one of them out")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a folder; choose another name")
    for study in studies:
        known = [cell.key for cell in study.cells]
        if unknown := set(cells or ()) - set(known):
            raise ConfigError(f"--cell {min(unknown)}: not in {study.name}; choose from {', '.join(known)}")
        folder = runs / (study.name if scale is Scale.cpu else f"{study.name}-{scale.value}")
        stem = out / folder.name
        earlier = None
        if (resume or summary or cells) and stem.with_name(f"{stem.name}.csv").is_file():
            earlier = StudyResults.read(study, stem)
        minutes = 0.0 if earlier is None else _minutes(stem)
        if not summary:
            stem.parent.mkdir(parents=True, exist_ok=True)
            workers = jobs or os.cpu_count() or 1
            setup = Setup(folder, seeds, first_seed, workers, more, earlier, on.value, tuple(cells or ()))
            with Display(["learning rates"], f"{study.name} ") as display:
                outcome = conduct(study, setup, display, keep=partial(StudyResults.write, stem=stem))
            outcome.write(stem)
        elif earlier is None:
            raise ConfigError(f"{stem}.csv: no such file; run the study without --summary first")
        else:
            outcome = earlier
        minutes = max(minutes, round(outcome.core_minutes, 1))
        about = {"study": study.name, "scale": scale.value, "core_minutes": minutes}
        write_json(stem.with_name(f"{stem.name}.json"), {"about": about, **outcome.to_json()})
        _draw(study, outcome, stem)
        if as_json:
            typer.echo(json.dumps(outcome.to_json()))
        else:
            from adelfl.report.terminal import print_study

            print_study(study.title, study.source, outcome.tables(), outcome.to_json()["claims"])
            typer.echo(f"Tables and figures: {stem}.*" + ("" if summary else f"   Runs: {folder}"))


def _minutes(stem: Path) -> float:
    """Return the computing time in earlier results, whose runs may be on another machine; 0 if there are none."""
    path = stem.with_name(f"{stem.name}.json")
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["about"]["core_minutes"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _find(name: str, scale: str) -> list[Study]:
    """Return a user's study by its import path, or studies by a name that the package ``studies`` knows."""
    if ":" not in name and find_spec("studies") is None:
        raise ConfigError(
            f"study {name!r}: there is no package named studies here; run this in a clone of adelfl's repository, or "
            "give a study of your own as package.module:STUDY"
        )
    if ":" not in name:
        studies: list[Study] = import_object("NAME", "studies:find_studies")(name, scale)
        return studies
    from adelfl.experiments.study import Study

    study = import_object("NAME", name)
    if not isinstance(study, Study):
        raise ConfigError(f"{name}: must be an adelfl.experiments.study.Study, not {type(study).__name__}")
    return [study]


def _draw(study: Study, outcome: StudyResults, stem: Path) -> None:
    """Write the figures of a study."""
    from adelfl.report.studies import draw_dots, draw_study
    from adelfl.report.style import save
    from adelfl.report.time_series import evaluated

    figures = {} if study.pictures is None else study.pictures(outcome, stem.parent)
    if stem.name != study.name:  # at another scale: only the study's own figures, beside those at cpu scale
        figures = {k.replace(study.name, stem.name): v for k, v in figures.items() if k.startswith(study.name)}
    # The strategies of each cell whose accuracy over time is known; results of earlier versions lack it.
    cells = [(title, known) for title, contenders in outcome.contenders() if (known := evaluated(contenders))]
    if study.drawing == "dots":
        dots = [(title, [row[:3] for row in rows]) for title, rows in outcome.tables()]
        figures[f"{stem.name}.png"] = draw_dots(dots, study.title)
    elif study.drawing == "curves" and cells:
        recorded = all(c.records for _, contenders in cells for c in contenders)
        figures[f"{stem.name}.png"] = draw_study(cells, f"{study.title}   ({study.source})", deadlines=recorded)
    if not figures:
        typer.echo(f"note: {study.name} has no figure, since its results have no curves; run the study again", err=True)
    for name, drawn in figures.items():
        save(drawn, stem.with_name(name), dpi=100)
