"""``adelfl run``, ``compare``, ``resume``, ``list`` and ``show``."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adelfl.cli.export import Targets, warn
from adelfl.errors import AdelError, ConfigError

if TYPE_CHECKING:
    from adelfl.report.comparison import Contender
    from adelfl.runner import Job

Config = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="The experiment; none: the embedded one.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Change a key of the file; repeatable.")
]
DataDir = Annotated[Path | None, typer.Option(help="Folder with mnist/ and cifar10/ parquet files.")]


def prepare(config: Path | None, changes: list[str] | None, data_dir: Path | None) -> Any:  # noqa: ANN401 - RunFile
    """Read the experiment that a user names."""
    # Must be set before torch is loaded: idle threads sleep instead of spinning.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from adelfl.config.run import load_run

    said = load_run(config, changes or ())
    if data_dir is not None:
        said = said.model_copy(update={"data": said.data.model_copy(update={"data_dir": str(data_dir.absolute())})})
    return said


def run(
    config: Config = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default below runs/.")] = None,
    data_dir: DataDir = None,
    engine: Annotated[
        str | None, typer.Option(help="auto, fused, stacked, loop; flower: Flower's simulation engine over Ray.")
    ] = None,
    log: Targets = None,
) -> None:
    """Simulate one strategy, and record it."""
    said = prepare(config, [*(changes or ()), *([f"engine.name={engine}"] if engine else ())], data_dir)
    from adelfl.cli.display import RunDisplay
    from adelfl.config.build import build_data
    from adelfl.export.logs import Logs
    from adelfl.runner import start

    parts = [said.data.factory or said.data.name, said.model.factory or said.model.name, said.strategy.name]
    name = "-".join([*(part.replace(":", ".") for part in parts), f"seed{said.training.seed}"])
    folder = out or _free(Path("runs") / name)
    build_data(said)  # before the display opens: decoding has a bar of its own
    with RunDisplay(str(folder)) as display, Logs([target.value for target in log or ()], folder, warn) as logs:

        def report(row: dict[str, Any]) -> None:
            display.row(row)
            logs.row(row)

        result = start(said, folder, report)
    _say_result(folder, result)
    _say_untrained(said, _contenders_of(folder))


def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an interrupted run.")]) -> None:
    """Continue an interrupted run; it ends as if it had never been interrupted."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from adelfl.cli.display import RunDisplay
    from adelfl.record import RunRecord
    from adelfl.runner import made_elsewhere
    from adelfl.runner import resume as go_on

    if RunRecord.open(run).result is not None:
        typer.echo(f"{run} is finished already.", err=True)
    elif said := made_elsewhere(run):
        typer.echo(f"note: {said}: its last bits may differ from those of an uninterrupted run", err=True)
    with RunDisplay(str(run)) as display:
        result = go_on(run, display.row)
    _say_result(run, result)


