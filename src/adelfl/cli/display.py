"""Progress on stderr: bars with the accuracy so far, or a line per finished run if stderr is not a terminal."""

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


class Display:
    """Progress of runs: a bar per strategy of a comparison, or per stage of a study.

    ``folder`` is that of a single run, for advice after an interruption.
    """

    def __init__(self, names: Sequence[str], prefix: str = "", folder: Path | None = None) -> None:
        self.prefix, self.folder = prefix, folder
        self.console = Console(stderr=True, markup=False, highlight=False)
        width = len(prefix) + max(map(len, names))
        self.bars = Progress(
            TextColumn("{task.description:<" + str(width) + "}", markup=False),  # salf[average_over=all] is a name
            BarColumn(bar_width=32),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}", style="cyan", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.shares: dict[TaskID, dict[RunJob, float]] = {}
        self.budgets: dict[RunJob, float] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.bars.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            again = "the same command" if self.folder is None else f"adelfl resume {self.folder}"
            begun = self.folder is None or self.folder.exists()
            advice = f"{again} continues from the last checkpoints" if begun else "nothing was recorded; start it again"
            self.console.print(f"interrupted; {advice}")

    def stage(self, name: str, runs: int) -> None:
        """Add a bar for the jobs of the strategy ``name``, or for all jobs until the next stage begins."""
        self.newest = self.tasks[name] = self.bars.add_task(f"{self.prefix}{name}", total=float(runs), note="")
        self.shares[self.newest] = {}

    def row(self, job: RunJob, row: Row) -> None:
        """Show a row of a run that is in progress."""
        if row.accuracy is None:
            return
        if job not in self.budgets:
            self.budgets[job] = RunRecord.open(job.folder).info.budget
        self._update(job, min(0.999, row.time / self.budgets[job]), row.accuracy)

    def done(self, job: RunJob, accuracy: float | None) -> None:
        """Show that a run ended; its accuracy is NaN if the run broke down."""
        task, note = self._update(job, 1.0, accuracy or 0.0)
        if not self.console.is_terminal:
            finished = sum(share == 1.0 for share in self.shares[task].values())
            self.console.print(f"{self.prefix}{note} ({finished} of {self.bars.tasks[task].total:.0f})")

    def _update(self, job: RunJob, share: float, accuracy: float) -> tuple[TaskID, str]:
        task = self.tasks.get(job.strategy, self.newest)
        self.shares[task][job] = share
        note = f"{job.strategy} seed {job.seed}: {'broke down' if math.isnan(accuracy) else f'{accuracy:.1%}'}"
        self.bars.update(task, completed=sum(self.shares[task].values()), note=note)
        return task, note
