"""``adelfl export``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Target = StrEnum("Target", ["tensorboard", "mlflow", "csv"])


def export(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs, or folders that contain runs.")],
    to: Annotated[Target, typer.Option(help="Target format.")],
) -> None:
    """Export runs, finished or not: event files of TensorBoard, a run of MLflow, or a CSV file."""
    from adelfl.errors import AdelError
    from adelfl.export.runs import export_run, find_target
    from adelfl.records.reader import run_folders

    find_target(to.value)
    folders, empty = run_folders(runs)
    for place in empty:
        typer.echo(f"note: {place}: no run there, passed over", err=True)
    failed = False
    for folder in folders:
        try:
            typer.echo(f"{folder}: {export_run(folder, to.value)}")
        except AdelError as error:
            failed = True
            typer.echo(f"error: {error}", err=True)
    if failed:
        raise typer.Exit(2)
