"""``adelfl run``, ``compare``, ``resume``, ``list``, ``show`` and ``partition``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adelfl.errors import AdelError, ConfigError

if TYPE_CHECKING:
    from adelfl.config.run import RunFile
    from adelfl.records.schema import Row, RunResult
    from adelfl.report.comparison import Contender
    from adelfl.runner import RunJob

Config = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Experiment file; by default the bundled experiment.")
]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="section.key=value", help="Change a setting.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with mnist/ and cifar10/ parquet files.")]


Where = StrEnum("Where", ["here", "ray"])
On = Annotated[Where, typer.Option(help="Run here, or on a Ray cluster: the one at $RAY_ADDRESS, or a new one here.")]


def prepare(config: Path | None, changes: list[str] | None, data_dir: Path | None) -> RunFile:
    """Read the experiment's file and apply the command line's changes."""
    # Must be set before torch is imported: idle threads then sleep instead of spinning.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from adelfl.config.run import load_run

    return load_run(config, [*(changes or ()), *data_change(data_dir)])


def data_change(data_dir: Path | None) -> list[str]:
    """Return ``--data-dir`` as a change of the experiment file."""
    return [] if data_dir is None else [f"data.data_dir={json.dumps(str(data_dir), ensure_ascii=False)}"]


def run(
    config: Config = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default below runs/.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Simulate one strategy and record the run."""
    run_file = prepare(config, changes, data_dir)
    from adelfl.config.build import build_data
    from adelfl.runner import start

    parts = [run_file.data.title, run_file.model.factory or run_file.model.name, run_file.strategy.name]
    name = "-".join([*(part.replace(":", ".") for part in parts), f"seed{run_file.training.seed}"])
    folder = out or _free(Path("runs") / name)
    build_data(run_file)  # before the display opens, because decoding has its own progress bar
    _show_one(folder, run_file.strategy.name, run_file.training.seed, lambda report: start(run_file, folder, report))
    _print_untrained_note(run_file, _contenders({run_file.strategy.name: [folder]}))


def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an interrupted run.")]) -> None:
    """Continue an interrupted run; its files will be the same as those of an uninterrupted run."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from adelfl.records.reader import RunRecord
    from adelfl.runner import made_elsewhere
    from adelfl.runner import resume as resume_run

    record = RunRecord.open(run)
    if record.result is not None:
        typer.echo(f"{run} is already finished.", err=True)
    elif note := made_elsewhere(run):
        typer.echo(f"note: {note}; its results may differ in the last bits from an uninterrupted run", err=True)
    _show_one(run, record.info.strategy, record.info.seed, lambda report: resume_run(run, report))


def _show_one(folder: Path, strategy: str, seed: int, do: Callable[[Callable[[Row], None]], RunResult]) -> None:
    """Run with a progress bar, and print the result."""
    from adelfl.cli.display import Display
    from adelfl.records.reader import RunRecord
    from adelfl.runner import RunJob

    job = RunJob(strategy, seed, "", folder)
    with Display([str(folder)], folder=folder) as display:
        display.stage(str(folder), 1)
        result = do(partial(display.row, job))
        display.bars.update(display.newest, completed=1.0)
    info = RunRecord.open(folder).info
    for note in info.notes:
        typer.echo(f"note: {note}", err=True)
    accuracy = "not evaluated" if result.final_accuracy is None else f"{result.final_accuracy:.1%}"
    typer.echo(
        f"{folder}: accuracy {accuracy} after {result.rounds} round{'s' * (result.rounds != 1)} "
        f"and {result.time:.4g} {info.clock} seconds" + (f" (engine {result.engine})" if result.engine else "")
    )


def compare(
    config: Config = None,
    strategies: Annotated[
        str, typer.Option(help=r"Names, import paths, or name\[option=value], separated by commas.")
    ] = "adel,adel-paper,salf,drop,wait,heterofl,oracle",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0, help="First seed; the others follow it.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Number of parallel runs.")] = 1,
    on: On = Where.here,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; by default below runs/.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File for the plot; by default accuracy.png in the folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat finished runs as well.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Compare strategies on the same data, initial weights and random draws, over several seeds.

    Finished runs are not repeated; interrupted ones are continued.
    """
    run_file = prepare(config, changes, data_dir)
    from adelfl.cli.display import Display
    from adelfl.config.run import RunFile
    from adelfl.pools import run_all
    from adelfl.report.comparison import summary_json
    from adelfl.report.style import check_picture, save
    from adelfl.report.terminal import print_comparison
    from adelfl.report.time_series import draw_comparison
    from adelfl.runner import build_checked, default_folder, jobs_of, parse_strategy

    names = [name.strip() for name in strategies.split(",") if name.strip()]
    if not names:
        raise ConfigError("--strategies: give at least one strategy")
    parsed = [(name, sorted(options.items())) for name, options in map(parse_strategy, names)]
    if any(strategy in parsed[:k] for k, strategy in enumerate(parsed)):
        raise ConfigError("--strategies: give each strategy once")
    for change in changes or ():
        if change.startswith(("strategy.", "training.seed")):
            raise ConfigError(f"--set {change}: cannot be set here; use --strategies and --first-seed")
    folder = out or default_folder(run_file, Path("runs"))
    jobs_to_do = jobs_of(run_file, names, seeds, first_seed, folder, fresh)
    for job in jobs_to_do[: len(names)]:  # the first seed's runs: errors appear before any run starts
        if fresh or not job.folder.exists():
            build_checked(RunFile.model_validate_json(job.config))
    _print_versions_note(jobs_to_do)
    picture = plot or folder / "accuracy.png"
    if plot is not None:
        check_picture(plot)
    results: dict[RunJob, RunResult | AdelError] = {}
    with Display(names) as display:
        for name in names:
            display.stage(name, seeds)
        for job, result in run_all(jobs_to_do, jobs, display.row, on.value):
            results[job] = result
            if not isinstance(result, AdelError):
                display.done(job, result.final_accuracy)
    errors = {job: result for job in jobs_to_do if isinstance(result := results[job], AdelError)}
    finished = [job for job in jobs_to_do if job not in errors]
    contenders = _contenders({name: [job.folder for job in finished if job.strategy == name] for name in names})
    if contenders:
        if as_json:
            typer.echo(json.dumps(summary_json(contenders)))
        else:
            print_comparison(contenders)
            for note in dict.fromkeys(note for c in contenders for r in c.records for note in r.info.notes):
                typer.echo(f"note: {note}", err=True)
        save(draw_comparison(contenders, _title(run_file, contenders)), picture)
        if not as_json:
            _print_untrained_note(run_file, contenders)
            typer.echo(f"Runs: {folder}   Plot: {picture}")
    for job, error in errors.items():
        typer.echo(f"error: {job.strategy}, seed {job.seed}: {error}", err=True)
    if errors:
        raise typer.Exit(2)


