"""``adelfl plan``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.planner import Problem, Solution

MAX_JSON_BATCHES = 20_000_000


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
        str, typer.Option(metavar="exact|trust-region", help="Solver of the paper's objective; exact is faster.")
    ] = "exact",
    objective: Annotated[
        str, typer.Option(metavar="tight|paper", help="Minimise the noise of the rounds, or the paper's bound.")
    ] = "tight",
    strict: Annotated[bool, typer.Option("--strict", help="Fail if a device would have to sit out.")] = False,
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

    problem = load_problem(file, fleet)

    def solved(changed: Problem) -> Solution:
        solution = solve(changed, method=method, strict=strict, objective=objective)  # type: ignore[arg-type]
        for sentence in solution.warnings:
            if sentence not in warned:
                typer.echo(f"warning: {sentence}", err=True)
        warned.update(solution.warnings)
        return solution

    warned: set[str] = set()
    if sweep is not None:
        _show_sweep(problem, sweep, solved, plot, as_json)
    else:
        _show_plan(problem, solved, plot, as_json)
    if plot is not None and not as_json:
        typer.echo(f"Picture: {plot}")


def _show_plan(problem: Problem, solve: Callable[[Problem], Solution], plot: Path | None, as_json: bool) -> None:
    if as_json and problem.rounds * max(problem.fleet.groups, problem.layers) > MAX_JSON_BATCHES:
        raise ConfigError(
            f"{problem.rounds} rounds × {problem.fleet.groups} device groups or {problem.layers} layers are too many "
            "numbers for JSON; merge equal devices with count, or use adelfl.plan from Python"
        )
    solution = solve(problem)
    if plot is not None:
        from adelfl.report.plan import draw_plan
        from adelfl.report.style import save

        save(draw_plan(solution), plot)
    if as_json:
        typer.echo(json.dumps(_plan_json(solution)))
        return
    from adelfl.report.terminal import print_plan

    print_plan(solution)
    typer.echo("Which method wins when: docs/leaderboard.md")


def _show_sweep(
    problem: Problem, text: str, solve: Callable[[Problem], Solution], plot: Path | None, as_json: bool
) -> None:
    from adelfl.planner import what_if

    key, values = sweep_values(text)
    rows = what_if(problem, key, values, solve)  # type: ignore[arg-type]  # what_if checks the key
    if plot is not None:
        from adelfl.report.plan import draw_what_if
        from adelfl.report.style import save

        save(draw_what_if(rows, key, problem.fleet.size), plot)
    if as_json:
        typer.echo(json.dumps({"key": key, "points": [asdict(row) for row in rows]}))
        return
    from adelfl.report.terminal import print_what_if

    print_what_if(rows, key)


def sweep_values(text: str) -> tuple[str, list[float]]:
    """Return the key and the values of ``KEY=LOW:HIGH[:POINTS]``, evenly spaced (without) or geometric."""
    import numpy as np

    key, *numbers = re.split(r"\s*[=:]\s*", text.strip())
    try:
        low, high, points = map(float, numbers if len(numbers) == 3 else [*numbers, 25])
    except ValueError:
        raise ConfigError(f"--sweep {text}: must look like budget=75:600 or budget=75:600:40") from None
    if not (0 <= low < high < math.inf and (low > 0 or key == "without") and points in range(2, 1001)):
        raise ConfigError(f"--sweep {text}: needs 0 < LOW < HIGH (without: 0 ≤ LOW) and from 2 to 1000 points")
    spaced = (np.linspace if key == "without" else np.geomspace)(low, high, int(points))
    inner = [float(f"{v:.4g}") if key == "budget" else float(round(v)) for v in spaced[1:-1]]
    return key, [low, *(v for v in dict.fromkeys(inner) if low < v < high), high]


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
