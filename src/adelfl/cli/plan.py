"""``adelfl plan``."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.planner import Problem, Solution

MAX_JSON_BATCHES = 20_000_000


class PlanObjective(StrEnum):
    """What a plan minimises."""

    tight = "tight"
    paper = "paper"


class PlanMethod(StrEnum):
    """Solvers of the planner."""

    exact = "exact"
    trust_region = "trust-region"


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The problem; see examples/phones.toml.")],
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="CSV with columns compute, upload, count, or TOML with \\[\\[device]] entries, as adelfl profile "
            "writes it; takes the place of the file's own."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this file (.png, .pdf, .svg).")] = None,
    method: Annotated[
        PlanMethod, typer.Option(help="Of the paper's objective: exact, or its general solver.")
    ] = PlanMethod.exact,
    objective: Annotated[
        PlanObjective, typer.Option(help="The noise of the rounds itself, or the paper's bound on it.")
    ] = PlanObjective.tight,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if a device would have to sit out.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the picture, where there is a screen.")] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=LOW:HIGH[:POINTS]",
            help="Plan for each value in a range of budget or rounds, or without the slowest devices.",
        ),
    ] = None,
) -> None:
    """Plan deadlines and batch sizes for a fleet and a time budget."""
    from adelfl.config.plan import load_problem
    from adelfl.planner import plan as solve

    if show and plot is None:
        raise ConfigError("--open needs --plot FILE.png")
    problem = load_problem(file, fleet)
    if sweep is not None:
        from adelfl.cli.sweep import sweep_plan

        def solved(q: Problem) -> Solution:
            return solve(q, method=method.value, strict=strict, objective=objective.value)

        sweep_plan(problem, sweep, solved, plot, as_json)
        if show and plot is not None:
            open_picture(plot)
        return
    if as_json and problem.rounds * max(problem.fleet.groups, problem.layers) > MAX_JSON_BATCHES:
        raise ConfigError(
            f"{problem.rounds} rounds × {problem.fleet.groups} device groups or {problem.layers} layers are too many "
            "numbers for JSON; "
            "merge alike devices with count, or use adelfl.plan from Python"
        )
    solution = solve(problem, method=method.value, strict=strict, objective=objective.value)
    for sentence in solution.warnings:
        typer.echo(f"warning: {sentence}", err=True)
    if plot is not None:
        from adelfl.report.plan import draw_plan
        from adelfl.report.style import save

        save(draw_plan(solution), plot)
    if as_json:
        typer.echo(json.dumps(_plan_json(solution)))
    else:
        from adelfl.report.terminal import print_plan

        print_plan(solution)
        if plot is not None:
            typer.echo(f"Picture: {plot}")
    if show and plot is not None:
        open_picture(plot)


def _plan_json(solution: Solution) -> dict[str, Any]:
    schedule, fleet = solution.schedule, solution.problem.fleet
    return {
        "groups": [{"name": fleet.name(i), "count": int(n)} for i, n in enumerate(fleet.count)],
        "deadlines": schedule.deadlines.tolist(),
        "objective": solution.objective,
        "m": solution.m if isinstance(solution.m, float) else solution.m.tolist(),
        "batch_sizes": schedule.batch_sizes().tolist(),
        "p_empty": schedule.p_empty_bound.tolist(),
        "bound": solution.bound,
        "excess": solution.excess,
        "uniform_excess": solution.uniform.excess,
        "uniform_m": solution.uniform.m,
        "expected_depth": schedule.expected_depth().tolist(),
        "binding": list(solution.binding),
        "sitting_out": [{"name": s.name, "count": s.count, "reason": s.reason} for s in solution.sitting_out],
        "outcome": solution.outcome,
        "advice": solution.advice,
        "warnings": list(solution.warnings),
        "grouping_error": solution.grouping_error,
        "method": solution.method,
        "seconds": solution.seconds,
    }


def open_picture(path: Path) -> None:
    """Show a picture, where there is a screen."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        typer.launch(str(path))
