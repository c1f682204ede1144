"""What an experiment of the paper is: settings, strategies, and claims that can turn out wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from adelfl.config.run import RunFile, load_run

RATES = (0.05, 0.1, 0.5, 1.0)
"""The paper's choice of η_0; each strategy gets the best of them on validation data."""

FIRST_TUNING_SEED = 1000
"""Learning rates are chosen on luck that no reported run meets."""


@dataclass(frozen=True)
class Cell:
    """One setting of a study.

    Attributes
    ----------
    key : str
        Its name in files.
    title : str
        Its name for readers.
    changes : tuple of str
        ``section.key=value`` pairs on top of the study's own.
    paper : bool
        Whether the setting is one of the paper's.
    rates_of : str
        Key of a similar cell whose learning rates are taken over; empty if it chooses its own.
    rate : float or None
        The learning rate of everybody, where none is to be chosen.
    strategies : tuple of str or None
        Strategies that run in this cell; None for all of the study's.
    seeds : int or None
        Number of seeds; None for the study's.
    oracle_of : str
        Key of a cell with the same oracle, whose runs are used here; empty if the cell runs its own.
        The oracle does not depend on the budget.
    """

    key: str
    title: str
    changes: tuple[str, ...]
    paper: bool = False
    rates_of: str = ""
    rate: float | None = None
    strategies: tuple[str, ...] | None = None
    seeds: int | None = None
    oracle_of: str = ""


@dataclass(frozen=True)
class Claim:
    """The paper says that one strategy ends above another.

    Attributes
    ----------
    sentence : str
        What the paper says.
    better, worse : str
        Strategies, as the user writes them.
    points : float or None
        By how many points of accuracy, if the paper says.
    at : str
        "final", or a share of the budget such as "60%".
    cells : tuple of str
        Where it is looked at; empty for every cell that runs both strategies.
    reported : float or None
        Final accuracy in percent that the paper reports for the better one. The claim is tested only where the
        oracle reaches 80 % of it.
    """

    sentence: str
    better: str
    worse: str
    points: float | None = None
    at: str = "final"
    cells: tuple[str, ...] = ()
    reported: float | None = None


@dataclass(frozen=True)
class Study:
    """One figure or table.

    Attributes
    ----------
    name, title, source : str
        What the command line calls it, what readers call it, and where in the paper it is.
    changes : tuple of str
        The setting that all cells share.
    cells : tuple of Cell
    strategies : tuple of str
        As the user writes them.
    claims : tuple of Claim
    seeds : int
        How many runs of each, by default.
    tuning : tuple of str
        Changes for runs that only choose a learning rate.
    tuning_seeds : int
        How many runs of each rate there are to choose by.
    rates : tuple of float
        Initial learning rates to choose from.
    wider : int
        How many further rates, each half or twice the last, are tried where the best one is at the edge of those.
    finalists : int or None
        How many rates, the best on the first tuning seed, are tried on the others; None: all of them.
    falling : bool
        Whether the paper shows deadlines that fall over the rounds.
    drawing : {"curves", "dots", "map"}
    words : mapping of str to str
        What to call strategies, where their own labels say too little.
    gap : tuple of str
        Two strategies, the lower and the upper end of a gap; tables then tell how much of it the others close.
    headline : tuple of str
        Keys of cells that get a picture of their own, ``NAME-headline.png``.
    """

    name: str
    title: str
    source: str
    changes: tuple[str, ...]
    cells: tuple[Cell, ...]
    strategies: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    seeds: int = 5
    tuning: tuple[str, ...] = ()
    tuning_seeds: int = 1
    rates: tuple[float, ...] = RATES
    wider: int = 0
    finalists: int | None = None
    falling: bool = False
    drawing: Literal["curves", "dots", "map"] = "curves"
    words: Mapping[str, str] = field(default_factory=dict)
    gap: tuple[str, ...] = ()
    headline: tuple[str, ...] = ()

    def strategies_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the strategies of a cell, in the study's order."""
        return self.strategies if cell.strategies is None else cell.strategies

    def home(self, cell: Cell, strategy: str) -> Cell:
        """Return the cell whose runs stand for a strategy in ``cell``: another one if it shares its oracle."""
        if strategy != "oracle" or not cell.oracle_of:
            return cell
        return next(other for other in self.cells if other.key == cell.oracle_of)

    def setting(self, cell: Cell, rate: float, *more: str) -> RunFile:
        """The experiment of a cell at an initial learning rate; ``more`` is meant for all cells."""
        return load_run(None, [*self.changes, *cell.changes, f"learning_rate.initial={rate}"], more)
