"""``adelfl what-if``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adelfl.cli.runs import Changes, DataDir, prepare

if TYPE_CHECKING:
    from adelfl.simulation.what_if import Forecast


def what_if(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Record of a Flower deployment.")],
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Experiment, for accuracies.")] = None,
    strategies: Annotated[
        str | None,
        typer.Option(help=r"Names, or name\[option=value], separated by commas; by default the recorded method."),
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Time budget in seconds; by default that of the record.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for drawing samples.")] = 3,
    changes: Changes = None,
    data_dir: DataDir = None,
) -> None:
    """Simulate other methods or another budget on the devices of a recorded Flower deployment."""
    run_file = prepare(config, changes, data_dir) if config or changes else None
    from adelfl.config.build import build_experiment
    from adelfl.records.reader import RunRecord
    from adelfl.runner import parse_strategy
    from adelfl.simulation.history import History
    from adelfl.simulation.what_if import Forecast, what_if

    record = RunRecord.open(run)
    History.of(record)  # raises an error before anything is printed if this is not a deployment
    methods = {record.info.strategy: (record.info.strategy, dict(record.info.options))}
    if strategies is not None:
        methods = {word.strip(): parse_strategy(word) for word in strategies.split(",") if word.strip()}
    experiment = None
    if run_file is not None:
        nodes = len(record.info.nodes or ())
        fleet = run_file.fleet.model_copy(update={"devices": nodes})
        training = run_file.training.model_copy(update={"local_iterations": 2})  # for an engine with several steps
        experiment = build_experiment(run_file.model_copy(update={"fleet": fleet, "training": training}))
    width = 3 + max(len(f"{word}, as recorded") for word in (*methods, record.info.strategy))
    line = f"{{:{width}}}{{:>8}}{{:>14}}{{:>12}}{{:>14}}".format
    typer.echo(line("", "rounds", "s per round", "seconds", "accuracy, %"))
    typer.echo(line(f"{record.info.strategy}, as recorded", *_cells([Forecast.of(record)])))
    for word, (name, options) in methods.items():
        outcomes = [
            what_if(
                record, name, options, budget=budget,
                experiment=None if experiment is None else replace(experiment, seed=experiment.seed + seed),
            )
            for seed in range(seeds if experiment else 1)
        ]  # fmt: skip
        typer.echo(line(f"{word}, simulated", *_cells(outcomes)))


def _cells(outcomes: list[Forecast]) -> list[str]:
    """Return rounds and times, which do not depend on the seed, and the mean accuracy with its standard error."""
    import numpy as np

    from adelfl.report.comparison import plus_minus, standard_error

    first = outcomes[0]
    accuracies = 100.0 * np.array([o.accuracy for o in outcomes if o.accuracy is not None])
    mean = plus_minus(accuracies.mean(), standard_error(accuracies)) if accuracies.size else "-"
    return [str(first.rounds), f"{first.time / max(1, first.rounds):.1f}", f"{first.time:.1f}", mean]
