"""Description of a study: settings, strategies, and claims to test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from adelfl.config.run import RunFile, load_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from adelfl.experiments.results import StudyResults

RATES = (0.05, 0.1, 0.5, 1.0)
"""Values of η_0 in the paper; the best one on validation data is chosen for each strategy."""

FIRST_TUNING_SEED = 1000
"""First seed of the runs that choose learning rates, which differ from the seeds of the reported runs."""


@dataclass(frozen=True)
class Cell:
    """One setting of a study."""

    key: str  # name in files
    title: str  # name in reports
    changes: tuple[str, ...]  # ``section.key=value`` pairs in addition to the study's own
    regime: str = ""  # "stated" for a setting that the paper states, "inferred" for one inferred from its results
    rates_of: str = ""  # key of a similar cell whose learning rates are used; empty if the cell chooses its own
    strategies: tuple[str, ...] | None = None  # None for all of the study's
    seeds: int | None = None  # None for the study's
    oracle_of: str = ""  # key of a cell with the same oracle, whose runs are used; empty for its own


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that one strategy ends above another."""

    sentence: str
    better: str
    worse: str
    points: float | None = None  # difference in points of accuracy, if the paper gives one
    at: str = "final"  # "final", or a share of the budget such as "60%"
    cells: tuple[str, ...] = ()  # keys of cells in which it is tested; empty for every cell that runs both strategies
    # Final accuracy in percent that the paper reports for the better strategy. The claim is tested only where the
    # oracle reaches 80 % of it.
    reported: float | None = None


@dataclass(frozen=True)
class Study:
    """A study: one figure or table."""

    name: str
    title: str
    source: str  # place in the paper, or "ours"
    changes: tuple[str, ...]  # setting that all cells share
    cells: tuple[Cell, ...]
    strategies: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    seeds: int = 5
    tuning: tuple[str, ...] = ()  # changes for the runs that choose a learning rate
    tuning_seeds: int = 1
    rates: tuple[float, ...] = RATES  # initial learning rates to choose from
    # Further choices, one after the other: functions of a cell, a strategy and the best choice so far that return
    # alternatives to it. Those of the first are tried at all rates, the others at the best rate and the next lower one.
    # An alternative consists of ``section.key=value`` pairs with blanks between them.
    choices: tuple[Callable[[Cell, str, str], tuple[str, ...]], ...] = ()
    wider: int = 0  # number of further rates to try, each half or twice the last, while the best is at an end
    finalists: int | None = None  # number of rates that are tried on all tuning seeds; None for all
    falling: bool = False  # whether the paper shows deadlines that decrease over the rounds
    drawing: Literal["curves", "dots"] | None = "curves"  # accuracy against time, or at the end, in NAME.png
    # Draws further figures, by file name, from the results and the folder of all results.
    pictures: Callable[[StudyResults, Path], dict[str, Figure]] | None = None
    words: Mapping[str, str] = field(default_factory=dict)  # names of strategies in reports, if not their labels
    gap: tuple[str, ...] = ()  # lower and upper strategy of a gap; tables show which share of it others close

    def strategies_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the strategies of a cell, in the study's order."""
        return self.strategies if cell.strategies is None else cell.strategies

    def home(self, cell: Cell, strategy: str) -> Cell:
        """Return the cell whose runs of a strategy are used in ``cell``; it is another one for a shared oracle."""
        if strategy != "oracle" or not cell.oracle_of:
            return cell
        return next(other for other in self.cells if other.key == cell.oracle_of)

    def setting(self, cell: Cell, rate: float, *more: str, choice: str = "") -> RunFile:
        """Return the configuration of a cell at an initial learning rate, with further changes ``more``."""
        own = [*self.changes, *cell.changes, f"learning_rate.initial={rate}", *choice.split()]
        return load_run(None, [*own, *more])
