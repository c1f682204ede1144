"""``adelfl plan --sweep``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.planner import Problem, Solution


def sweep_plan(
    problem: Problem, text: str, solve: Callable[[Problem], Solution], plot: Path | None, as_json: bool
) -> None:
    """Plan for each value of ``KEY=LOW:HIGH[:POINTS]``; print a table or JSON, and draw a picture if asked to."""
    from adelfl.planner import values_between, what_if
    from adelfl.report.terminal import print_what_if

    key, *numbers = re.split(r"\s*[=:]\s*", text.strip())
    try:
        low, high, points = map(float, numbers if len(numbers) == 3 else [*numbers, 25])
    except ValueError:
        raise ConfigError(f"--sweep {text}: must look like budget=75:600 or budget=75:600:40") from None
    warnings: dict[str, None] = {}

    def planned(changed: Problem) -> Solution:
        solution = solve(changed)
        warnings.update(dict.fromkeys(solution.warnings))
        return solution

    rows = what_if(problem, key, values_between(key, low, high, points), planned)  # type: ignore[arg-type]
    for sentence in warnings:
        typer.echo(f"warning: {sentence}", err=True)
    if plot is not None:
        from adelfl.report.plan import draw_what_if
        from adelfl.report.style import save

        save(draw_what_if(rows, key, problem.fleet.size), plot)
    if as_json:
        typer.echo(json.dumps({"key": key, "points": [asdict(row) for row in rows]}))
        return
    print_what_if(rows, key)
    if plot is not None:
        typer.echo(f"Picture: {plot}")
