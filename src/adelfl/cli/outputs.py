"""``adelfl report`` and ``adelfl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, or folders that contain runs.")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for the figures, PNG and PDF.")] = None,
) -> None:
    """Write one self-contained HTML page that shows one run, or compares several."""
    from adelfl.report.groups import gather
    from adelfl.report.html import write_report

    gathered = gather(runs)
    write_report(gathered, out, figures)
    for place in gathered.empty:
        typer.echo(f"note: {place}: contains no runs, skipped", err=True)
    for folder, reason in gathered.unused.items():
        typer.echo(f"warning: {folder}: {reason}", err=True)
    typer.echo(f"Report: {out}" + (f"   Figures: {figures}" if figures is not None else ""))


def export(runs: Runs) -> None:
    """Write rounds.csv, with a line per round, into the folder of each run, finished or not."""
    from adelfl.errors import AdelError
    from adelfl.export import export_csv
    from adelfl.records.reader import run_folders

    folders, empty = run_folders(runs)
    for place in empty:
        typer.echo(f"note: {place}: contains no runs, skipped", err=True)
    code = 0
    for folder in folders:
        try:
            typer.echo(f"{folder}: {export_csv(folder)}")
        except AdelError as error:
            code = 2
            typer.echo(f"error: {error}", err=True)
    raise typer.Exit(code)
