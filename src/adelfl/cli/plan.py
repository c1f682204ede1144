"""``adelfl plan``."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.planner import Problem, Solution

MAX_JSON_BATCHES = 20_000_000


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Plan file, such as examples/phones.toml.")],
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="Replace the file's devices by those of a CSV file with columns compute, upload, count, or of a TOML "
            "file with \\[\\[device]] entries, as adelfl profile writes it."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this file (.png, .pdf, .svg).")] = None,
    method: Annotated[
        str, typer.Option(metavar="exact|trust-region", help="Solver for the paper's objective; exact is faster.")
    ] = "exact",
    objective: Annotated[
        str, typer.Option(metavar="tight|paper", help="Minimise the noise of the rounds, or the paper's bound.")
    ] = "tight",
    strict: Annotated[bool, typer.Option("--strict", help="Fail if a device would have to sit out.")] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=LOW:HIGH[:POINTS]",
            help="Plan for several values of budget or rounds, or leave out that many of the slowest devices.",
        ),
    ] = None,
) -> None:
    """Plan deadlines and batch sizes for a fleet and a time budget."""
    from adelfl.config.plan import load_problem
    from adelfl.planner import plan as solve
    from adelfl.planner import what_if

    problem = load_problem(file, fleet)
    warned: set[str] = set()

    def solved(changed: Problem) -> Solution:
        solution = solve(changed, method=method, strict=strict, objective=objective)  # type: ignore[arg-type]
        for sentence in solution.warnings:
            if sentence not in warned:
                typer.echo(f"warning: {sentence}", err=True)
        warned.update(solution.warnings)
        return solution

    if sweep is not None:
        key, values = sweep_values(sweep)
        rows = what_if(problem, key, values, solved)  # type: ignore[arg-type]  # what_if checks the key
    elif as_json and problem.rounds * max(problem.fleet.groups, problem.layers) > MAX_JSON_BATCHES:
        raise ConfigError(
            f"{problem.rounds} rounds × {problem.fleet.groups} device groups or {problem.layers} layers are too many "
            "numbers for JSON; merge equal devices with count, or call adelfl.plan from Python"
        )
    else:
        solution = solved(problem)
    if plot is not None:
        from adelfl.report.plan import draw_plan, draw_what_if
        from adelfl.report.style import save

        save(draw_plan(solution) if sweep is None else draw_what_if(rows, key), plot)
    if as_json:
        points = {} if sweep is None else {"key": key, "points": [asdict(row) for row in rows]}
        typer.echo(json.dumps(points or _plan_json(solution)))
        return
    from adelfl.report.terminal import print_plan, print_what_if

    if sweep is None:
        print_plan(solution)
        typer.echo("Which method wins when: docs/leaderboard.md")
    else:
        print_what_if(rows, key)
    if plot is not None:
        typer.echo(f"Plot: {plot}")


def sweep_values(text: str) -> tuple[str, list[float]]:
    """Return the key and the values of ``KEY=LOW:HIGH[:POINTS]``, evenly spaced for "without", geometric otherwise."""
    import numpy as np

    key, *numbers = re.split(r"\s*[=:]\s*", text.strip())
    try:
        low, high, points = map(float, numbers if len(numbers) == 3 else [*numbers, 25])
    except ValueError:
        raise ConfigError(f"--sweep {text}: must look like budget=75:600 or budget=75:600:40") from None
    if not (0 <= low < high < math.inf and (low > 0 or key == "without") and points in range(2, 1001)):
        raise ConfigError(f"--sweep {text}: needs 0 < LOW < HIGH (without: 0 ≤ LOW) and 2 to 1000 points")
    spaced = (np.linspace if key == "without" else np.geomspace)(low, high, int(points))
    inner = [float(f"{v:.4g}") if key == "budget" else float(round(v)) for v in spaced[1:-1]]
    return key, [low, *(v for v in dict.fromkeys(inner) if low < v < high), high]


def _plan_json(solution: Solution) -> dict[str, Any]:
    schedule, fleet = solution.schedule, solution.problem.fleet
    return {
        "groups": [{"name": fleet.name(i), "count": int(n)} for i, n in enumerate(fleet.count)],
        "deadlines": schedule.deadlines.tolist(),
        "m": solution.m if isinstance(solution.m, float) else solution.m.tolist(),
        "batch_sizes": schedule.batch_sizes().tolist(),
        "p_empty": schedule.p_empty_bound.tolist(),
        "expected_depth": schedule.expected_depth().tolist(),
        "uniform_excess": solution.uniform.excess,
        "uniform_m": solution.uniform.m,
        "sitting_out": [{"name": s.name, "count": s.count, "reason": s.reason} for s in solution.sitting_out],
        **{key: getattr(solution, key) for key in ("bound", "excess", "binding", "outcome", "advice", "warnings")},
        **{key: getattr(solution, key) for key in ("objective", "method", "grouping_error", "seconds")},
    }
