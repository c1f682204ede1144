"""``adelfl plan --sweep``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from adelfl.errors import ConfigError

if TYPE_CHECKING:
    from adelfl.planner import Problem, Solution
    from adelfl.planner.sweep import Key

_MOST_POINTS = 1000


def sweep_plan(
    problem: Problem, text: str, solve: Callable[[Problem], Solution], plot: Path | None, as_json: bool
) -> None:
    """Plan over a range; print or draw what can be expected.

    Parameters
    ----------
    problem : Problem
    text : str
        ``KEY=LOW:HIGH`` or ``KEY=LOW:HIGH:POINTS``, as the user wrote it.
    solve : callable
        What makes a plan of a problem.
    plot : Path or None
        Picture.
    as_json : bool
        Whether to print JSON on stdout, and nothing else.
    """
    from adelfl.planner import what_if

    key, values = parse_sweep(text)
    warnings: dict[str, None] = {}

    def planned(changed: Problem) -> Solution:
        solution = solve(changed)
        warnings.update(dict.fromkeys(solution.warnings))
        return solution

    found = what_if(problem, key, values, planned)
    for sentence in warnings:
        typer.echo(f"warning: {sentence}", err=True)
    title = _title(problem, key)
    if plot is not None:
        from adelfl.report.style import save
        from adelfl.report.sweep import draw_sweep

        save(draw_sweep(found, title), plot)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    from adelfl.report.terminal import print_sweep

    print_sweep(found, title)
    if plot is not None:
        typer.echo(f"Picture: {plot}")


def parse_sweep(text: str) -> tuple[Key, list[float]]:
    """The key and the values that ``KEY=LOW:HIGH[:POINTS]`` means."""
    from adelfl.planner import values_between

    said = re.fullmatch(r"\s*(\w+)\s*=\s*([^:\s]+)\s*:\s*([^:\s]+)\s*(?::\s*(\d+)\s*)?", text)
    try:
        if said is None:
            raise ValueError
        low, high, points = float(said[2]), float(said[3]), int(said[4] or 25)
    except ValueError:
        raise ConfigError(f"--sweep {text}: must look like budget=75:600 or budget=75:600:40") from None
    if points > _MOST_POINTS:
        raise ConfigError(f"--sweep {text}: at most {_MOST_POINTS} points")
    key: Key = said[1]  # type: ignore[assignment]  # values_between says which are allowed
    try:
        return key, values_between(key, low, high, points)
    except ConfigError as trouble:
        raise ConfigError(f"--sweep {trouble}") from None


def _title(problem: Problem, key: Key) -> str:
    rest = {
        "layers": f"{problem.layers} layers",
        "rounds": f"{problem.rounds} rounds",
        "budget": f"{problem.budget:g} s",
    }
    same = ", ".join(words for name, words in rest.items() if name != key)
    asked = {
        "budget": "with more or less time",
        "rounds": "with more or fewer rounds",
        "without": "without the slowest",
    }[key]
    return f"What if: {problem.fleet.size} devices, {same}, {asked}"
