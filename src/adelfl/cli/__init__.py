"""The command line; commands import their dependencies when they run, so that ``adelfl --help`` is quick."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from adelfl import __version__
from adelfl.cli import dashboard, outputs, plan, profile, reproduce, runs, what_if
from adelfl.errors import AdelError

app = typer.Typer(
    name="adelfl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    plan.plan,
    runs.compare,
    runs.run,
    runs.resume,
    runs.show,
    runs.partition,
    outputs.report,
    outputs.export,
    profile.profile,
    reproduce.reproduce,
    dashboard.dashboard,
):
    app.command()(command)
app.command("list")(runs.list_runs)
app.command("what-if")(what_if.what_if)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adelfl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train federated models before a deadline."""


def main() -> None:
    """Run the command line; an AdelError is printed as one sentence with exit code 2.

    With ``ADELFL_TRACEBACK=1``, a traceback is printed instead, which includes the cause in a user's code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints ? where the terminal cannot display ±
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.insert(0, os.getcwd())  # for the user's modules that experiment files name
    try:
        app()
    except (AdelError, OSError) as error:  # OSError: standard output is closed or full
        if os.environ.get("ADELFL_TRACEBACK"):
            raise
        if isinstance(error, OSError):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - flushing at exit would fail as well
        more = " (set ADELFL_TRACEBACK=1 for the traceback)" if error.__cause__ is not None else ""
        typer.echo(f"error: {error}{more}", err=True)
        sys.exit(2)