def list_runs(
    root: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder with runs.")] = Path("runs"),
) -> None:
    """List the runs below a folder."""
    from adelfl.records.reader import find_runs
    from adelfl.report.terminal import print_runs

    if root != Path("runs") and not root.is_dir():
        raise ConfigError(f"{root}: no such folder; give a folder that contains runs")
    print_runs(find_runs(root), root)


def show(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]) -> None:
    """Show one run: accuracy, deadlines and contributors per layer."""
    from adelfl.records.reader import RunRecord
    from adelfl.report.terminal import print_run

    print_run(RunRecord.open(run))


def _free(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3 … that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(free for free in chain([folder], numbered) if not free.exists())


def _print_untrained_note(run_file: RunFile, contenders: list[Contender]) -> None:
    """Print a note if the accuracy stayed near chance."""
    import numpy as np

    from adelfl.config.build import build_data
    from adelfl.report.comparison import untrained_note

    labels = build_data(run_file)[0].y_test
    if note := untrained_note(contenders, float(np.bincount(labels).max() / labels.size)):
        typer.echo(f"note: {note}", err=True)


def _print_versions_note(jobs_to_do: list[RunJob]) -> None:
    """Print a note if finished runs of other versions are reused."""
    from adelfl.runner import made_elsewhere

    notes: list[str] = []
    for job in jobs_to_do:
        if not job.fresh and (job.folder / "run.json").is_file():
            with suppress(AdelError):  # reported when the job runs
                notes += filter(None, [made_elsewhere(job.folder)])
    if notes:
        more = f", and {len(notes) - 1} other runs with other versions" if len(notes) > 1 else ""
        typer.echo(f"note: {notes[0]}{more}; use --fresh to repeat them", err=True)


def _contenders(folders: dict[str, list[Path]]) -> list[Contender]:
    from adelfl.records.reader import RunRecord
    from adelfl.report.comparison import Contender

    records = {name: [RunRecord.open(folder) for folder in several] for name, several in folders.items()}
    return [Contender(name, several[0].info.label, several) for name, several in records.items() if several]


def _title(run_file: RunFile, contenders: list[Contender]) -> str:
    t, info = run_file.training, contenders[0].records[0].info
    paper = not run_file.latency.model_fields_set and run_file.fleet.latency is None  # for which depth is defined
    given = t.depth and paper and t.budget_share == 1.0
    time = f"mean depth {t.depth:.0%} at batch {t.batch}" if given else f"{info.budget:.4g} s"
    devices = f"{t.cohort} of {info.devices} devices a round" if t.cohort else f"{info.devices} devices"
    return f"{info.data}, {run_file.model.factory or run_file.model.name}, {devices}, {info.rounds} rounds, {time}"


def partition(
    config: Config = None,
    changes: Changes = None,
    save: Annotated[Path | None, typer.Option(help="Write the partition (.npz), for data.partition_file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the labels of each device into this file.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Show how the training samples are distributed over the devices; save or draw it."""
    run_file = prepare(config, changes, data_dir)
    from adelfl.config.build import build_data
    from adelfl.report.style import check_picture

    if plot is not None:
        check_picture(plot)
    dataset, parts = build_data(run_file)
    counts = parts.label_counts(dataset.y_train)
    top = (counts.max(axis=1) / counts.sum(axis=1)).mean()
    typer.echo(
        f"{len(parts)} devices hold {parts.sizes.min()} to {parts.sizes.max()} samples of {dataset.name}; "
        f"a device's most frequent label makes up {top:.0%} of its samples on average"
    )
    if save is not None:
        parts.save(save)
        typer.echo(f"Partition: {save}")
    if plot is not None:
        from adelfl.report.partition import draw_partition
        from adelfl.report.style import save as save_figure

        save_figure(draw_partition(parts, dataset.y_train), plot)
        typer.echo(f"Plot: {plot}")
