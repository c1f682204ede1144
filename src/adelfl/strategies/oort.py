"""Oort: select devices with large losses that are not too slow.

Lai et al., "Oort: Efficient federated learning via guided participant selection", OSDI 2021.

    U_u = (|D_u| √(mean loss²) + √(0.1 log(t + 1)/t_u)) · min(1, T/d_u)^α

d_u and t_u are the duration and the round of its last update. A share ε of a cohort consists of devices that have not
delivered yet; the others are drawn from the best, in proportion to U. The pacer raises T, a quantile of all d_u, when
losses fall. As with over-selection, 1.3 K devices start and the round waits for K. On Flower, nodes report their mean
loss. Devices that were selected often are not excluded.
"""

from __future__ import annotations

import numpy as np

from adelfl.planner import Problem
from adelfl.planner.beliefs import Beliefs
from adelfl.seeds import rng_for
from adelfl.strategies.actions import View
from adelfl.strategies.base import not_negative
from adelfl.strategies.over_selection import OverSelection
from adelfl.strategies.rounds import Floats, Ints, Outcome, RoundStrategy, Weigh

_FIRST, _FALL, _LEAST = 0.9, 0.98, 0.2  # ε at first, its factor from round to round, and its lower bound
_CLIP = _CUT = 0.95  # quantile at which utilities are clipped; share of the K-th best utility that others need
_PACE, _MORE, _WINDOW = 0.5, 0.1, 10  # first quantile T, its increase, and the rounds between two increases


class Oort(OverSelection):
    """Over-selection of devices with a high utility, where ``penalty`` is α. Without a cohort K there is no choice."""

    name = "oort"

    def __init__(self, problem: Problem, *, penalty: float = 2.0, factor: float = 1.3, weigh: Weigh = "data") -> None:
        super().__init__(problem, factor=factor, weigh=weigh)
        self.penalty = not_negative("penalty", penalty)
        self.known = np.full((3, problem.devices), np.nan)  # rows: loss, duration, round
        self.pace, self._losses, self._started = _PACE, list[float](), np.arange(0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Warn if there is nothing to select."""
        if self.started is not None:
            return ()
        return ("oort has no cohort to select: every device starts in every round, as with over-selection",)

    def utility(self, t: int) -> Floats:
        """U of each device after t rounds; NaN for one that has not delivered yet."""
        (loss, duration, last), samples = self.known, self.problem.amounts
        known, amounts = np.isfinite(loss), np.ones(loss.size) if samples is None else samples / samples.mean()
        U = np.full(known.size, np.nan)
        if known.any():
            statistical = amounts[known] * loss[known]
            statistical = np.minimum(statistical, np.quantile(statistical, _CLIP))
            slow = np.maximum(duration[known] / np.quantile(duration[known], self.pace), 1.0)
            U[known] = (statistical + np.sqrt(0.1 * np.log(t + 1) / last[known])) * slow**-self.penalty
        return U

    def cohort(self, view: View, t: int) -> Ints:
        """Return new devices of a random cohort, and the best of those that are known."""
        drawn, everyone = view.cohort(t, self.started), view.cohort(t, None)
        U = self.utility(t)[everyone]
        best = everyone[np.isfinite(U)]
        if self.started is None or best.size == 0:
            return drawn
        U, new = U[np.isfinite(U)] + 1e-12, drawn[np.isnan(self.known[2, drawn])]
        explore = round(max(_FIRST * _FALL**t, _LEAST) * drawn.size)
        wanted = min(best.size, drawn.size - min(new.size, explore))
        chance = np.where(np.sort(U)[-wanted] * _CUT <= U, U, 0.0)  # at least ``wanted`` of them are positive
        rng = rng_for(t, "oort", *drawn[:8].tolist())  # follows the seed of the run, through its random cohorts
        exploited = rng.choice(best, wanted, replace=False, p=chance / chance.sum())
        return np.sort(np.concatenate([exploited, new[: drawn.size - wanted]]))

    def wants_losses(self, t: int) -> bool:
        """Return True: losses are needed after every round."""
        return True

    def observe(self, outcome: Outcome) -> None:
        """Note the duration and the round of each delivery."""
        super().observe(outcome)
        self._started, some = outcome.devices, outcome.z > 0
        self.known[1, self._started[some]] = (outcome.seconds + np.nan_to_num(outcome.upload))[some]
        self.known[2, self._started[some]] = outcome.t + 1

    def learn_losses(self, losses: Floats) -> None:
        """Note the losses; allow slower devices when losses are lower than before."""
        self.known[0, self._started[np.isfinite(losses)]] = losses[np.isfinite(losses)]
        self._losses.append(float(np.nansum(losses)))
        if len(self._losses) == 2 * _WINDOW:
            before, self._losses = self._losses[:_WINDOW], self._losses[_WINDOW:]
            self.pace = min(1.0, self.pace + _MORE * (sum(self._losses) < sum(before)))

    def inherit(self, older: RoundStrategy | None, beliefs: Beliefs) -> None:
        """Keep the knowledge of an earlier plan about devices."""
        super().inherit(older, beliefs)
        if isinstance(older, Oort):
            self.known[:, : older.problem.devices] = older.known[:, : self.problem.devices]
            self.pace, self._losses, self._started = older.pace, older._losses, older._started
