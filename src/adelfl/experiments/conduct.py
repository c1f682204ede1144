"""Run a study: choose each strategy's learning rate on validation data, then run it on the seeds.

Every run has its own record, so an interrupted study continues where it stopped. Runs in earlier results are not
repeated, so a long study can be split among machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from adelfl.errors import AdelError, InfeasibleBudgetError
from adelfl.experiments.results import CHANCE, CURVE, StudyResults, StudyRun, Trial
from adelfl.experiments.study import FIRST_TUNING_SEED, Cell, Study
from adelfl.pools import run_all
from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row
from adelfl.report.comparison import curve_of
from adelfl.runner import RunJob, file_name, parse_strategy

Point = tuple[float, str]
"""A learning rate, and the other chosen settings."""

_MOMENTS = {"at_25": 0.25, "at_50": 0.5, "at_60": 0.6, "at_75": 0.75, "at_100": 1.0}


@dataclass(frozen=True)
class Setup:
    """Number of runs, and where they are computed and recorded."""

    folder: Path  # of the runs
    seeds: int | None = None  # None for the study's number
    first_seed: int = 0
    workers: int = 1  # runs at a time
    more: tuple[str, ...] = ()  # changes to every setting, such as ``engine.device=cuda``
    earlier: StudyResults | None = field(default=None, repr=False)  # results that are not computed again
    on: str = "here"  # or "ray"
    cells: tuple[str, ...] = ()  # keys of the cells to run; empty for all


class Watch(Protocol):
    """Progress display of a study: begins a stage with a number of runs, shows rows and final accuracies (or NaN)."""

    def stage(self, name: str, runs: int) -> None: ...  # noqa: D102
    def row(self, job: RunJob, row: Row) -> None: ...  # noqa: D102
    def done(self, job: RunJob, accuracy: float) -> None: ...  # noqa: D102


def conduct(
    study: Study, setup: Setup, watch: Watch, keep: Callable[[StudyResults], object] | None = None
) -> StudyResults:
    """Run what is missing, and return the results; ``keep`` is called with the results so far after every test run."""
    trials = _choose(study, setup, watch)
    by_place: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        by_place.setdefault((trial.cell, trial.strategy), []).append(trial)
    places = _places(study, setup)
    best = {(cell, word): _best_first(by_place[cell.rates_of or cell.key, word])[0] for cell, word in places}
    seeds = {cell: setup.seeds or cell.seeds or study.seeds for cell in study.cells}
    wanted = [(cell, word, setup.first_seed + k) for cell, word in places for k in range(seeds[cell])]
    earlier = () if setup.earlier is None else setup.earlier.runs
    asked = {(cell.key, word, seed) for cell, word, seed in wanted}
    others = [
        run
        for run in earlier
        if setup.cells and run.cell not in setup.cells and (run.cell, run.strategy, run.seed) not in asked
    ]
    known = {(run.cell, run.strategy, run.seed, run.rate, run.choice): run for run in earlier}
    runs: dict[tuple[Cell, str, int], StudyRun] = {}
    jobs: dict[RunJob, tuple[Cell, str, int]] = {}
    for cell, word, seed in sorted(wanted, key=lambda key: key[2]):  # every strategy on the first seed comes first
        point = best[cell, word]
        if (run := known.get((cell.key, word, seed, *point))) is not None:
            runs[cell, word, seed] = run
        else:
            jobs[_job(study, setup, cell, word, point, seed)] = (cell, word, seed)
    folders = {(cell.key, word, seed): job.folder for job, (cell, word, seed) in jobs.items()}

    def results() -> StudyResults:
        done = [runs[key] for key in wanted if key in runs]
        return StudyResults(study, (*done, *others), tuple(trials), folders)

    for job, _ in _run(list(jobs), setup, "runs", watch):
        cell, word, seed = jobs[job]
        runs[cell, word, seed] = _summed_up(cell, word, seed, best[cell, word], RunRecord(job.folder))
        if keep is not None:
            keep(results())
    return results()


def _places(study: Study, setup: Setup) -> list[tuple[Cell, str]]:
    """Return the pairs of cell and strategy to run, in the study's order; a shared oracle runs in its own cell."""
    cells = [cell for cell in study.cells if not setup.cells or cell.key in setup.cells]
    words = {cell: (*study.strategies_of(cell), *(("oracle",) if cell.oracle_of else ())) for cell in cells}
    return list(dict.fromkeys((study.home(cell, word), word) for cell in cells for word in words[cell]))


