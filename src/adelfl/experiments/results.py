"""Results of a study: a row per run, paired differences between strategies, and verdicts on claims."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter
from scipy import stats

from adelfl.array_types import Floats
from adelfl.atomic import write_output
from adelfl.errors import ConfigError
from adelfl.experiments.study import Cell, Claim, Study
from adelfl.records.reader import RunRecord, find_runs
from adelfl.report.comparison import Contender, standard_error

CHANCE = 0.1
"""Accuracy assigned to a run that broke down: the accuracy of guessing one of ten labels."""

CURVE = np.linspace(0.0, 1.0, 41)
"""Shares of the budget at which the accuracy of a run is stored, for figures."""

TESTED = 0.8
"""Share of the paper's accuracy that the oracle must reach for a claim to be tested."""

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class StudyRun:
    """One run on test data. Times are shares of the budget."""

    cell: str
    strategy: str
    label: str
    seed: int
    rate: float
    final: float
    at_25: float
    at_50: float
    at_60: float
    at_75: float
    at_100: float
    depth: float
    rounds: int
    first_deadline: float
    last_deadline: float
    broke_down: bool
    curve: str = ""
    choice: str = ""
    counted: float = math.nan  # share of the devices' time, or of the cohort's, in which merged updates were computed
    slowest: float = math.nan  # final accuracy on the classes of the slowest tenth of the devices


@dataclass(frozen=True)
class Trial:
    """One run on validation data, to choose a learning rate and other settings; NaN accuracy if it broke down."""

    cell: str
    strategy: str
    rate: float
    seed: int
    accuracy: float
    choice: str = ""

    @property
    def point(self) -> tuple[float, str]:
        """The learning rate, and the other chosen settings."""
        return self.rate, self.choice


class Final(NamedTuple):
    """Final accuracy of a strategy in a cell, in percent, over its seeds."""

    label: str
    mean: float
    error: float
    rate: float
    broke: int  # number of runs that broke down
    median: float
    slowest: float  # mean accuracy on the classes of the slowest tenth of the devices; NaN if a run does not state it


@dataclass(frozen=True)
class Difference:
    """Difference of two strategies in points of accuracy, over the seeds that both have."""

    mean: float
    error: float
    seeds: int
    median: float = math.nan


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper in one cell, with our result."""

    claim: str
    cell: str
    paper: float | None
    ours: float
    error: float
    verdict: str
    median: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``--json``."""
        claim = self.claim if self.paper is None else f"{self.claim} ({self.paper:+g} points)"
        error = None if math.isnan(self.error) else self.error
        return {"paper": claim, "cell": self.cell, "ours": self.ours, "se": error, "verdict": self.verdict}


def judge(claimed: float | None, ours: Difference) -> str:
    """Judge whether a difference agrees with the paper's, with 95 % confidence."""
    if ours.seeds < 2:
        return "not judged (one seed)"
    margin = float(stats.t.ppf((1 + _CONFIDENCE) / 2, ours.seeds - 1)) * ours.error  # half of Student's interval
    low, high = ours.mean - margin, ours.mean + margin
    if low > 0:
        return "holds" if claimed is None or high >= claimed else "holds, but smaller"
    if high < 0:
        return "does not hold: the reverse"
    if claimed is not None and high < claimed:
        return "does not hold: no such difference"
    return "not seen: no clear difference"


