"""Progress on stderr: bars with the accuracy so far, or a line per run where stderr is no terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adelfl.records.reader import RunRecord
from adelfl.records.schema import Row

if TYPE_CHECKING:
    from adelfl.runner import RunJob


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


class JobsDisplay(_Display):
    """Progress of many runs: a bar per strategy of a comparison, or per stage of a study."""

    def __init__(self, names: Sequence[str], prefix: str = "") -> None:
        super().__init__(len(prefix) + max(map(len, names)), "the same command goes on from there")
        self.prefix = prefix
        self.tasks: dict[str, TaskID] = {}
        self.shares: dict[TaskID, dict[RunJob, float]] = {}
        self.budgets: dict[RunJob, float] = {}

    def stage(self, name: str, runs: int) -> None:
        """Add a bar; it shows the jobs of the strategy ``name``, or all jobs until the next one."""
        self.newest = self.tasks[name] = self.bars.add_task(f"{self.prefix}{name}", total=float(runs), note="")
        self.shares[self.newest] = {}

    def row(self, job: RunJob, row: Row) -> None:
        """Show a row of a run that is under way."""
        if row.accuracy is None:
            return
        if job not in self.budgets:
            self.budgets[job] = RunRecord.open(job.folder).info.budget
        self._update(job, min(0.999, row.time / self.budgets[job]), row.accuracy)

    def done(self, job: RunJob, accuracy: float | None) -> None:
        """Show that a run ended; its accuracy is NaN if it broke down."""
        task, note = self._update(job, 1.0, accuracy or 0.0)
        if not self.console.is_terminal:
            ended = sum(share == 1.0 for share in self.shares[task].values())
            self.console.print(f"{self.prefix}{note} ({ended} of {self.bars.tasks[task].total:.0f})", highlight=False)

    def _update(self, job: RunJob, share: float, accuracy: float) -> tuple[TaskID, str]:
        task = self.tasks.get(job.strategy, self.newest)
        self.shares[task][job] = share
        note = f"{job.strategy} seed {job.seed}: {'broke down' if math.isnan(accuracy) else f'{accuracy:.1%}'}"
        self.bars.update(task, completed=sum(self.shares[task].values()), note=note)
        return task, note