def _choose(study: Study, setup: Setup, watch: Watch) -> list[Trial]:
    """Try all rates, then other choices, on the first tuning seed, and the best of them on the other tuning seeds."""
    by_key = {cell.key: cell for cell in study.cells}
    places = list(dict.fromkeys((by_key[cell.rates_of or cell.key], word) for cell, word in _places(study, setup)))
    known = () if setup.earlier is None else setup.earlier.trials
    earlier = {(t.cell, t.strategy, t.point, t.seed): t for t in known}
    trials: dict[tuple[Cell, str, Point, int], Trial] = {}

    def try_out(points: dict[tuple[Cell, str], list[Point]], seeds: Iterable[int]) -> None:
        wanted = [(*place, point, seed) for place, entered in points.items() for point in entered for seed in seeds]
        trials.update({key: old for key in wanted if (old := earlier.get((key[0].key, *key[1:])))})
        jobs = {key: _job(study, setup, *key, tuning=True) for key in wanted if key not in trials}
        accuracy = {job.folder: final for job, final in _run(list(jobs.values()), setup, "learning rates", watch)}
        for (cell, word, (rate, choice), seed), job in jobs.items():
            trial = Trial(cell.key, word, rate, seed, accuracy[job.folder], choice)
            trials[cell, word, trial.point, seed] = trial

    def best_first() -> dict[tuple[Cell, str], list[Point]]:
        return {place: _best_first([t for key, t in trials.items() if key[:2] == place]) for place in places}

    first, *others = study.choices or (lambda *_: ("",),)
    try_out(
        {(cell, word): list(product(study.rates, first(cell, word, ""))) for cell, word in places}, [FIRST_TUNING_SEED]
    )
    for _ in range(study.wider):
        try_out(
            {place: beyond for place, points in best_first().items() if (beyond := _beyond(points))},
            [FIRST_TUNING_SEED],
        )
    for alternatives in others:
        entered = {}
        for (cell, word), ((rate, choice), *_) in best_first().items():
            lower = max((r for r in study.rates if r < rate), default=rate)
            entered[cell, word] = list(product(sorted({lower, rate}), alternatives(cell, word, choice)))
        try_out(entered, [FIRST_TUNING_SEED])
    finalists = {place: points[: study.finalists] for place, points in best_first().items()}
    try_out(finalists, range(FIRST_TUNING_SEED + 1, FIRST_TUNING_SEED + study.tuning_seeds))
    order = {(cell.key, word): i for i, (cell, word) in enumerate(places)}
    kept = [t for t in known if setup.cells and (t.cell, t.strategy) not in order]
    return [*sorted(trials.values(), key=lambda t: (order[t.cell, t.strategy], t.choice, t.rate, t.seed)), *kept]


def _beyond(best_first: list[Point]) -> list[Point]:
    """Return the next rate to try if the best one is the smallest or largest so far."""
    best, choice = best_first[0]
    rates = [rate for rate, other in best_first if other == choice]
    if best == min(rates):
        return [(best / 2, choice)]
    return [(best * 2, choice)] if best == max(rates) else []


def _best_first(trials: list[Trial]) -> list[Point]:
    """Sort rates and choices by mean accuracy, best first, among those tried on the most seeds.

    A run that broke down has accuracy 0. Of equal accuracies, the smaller rate comes first.
    """
    points = sorted({t.point for t in trials})
    accuracies = {point: np.nan_to_num([t.accuracy for t in trials if t.point == point]) for point in points}
    most = max(map(len, accuracies.values()))
    finalists = {point: float(values.mean()) for point, values in accuracies.items() if len(values) == most}
    return sorted(finalists, key=finalists.__getitem__, reverse=True)


def _job(study: Study, setup: Setup, cell: Cell, word: str, point: Point, seed: int, *, tuning: bool = False) -> RunJob:
    rate, choice = point
    more = (*setup.more, *study.tuning) if tuning else setup.more
    name, options = parse_strategy(word)
    run_file = study.setting(cell, rate, *more, choice=choice)
    run_file = run_file.with_strategy(name, run_file.strategy.options | options, seed)
    place = setup.folder / cell.key / ("tuning" if tuning else "runs")
    folder = place / file_name(f"{file_name(word)}-rate{rate:g}-{choice}-seed{seed}".replace("--", "-"))
    return RunJob(word, seed, run_file.model_dump_json(), folder)


def _run(jobs: list[RunJob], setup: Setup, stage: str, watch: Watch) -> Iterator[tuple[RunJob, float]]:
    """Yield each job with its final accuracy; NaN for a run that broke down. Any other error ends the study."""
    if not jobs:
        return
    from adelfl.simulation import TrainingError

    watch.stage(stage, len(jobs))
    for job, result in run_all(jobs, setup.workers, watch.row, setup.on):
        if not isinstance(result, AdelError):
            accuracy = math.nan if result.final_accuracy is None else result.final_accuracy
        elif isinstance(result, InfeasibleBudgetError | TrainingError):
            accuracy = math.nan
        else:
            raise result
        watch.done(job, accuracy)
        yield job, accuracy


def _summed_up(cell: Cell, word: str, seed: int, point: Point, record: RunRecord) -> StudyRun:
    """Return the row of a run; if it broke down, its accuracy is that of guessing."""
    info = record.info if (record.folder / "run.json").is_file() else None  # None if no plan exists for the fleet
    result = record.result
    deadlines = [1.0] if info is None else info.deadlines or [info.uniform_deadline]
    moments, curve = np.full(len(_MOMENTS), CHANCE), np.full(CURVE.size, CHANCE)
    if result is not None:
        moments, curve = (curve_of(record, "accuracy", shares) for shares in (np.array([*_MOMENTS.values()]), CURVE))
    spent = sum(row.computing or 0.0 for row in record.rounds)
    time = 1.0 if info is None else info.budget * (info.config["training"]["cohort"] or info.devices)
    accuracies: dict[str, Any] = dict(zip(_MOMENTS, moments.tolist(), strict=True))
    return StudyRun(
        cell=cell.key,
        strategy=word,
        label=word if info is None else info.label,
        seed=seed,
        rate=point[0],
        final=CHANCE if result is None or result.final_accuracy is None else result.final_accuracy,
        **accuracies,
        depth=0.0 if result is None else result.depth,
        rounds=len(record.rounds) if result is None else result.rounds,
        first_deadline=float(deadlines[0]),
        last_deadline=float(deadlines[-1]),
        broke_down=result is None,
        curve=" ".join(f"{value:.4g}" for value in curve),
        choice=point[1],
        counted=spent / time,
        slowest=math.nan if result is None or result.slowest_accuracy is None else result.slowest_accuracy,
    )
