"""``adelfl export``, and the targets that ``adelfl run --log`` takes too."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Target(StrEnum):
    """Programs that read records."""

    tensorboard = "tensorboard"
    mlflow = "mlflow"
    csv = "csv"


Targets = Annotated[list[Target] | None, typer.Option("--log", help="Log rounds as they come, too; repeatable.")]


def export(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    to: Annotated[Target, typer.Option(help="What is to read them.")],
) -> None:
    """Export runs that are recorded: event files of TensorBoard, a run of MLflow, or a CSV file."""
    from adelfl.export.logs import export_run

    for run in runs:
        typer.echo(f"{run}: {export_run(run, to.value)}")


def warn(sentence: str) -> None:
    """Say what went wrong without ending the run."""
    typer.echo(f"warning: {sentence}", err=True)
