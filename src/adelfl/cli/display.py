"""Progress on stderr: bars with the accuracy so far, or a line per run where stderr is no terminal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row, RunResult

if TYPE_CHECKING:
    from adelfl.runner import Job


def _bars(console: Console, width: int) -> Progress:
    return Progress(
        TextColumn("{task.description:<" + str(width) + "}", markup=False),  # salf[average_over=all] is a name
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}", style="cyan", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


class _Display:
    def __init__(self, width: int, again: str) -> None:
        self.again = again
        self.console = Console(stderr=True, markup=False)
        self.bars = _bars(self.console, width)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bars.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            rest = f"; what is recorded stays, and {self.again}" if self.has_begun() else " before the run began"
            self.console.print(f"interrupted{rest}", highlight=False)

    def has_begun(self) -> bool:
        """Return whether there is a record to continue."""
        return True


class RunDisplay(_Display):
    """Progress of one run, by rounds."""

    def __init__(self, name: str) -> None:
        super().__init__(len(name), f"adelfl resume {name} goes on from there")
        self.task = self.bars.add_task(name, total=None, note="")
        self.folder = name

    def has_begun(self) -> bool:
        """Return whether the run's folder exists."""
        return (Path(self.folder) / "run.json").is_file()

    def row(self, row: Row) -> None:
        """Show a round."""
        if row.round == 0 or self.bars.tasks[0].total is None:
            self.bars.update(self.task, total=RunRecord.open(self.folder).info.rounds)
        if row.accuracy is not None:
            self.bars.update(self.task, completed=row.round, note=f"accuracy {row.accuracy:.1%}")


class CompareDisplay(_Display):
    """Progress of a comparison: a bar per strategy over all its seeds."""

    def __init__(self, strategies: list[str], seeds: int) -> None:
        super().__init__(max(len(s) for s in strategies), "the same command goes on from there")
        self.tasks = {s: self.bars.add_task(s, total=float(seeds), note="") for s in strategies}
        self.share: dict[Job, float] = {}
        self.accuracy: dict[Job, float] = {}
        self.budget: dict[Job, float] = {}

    def row(self, job: Job, row: Row) -> None:
        """Show a row of a run that is under way."""
        if row.accuracy is None:
            return
        if job not in self.budget:
            self.budget[job] = RunRecord.open(job.folder).info.budget
        self._update(job, min(0.999, row.time / self.budget[job]), row.accuracy)

    def done(self, job: Job, result: RunResult) -> None:
        """Show that a run ended."""
        accuracy = result.final_accuracy or 0.0
        self._update(job, 1.0, accuracy)
        if not self.console.is_terminal:
            self.console.print(f"{job.strategy} seed {job.seed}: {accuracy:.1%}", highlight=False)

    def _update(self, job: Job, share: float, accuracy: float) -> None:
        self.share[job], self.accuracy[job] = share, accuracy
        mine = [j for j in self.share if j.strategy == job.strategy]
        mean = sum(self.accuracy[j] for j in mine) / len(mine)
        completed = sum(self.share[j] for j in mine)
        self.bars.update(self.tasks[job.strategy], completed=completed, note=f"accuracy {mean:6.1%}")


class StudyDisplay(_Display):
    """Progress of a study: a bar per stage, by runs."""

    def __init__(self, name: str) -> None:
        super().__init__(len(name) + len(" learning rates"), "the same command goes on from there")
        self.name = name
        self.task: Any = None
        self.ended = 0

    def stage(self, name: str, runs: int) -> None:
        """Begin a stage."""
        self.task = self.bars.add_task(f"{self.name} {name}", total=float(runs), note="")
        self.ended, self.total, self.stage_name = 0, runs, name

    def row(self, job: Job, row: Row) -> None:
        """Show which run is under way."""
        if row.accuracy is not None:
            self.bars.update(self.task, note=f"{self._what(job)} {row.accuracy:.1%}")

    def done(self, job: Job, accuracy: float) -> None:
        """Show that a run ended."""
        self.ended += 1
        note = f"{self._what(job)} {'broke down' if math.isnan(accuracy) else f'{accuracy:.1%}'}"
        self.bars.update(self.task, completed=self.ended, note=note)
        if not self.console.is_terminal:
            self.console.print(f"{self.name} {self.stage_name} {self.ended}/{self.total}: {note}", highlight=False)

    def _what(self, job: Job) -> str:
        return f"{job.folder.parent.parent.name} {job.folder.name}"