def compare(
    config: Config = None,
    strategies: Annotated[
        str, typer.Option(help=r"Names, import paths, or name\[option=value], separated by commas.")
    ] = "adel,adel-paper,salf,drop,wait,heterofl,oracle",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; by default below runs/.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture; by default accuracy.png among the runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is finished already.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the picture, where there is a screen.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Compare strategies on the same data, weights and luck, over several seeds.

    Runs that are finished already are not run again; interrupted ones go on.
    """
    said = prepare(config, changes, data_dir)
    from adelfl.cli.display import CompareDisplay
    from adelfl.report.curves import draw_comparison
    from adelfl.report.style import check_picture, save
    from adelfl.runner import default_folder, jobs_of, parse_strategy, run_all

    words = [word.strip() for word in strategies.split(",") if word.strip()]
    if not words:
        raise ConfigError("--strategies: name at least one")
    meant = [(name, sorted(options.items())) for name, options in map(parse_strategy, words)]
    if any(one in meant[:k] for k, one in enumerate(meant)):
        raise ConfigError("--strategies: each may be named once")
    for change in changes or ():
        if change.startswith(("strategy.", "training.seed")):
            raise ConfigError(
                f"--set {change}: compare takes its strategies and seeds from --strategies and --first-seed"
            )
    folder = out or default_folder(said, Path("runs"))
    todo = jobs_of(said, words, seeds, first_seed, folder, fresh)
    _check(todo)
    _say_versions(todo)
    picture = plot or folder / "accuracy.png"
    if plot is not None:
        check_picture(plot)
    troubles: dict[Job, AdelError] = {}
    finished = []
    with CompareDisplay(words, seeds) as display:
        for job, result in run_all(todo, jobs, display.row):
            if isinstance(result, AdelError):
                troubles[job] = result
                continue
            finished.append(job)
            display.done(job, result)
    contenders = _contenders(words, [job for job in todo if job in finished])
    if contenders:
        _print_comparison(contenders, as_json)
        save(draw_comparison(contenders, _title(said, contenders)), picture)
        if not as_json:
            _say_untrained(said, contenders)
            typer.echo(f"Runs: {folder}   Picture: {picture}")
        if show:
            from adelfl.cli.plan import open_picture

            open_picture(picture)
    for job in (job for job in todo if job in troubles):  # not as they ended, which is a matter of chance
        typer.echo(f"error: {job.strategy}, seed {job.seed}: {troubles[job]}", err=True)
    if troubles:
        raise typer.Exit(2)


def _print_comparison(contenders: list[Contender], as_json: bool) -> None:
    if as_json:
        from adelfl.report.comparison import summary_json

        typer.echo(json.dumps(summary_json(contenders)))
        return
    from adelfl.report.terminal import print_comparison

    print_comparison(contenders)
    for note in dict.fromkeys(note for c in contenders for r in c.records for note in r.about.get("notes", ())):
        typer.echo(f"note: {note}", err=True)


def list_runs(
    root: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where runs are.")] = Path("runs"),
) -> None:
    """List the runs below a folder."""
    from adelfl.record import find_runs
    from adelfl.report.terminal import print_runs

    if root != Path("runs") and not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    print_runs(find_runs(root), root)


def show(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]) -> None:
    """Show what happened in a run."""
    from adelfl.record import RunRecord
    from adelfl.report.terminal import print_run

    try:
        print_run(RunRecord.open(run))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as trouble:
        raise ConfigError(f"{run}: its record is damaged ({type(trouble).__name__}: {trouble})") from None


def _free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3 … that does not exist."""
    found, number = folder, 2
    while found.exists():
        found, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return found


def _say_result(folder: Path, result: dict[str, Any]) -> None:
    from adelfl.record import RunRecord

    for note in RunRecord.open(folder).about.get("notes", ()):
        typer.echo(f"note: {note}", err=True)
    typer.echo(
        f"{folder}: accuracy {result['final_accuracy']:.1%} after {result['rounds']} rounds "
        f"and {result['time']:.4g} virtual seconds (engine {result['engine']})"
    )


def _say_untrained(said: Any, contenders: list[Contender]) -> None:  # noqa: ANN401 - RunFile
    """Print a note if nothing was learned."""
    import numpy as np

    from adelfl.config.build import build_data
    from adelfl.report.comparison import untrained_note

    labels = build_data(said)[0].y_test
    if note := untrained_note(contenders, float(np.bincount(labels).max() / labels.size)):
        typer.echo(f"note: {note}", err=True)


def _contenders_of(folder: Path) -> list[Contender]:
    from adelfl.record import RunRecord
    from adelfl.report.comparison import Contender

    record = RunRecord.open(folder)
    return [Contender(record.about["strategy"], record.about["label"], [record])]


def _check(todo: list[Job]) -> None:
    """Build each strategy's first run before any starts, so that a mistake is said at once and nothing is lost."""
    from adelfl.config.run import RunFile
    from adelfl.runner import rehearsed

    seen = set()
    for job in todo:
        if job.strategy not in seen and (job.fresh or not job.folder.exists()):
            rehearsed(RunFile.model_validate_json(job.config))
        seen.add(job.strategy)


def _say_versions(todo: list[Job]) -> None:
    """Name what is taken over from runs of other versions."""
    from adelfl.runner import made_elsewhere

    found: list[str] = []
    for job in todo:
        if not job.fresh and (job.folder / "run.json").is_file():
            with suppress(AdelError):  # said when its turn comes
                found += filter(None, [made_elsewhere(job.folder)])
    if found:
        more = f", and {len(found) - 1} more like it" if len(found) > 1 else ""
        typer.echo(f"note: {found[0]}{more}; --fresh runs again what is there", err=True)


def _contenders(words: list[str], todo: list[Job]) -> list[Contender]:
    from adelfl.record import RunRecord
    from adelfl.report.comparison import Contender

    found = []
    for word in words:
        records = [RunRecord.open(job.folder) for job in todo if job.strategy == word]
        if records:
            found.append(Contender(word, records[0].about["label"], records))
    return found


def _title(said: Any, contenders: list[Contender]) -> str:  # noqa: ANN401 - RunFile
    t, about = said.training, contenders[0].records[0].about
    paper = not said.latency.model_fields_set and said.fleet.latency is None  # the law that depth is defined by
    time = f"mean depth {t.depth:.0%} at batch {t.batch}" if t.depth and paper else f"{about['budget']:.4g} s"
    who = f"{t.cohort} of {about['devices']} devices a round" if t.cohort else f"{about['devices']} devices"
    return f"{about['data']}, {said.model.factory or said.model.name}, {who}, {about['rounds']} rounds, {time}"


def partition(
    config: Config = None,
    changes: Changes = None,
    save: Annotated[Path | None, typer.Option(help="Write it (.npz); reuse it with data.partition_file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who holds which labels.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Show who holds which training samples; save or draw it."""
    said = prepare(config, changes, data_dir)
    from adelfl.config.build import build_data
    from adelfl.report.style import check_picture

    if plot is not None:
        check_picture(plot)
    dataset, held = build_data(said)
    counts = held.label_counts(dataset.y_train)
    top = (counts.max(axis=1) / counts.sum(axis=1)).mean()
    typer.echo(
        f"{len(held)} devices hold {held.sizes.min()} to {held.sizes.max()} samples of {dataset.name}; "
        f"a device's most frequent label makes up {top:.0%} of its samples on average"
    )
    if save is not None:
        held.save(save)
        typer.echo(f"Partition: {save}")
    if plot is not None:
        from adelfl.report.partition import draw_partition
        from adelfl.report.style import save as save_figure

        save_figure(draw_partition(held, dataset.y_train), plot)
        typer.echo(f"Picture: {plot}")