@dataclass(frozen=True, eq=False)
class StudyResults:
    """Runs and trials of a study."""

    study: Study
    runs: tuple[StudyRun, ...]
    trials: tuple[Trial, ...] = ()
    folders: Mapping[tuple[str, str, int], Path] = field(default_factory=dict)

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], list[StudyRun]]:
        places: dict[tuple[str, str], list[StudyRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.seed):
            places.setdefault((run.cell, run.strategy), []).append(run)
        return places

    @cached_property
    def cells(self) -> list[Cell]:
        """Cells with runs, besides those of a shared oracle."""
        study = self.study
        return [c for c in study.cells if any(self.of(c, word) for word in study.strategies_of(c) if word != "oracle")]

    def of(self, cell: Cell, strategy: str) -> list[StudyRun]:
        """Return the runs of a strategy in a cell, by seed; none if there are none yet."""
        return self._by_place.get((self.study.home(cell, strategy).key, strategy), [])

    def accuracy(self, cell: Cell, strategy: str, at: str = "final") -> Floats:
        """Return the accuracy in percent, one per seed."""
        key = at if at == "final" else f"at_{at.rstrip('%')}"
        return np.array([100.0 * getattr(run, key) for run in self.of(cell, strategy)])

    def reached(self, cell: Cell, strategy: str, level: float) -> Floats:
        """Return the share of the budget at which each seed first reaches ``level`` %; NaN if it never does."""
        curves = np.array([[100.0 * float(value) for value in run.curve.split()] for run in self.of(cell, strategy)])
        above = curves >= level
        return np.where(above.any(axis=1), CURVE[above.argmax(axis=1)], np.nan)

    def difference(self, cell: Cell, better: str, worse: str, at: str = "final") -> Difference:
        """Return the paired difference in points between two strategies, over common seeds."""
        seeds = self._common_seeds(cell, better, worse)
        high, low = (
            self.accuracy(cell, name, at)[[run.seed in seeds for run in self.of(cell, name)]]
            for name in (better, worse)
        )
        gap = high - low
        return Difference(float(gap.mean()), standard_error(gap), gap.size, float(np.median(gap)))

    def _common_seeds(self, cell: Cell, *strategies: str) -> set[int]:
        return set.intersection(*({run.seed for run in self.of(cell, strategy)} for strategy in strategies))

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on every claim in every cell it applies to."""
        claims, cells = self.study.claims, self.study.cells
        pairs = [(claim, cell) for claim in claims for cell in cells if not claim.cells or cell.key in claim.cells]
        tested = [(claim, cell) for claim, cell in pairs if self._common_seeds(cell, claim.better, claim.worse)]
        return [self._verdict(claim, cell) for claim, cell in tested] + (
            self._deadlines() if self.study.falling else []
        )

    def _verdict(self, claim: Claim, cell: Cell) -> Verdict:
        ours = self.difference(cell, claim.better, claim.worse, claim.at)
        sentence = f"{claim.sentence} [{claim.better} − {claim.worse}]"
        word = self._untested(claim, cell) or judge(claim.points, ours)
        return Verdict(sentence, cell.key, claim.points, ours.mean, ours.error, word, ours.median)

    def _untested(self, claim: Claim, cell: Cell) -> str:
        """Return why a claim cannot be tested in a cell; empty if it can."""
        if claim.reported is None:
            return ""
        oracle = float(np.mean(self.accuracy(cell, "oracle"))) if self.of(cell, "oracle") else math.nan
        if oracle >= TESTED * claim.reported:
            return ""
        return f"not tested: the oracle ends at {oracle:.0f} %, below 80 % of the paper's {claim.reported:g} %"

    def _deadlines(self) -> list[Verdict]:
        verdicts = []
        for cell in self.study.cells:
            ratio = np.array([run.first_deadline / run.last_deadline for run in self.of(cell, "adel-paper")])
            if not ratio.size:
                continue
            falls = ratio > 1 + 1e-9
            word = (
                "holds" if falls.all() else "holds for some fleets" if falls.any() else "does not hold: they are equal"
            )
            sentence = "planned deadlines decrease over the rounds [first / last deadline]"
            verdicts.append(Verdict(sentence, cell.key, None, float(ratio.mean()), standard_error(ratio), word))
        return verdicts

    def to_json(self) -> dict[str, Any]:
        """Return what ``adelfl reproduce --json`` prints; with several cells, names are cell/strategy."""
        strategies = {}
        for (key, strategy), runs in self._by_place.items():
            name = strategy if len(self.study.cells) == 1 else f"{key}/{strategy}"
            strategies[name] = {
                "final_accuracy": [run.final for run in runs],
                "seeds": [run.seed for run in runs],
                "rate": runs[0].rate,
                "depth": float(np.mean([run.depth for run in runs])),
                "rounds": float(np.mean([run.rounds for run in runs])),
                "broke_down": sum(run.broke_down for run in runs),
            }
        return {"claims": [v.to_json() for v in self.verdicts()], "strategies": strategies}

    @property
    def core_minutes(self) -> float:
        """Computing time of all runs on this machine, trials included."""
        roots = {folder.parents[2] for folder in self.folders.values()}
        return sum(record.computing_seconds for root in roots for record in find_runs(root)) / 60.0

    def contenders(self) -> list[tuple[str, list[Contender]]]:
        """Return each cell's title and strategies, for a figure."""
        return [
            (cell.title, [self._contender(cell, word) for word in self.study.strategies if self.of(cell, word)])
            for cell in self.cells
        ]

    def _contender(self, cell: Cell, word: str) -> Contender:
        """Read the records of a strategy's runs, or use the stored curves where there are no records."""
        runs, home = self.of(cell, word), self.study.home(cell, word).key
        folders = [self.folders.get((home, word, run.seed)) for run in runs]
        if all(folders):
            records = [RunRecord(folder) for folder in folders if folder is not None]
            return Contender(word, runs[0].label, [record for record in records if len(record.rounds) > 0])
        curves = np.array([[float(value) for value in run.curve.split()] for run in runs])
        return Contender(word, runs[0].label, [], curves=curves)

    def summary(self, cell: Cell, strategy: str) -> Final:
        """Return the final accuracy of a strategy in a cell; its mean is NaN where it does not run."""
        runs, accuracy = self.of(cell, strategy), self.accuracy(cell, strategy)
        label = self.study.words.get(strategy) or self._labels.get(strategy, strategy)
        if not runs:
            return Final(label, math.nan, math.nan, math.nan, 0, math.nan, math.nan)
        broke = sum(run.broke_down for run in runs)
        error, median = standard_error(accuracy), float(np.median(accuracy))
        slowest = 100.0 * float(np.mean([run.slowest for run in runs]))
        return Final(label, float(accuracy.mean()), error, runs[0].rate, broke, median, slowest)

    @cached_property
    def _labels(self) -> dict[str, str]:
        return {run.strategy: run.label for run in self.runs}

    def tables(self) -> list[tuple[str, list[Final]]]:
        """Return the title of each cell, and a row for each strategy that runs in the study."""
        shown = [strategy for strategy in self.study.strategies if strategy in self._labels]
        return [(cell.title, [self.summary(cell, strategy) for strategy in shown]) for cell in self.cells]

    def write(self, stem: Path) -> None:
        """Write ``STEM.csv`` (runs) and ``STEM-rates.csv`` (trials)."""
        _write_rows(stem.with_name(f"{stem.name}.csv"), StudyRun, self.runs)
        _write_rows(stem.with_name(f"{stem.name}-rates.csv"), Trial, self.trials)

    @classmethod
    def read(cls, study: Study, stem: Path) -> StudyResults:
        """Read what :meth:`write` wrote."""
        runs = _read_rows(stem.with_name(f"{stem.name}.csv"), StudyRun)
        trials = _read_rows(stem.with_name(f"{stem.name}-rates.csv"), Trial)
        return cls(study, tuple(runs), tuple(trials))


def _write_rows(path: Path, kind: type[Any], rows: Iterable[Any]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [f.name for f in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _in_csv(name, value) for name, value in asdict(row).items()})
    write_output(path, text.getvalue())


def _in_csv(name: str, value: object) -> object:
    """Return a value of a table with six digits; a rate with all of them, since it identifies runs."""
    if not isinstance(value, float):
        return value
    return str(value).removesuffix(".0") if name == "rate" else f"{value:.6g}"


def _read_rows(path: Path, kind: type[Any]) -> list[Any]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return TypeAdapter(list[kind]).validate_python(list(csv.DictReader(file)))  # type: ignore[valid-type]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a table of results ({error})") from None
