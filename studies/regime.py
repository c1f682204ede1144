"""Infer the mean depth at which the paper's CIFAR-10 results were measured, from its baselines only.

The paper states that clients reach 85 % of the network's depth, but gives neither P_u, S nor R. The accuracies of
Drop-Stragglers, FedAvg and SALF depend on the depth, so it can be inferred from them. Let x be the seconds of a round
at the largest budget, and a_b(x) the accuracy of baseline b at deadline x relative to the oracle's, interpolated
between the cells of the study. Then

    misfit(x)² = mean over baselines b and budgets T of (a_b(x T/T_largest) − paper_b(T)/ceiling)²

and x is the only parameter. ADEL-FL's accuracy is not part of the sum, so its accuracy at the best x is a prediction.
The paper has no oracle; its best accuracy is the ceiling, and the fit is repeated with other ceilings to show their
influence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from adelfl.array_types import Floats
from adelfl.errors import ConfigError
from adelfl.experiments.results import StudyResults
from adelfl.experiments.study import Cell

BASELINES = ("salf", "drop", "wait")
CEILINGS = (66.0, 69.0, 75.0, 80.0, 85.0)
"""Possible accuracies of the paper's oracle: its best numbers in Fig. 3 and in Table II, and larger ones."""

Numbers = Mapping[int, Mapping[str, float]]
"""Accuracies of the paper in percent, by budget and strategy."""

LEAST_CELLS = 3
"""Smallest number of cells with all baselines that the depth can be inferred from."""

_CANDIDATES = 400


@dataclass(frozen=True, eq=False)
class Regime:
    """Misfit of the baselines as a function of the depth at the largest budget."""

    depth: Floats  # mean depth at the largest budget, for each candidate
    misfit: Floats  # root mean squared difference for each candidate, as a share of the oracle's accuracy
    curves: dict[str, tuple[Floats, Floats]]  # by baseline: depths and relative accuracies of the cells
    points: dict[str, tuple[Floats, Floats]]  # by baseline: depths of the best candidate, and the paper's accuracies
    # By strategy: relative accuracies at the best candidate, by budget, and the paper's.
    compared: dict[str, tuple[Floats, Floats]]

    @property
    def best(self) -> float:
        """Depth with the smallest misfit."""
        return float(self.depth[self.misfit.argmin()])

    def at(self, depth: float) -> float:
        """Return the misfit at a depth."""
        return float(np.interp(depth, self.depth, self.misfit))


def fit_regime(outcome: StudyResults, paper: Numbers, ceiling: float, seeds: frozenset[int] | None = None) -> Regime:
    """Find the depth with the smallest misfit between the baselines and the paper's numbers.

    ``outcome`` has runs of the baselines and of the oracle in cells that differ in the budget only, at least three of
    them with all baselines that the paper has numbers of; ``ceiling`` is the assumed accuracy of the paper's oracle, in
    percent. All seeds are used by default.
    """
    cells = complete_cells(outcome, paper, seeds)
    if len(cells) < LEAST_CELLS:
        raise ConfigError("the depth cannot be inferred: run at least three cells with all baselines")
    seconds = np.array([_mean(outcome, c, "salf", "first_deadline", seeds) for c in cells])
    order = np.argsort(seconds)
    x = np.log(seconds[order])
    depth = PchipInterpolator(x, np.array([_mean(outcome, c, "salf", "depth", seeds) for c in cells])[order])
    largest = max(paper)
    steps = np.log(np.array(sorted(paper)) / largest)
    known = {name: curve for name in paper[largest] if (curve := _curve(outcome, cells, name, seeds))[0].size > 1}
    target = {name: np.array([paper[T][name] for T in sorted(paper)]) / ceiling for name in known}
    # All budgets of a candidate lie between the cells.
    candidates = np.linspace(x[0] - steps[0], x[-1], _CANDIDATES)
    baselines = _baselines(paper)
    squares = [np.square(PchipInterpolator(*known[b])(candidates[:, None] + steps) - target[b]) for b in baselines]
    misfit = np.sqrt(np.mean(squares, axis=(0, 2)))
    best = candidates[misfit.argmin()] + steps
    return Regime(
        depth(candidates),
        misfit,
        {b: (depth(known[b][0]), known[b][1]) for b in baselines},
        {b: (depth(best), target[b]) for b in baselines},
        {name: (PchipInterpolator(*curve, extrapolate=False)(best), target[name]) for name, curve in known.items()},
    )


def _curve(outcome: StudyResults, cells: list[Cell], name: str, seeds: frozenset[int] | None) -> tuple[Floats, Floats]:
    """Return log seconds of a round, and accuracy relative to the oracle, in the cells that a strategy was run in.

    The means are over the seeds that both have.
    """
    x, relative = list[float](), list[float]()
    for cell in cells:
        both = frozenset.intersection(*(_seeds(outcome, cell, word, seeds) for word in (name, "oracle")))
        accuracy, oracle = (_mean(outcome, cell, word, "final", both) for word in (name, "oracle"))
        seconds = _mean(outcome, cell, "salf", "first_deadline", seeds)
        if accuracy is not None and oracle is not None and seconds is not None:
            x.append(math.log(seconds))
            relative.append(accuracy / oracle)
    order = np.argsort(x)
    return np.array(x)[order], np.array(relative)[order]


def _seeds(outcome: StudyResults, cell: Cell, name: str, seeds: frozenset[int] | None) -> frozenset[int]:
    return frozenset(run.seed for run in outcome.of(cell, name) if seeds is None or run.seed in seeds)


def _baselines(paper: Numbers) -> list[str]:
    """Return the baselines that the paper has numbers of."""
    return [b for b in BASELINES if all(b in row for row in paper.values())]


def complete_cells(outcome: StudyResults, paper: Numbers, seeds: frozenset[int] | None = None) -> list[Cell]:
    """Return the cells in which the baselines that the paper has numbers of were run."""
    words = (*_baselines(paper), "oracle")
    return [c for c in outcome.study.cells if all(_mean(outcome, c, b, "final", seeds) is not None for b in words)]


def depth_by_seed(outcome: StudyResults, paper: Numbers, ceiling: float) -> Floats:
    """Return the best depth for each seed that all cells have, as a measure of its uncertainty."""
    shared = [
        frozenset(run.seed for run in outcome.of(cell, b))
        for cell in outcome.study.cells
        for b in (*_baselines(paper), "oracle")
        if outcome.of(cell, b)
    ]
    return np.array(
        [fit_regime(outcome, paper, ceiling, frozenset({s})).best for s in sorted(frozenset.intersection(*shared))]
    )


def _mean(outcome: StudyResults, cell: Cell, strategy: str, what: str, seeds: frozenset[int] | None) -> float | None:
    values = [getattr(run, what) for run in outcome.of(cell, strategy) if seeds is None or run.seed in seeds]
    return float(np.mean(values)) if values else None
