"""What is known of each node: how fast it computes, and how long everything else takes.

    round trip  =  lag  +  set-up  +  computing  +  tail (building the reply)

A node reports durations on its own clock; the server knows the round trip. What is left of it, the lag, is dispatch,
start-up of the client process and both transfers. For the plan, P_u is the number of layers of one sample per second of
computing, and B_u is all the rest: everything that is not backpropagation.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import InfeasibleBudgetError
from adelfl.fleet import Fleet
from adelfl.flower.protocol import Report

Floats = NDArray[np.float64]

_REMEMBERED = 8
_FORGETTING = 0.3  # weight of the newest measurement of a layer's time
_ODD = 3.0  # times the next longest lag: such a one is no habit
_EASING = 0.8  # of the last trouble that is remembered, for every round without a question
_MARGIN, _LEAST_MARGIN = 0.1, 0.05  # of the lag, and seconds: what a round trip may take longer than ever before


@dataclass(eq=False)
class Node:
    """One node.

    Attributes
    ----------
    id : int
        Flower's number of it.
    lags, setups, tails : deque of float
        Of the last round trips, seconds.
    rows : int
        How many samples it has; 0 if it does not say.
    rested : int
        Rounds since it last answered in which it was not asked.
    pace : ndarray
        Seconds per sample of the forward pass and of each layer, last layer first; NaN where never reached.
    """

    id: int
    layers: int
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    setups: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    tails: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    rows: int = 0
    rested: int = 0
    pace: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.pace = np.full(self.layers + 1, math.nan)

    @property
    def measured(self) -> bool:
        """Whether enough is known to plan with it."""
        return bool(self.lags) and math.isfinite(self.pace[0])

    @property
    def lag(self) -> float:
        """Seconds to allow for everything outside the client: the longest lately, but for one odd one, and a margin."""
        lately = sorted(self.lags, reverse=True) or [0.0]
        odd = len(lately) > 2 and lately[0] > _ODD * lately[1]
        longest: float = lately[1] if odd else lately[0]
        return longest + max(_LEAST_MARGIN, _MARGIN * longest)

    @property
    def upload(self) -> float:
        """B_u."""
        return self.lag + self.setup + self.tail

    @property
    def setup(self) -> float:
        """Seconds between the message's arrival and the first batch, the most lately."""
        return max(self.setups, default=0.0)

    @property
    def tail(self) -> float:
        """Seconds between the end of computing and the reply, the most lately."""
        return max(self.tails, default=0.0)

    @property
    def compute(self) -> float:
        """P_u; layers never reached are taken to cost as much as the mean of the others."""
        known = self.pace[1:][np.isfinite(self.pace[1:])]
        layer = float(known.mean()) if known.size else float(self.pace[0])
        whole = float(self.pace[0]) + float(known.sum()) + layer * (self.layers - known.size)
        return self.layers / max(whole, 1e-9)

    def rate(self, batch: int, seconds: float) -> float:
        """λ_u of a round that takes so long."""
        return self.compute * max(0.0, seconds - self.upload) / batch

    @property
    def expected(self) -> tuple[float, ...]:
        """Seconds per sample of each layer, last layer first, for the node to know which it can still finish."""
        mean = np.nanmean(self.pace[1:]) if np.isfinite(self.pace[1:]).any() else 0.0
        return tuple(float(v) for v in np.where(np.isfinite(self.pace[1:]), self.pace[1:], mean))

    def learn(self, round_trip: float, report: Report) -> None:
        """Take in what a reply says, as far as it can be."""
        if math.isfinite(report.total) and report.total <= round_trip:
            self.lags.append(round_trip - report.total)
            tail = report.total - report.setup - report.compute - report.aside
            if tail >= 0:
                self.setups.append(report.setup)
                self.tails.append(tail)
        self.rows = report.rows or self.rows
        self.rested = 0
        if report.times and sum(report.times) <= round_trip:
            new = np.array(report.times) / report.samples
            old = self.pace[: new.size]
            self.pace[: new.size] = np.where(np.isfinite(old), (1 - _FORGETTING) * old + _FORGETTING * new, new)

    def overran(self, seconds: float) -> None:
        """A reply came so much too late, though what is known of the node said it would not: allow for that."""
        if self.lags and seconds > 0:
            self.lags[-1] += seconds

    def rest(self) -> None:
        """It was not asked in a round: old troubles are forgotten one by one, or it would never be asked again."""
        self.rested += 1
        for lately in (self.lags, self.setups, self.tails):
            if len(lately) > 1:
                lately.popleft()
            elif lately:
                lately[0] *= _EASING

    def to_json(self) -> dict[str, object]:
        """What :meth:`from_json` takes."""
        pace = [None if math.isnan(value) else value for value in self.pace.tolist()]
        lately = {key: list(getattr(self, key)) for key in ("lags", "setups", "tails")}
        return {"id": self.id, "rows": self.rows, "pace": pace, **lately}

    @classmethod
    def from_json(cls, said: dict[str, object], layers: int) -> Node:
        """A node as an earlier process knew it."""
        found = cls(int(said["id"]), layers, rows=int(said["rows"]))  # type: ignore[call-overload]
        for key in ("lags", "setups", "tails"):
            getattr(found, key).extend(said[key])
        pace = [math.nan if value is None else value for value in said["pace"]]  # type: ignore[attr-defined]
        found.pace = np.array(pace, dtype=np.float64)
        return found


def fleet_of(nodes: list[Node]) -> Fleet:
    """The nodes as the planner sees them, one group each, in this order."""
    return Fleet.of([n.compute for n in nodes], [n.upload for n in nodes], names=[f"node {n.id}" for n in nodes])


def check_lags(nodes: list[Node], needed: int, deadline: float) -> None:
    """Refuse rounds in which fewer nodes than needed could compute at all."""
    longest = sorted(node.upload for node in nodes)[min(len(nodes), needed) - 1]
    if longest >= deadline:
        what = f"{longest:.1f} s of a round are not computing"
        raise InfeasibleBudgetError(
            f"a round of {deadline:.1f} s is too short: {what}", binding=what, smallest_budget=None
        )
