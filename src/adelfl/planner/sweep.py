"""What if there were more time, more rounds, fewer devices: one plan per value, and where more stops paying.

What is compared: with another budget the part of the bound that no plan can change stays the same, so plans are told
apart by their excess. With another number of rounds or devices that part changes too, so the whole bound is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from adelfl.errors import ConfigError, InfeasibleBudgetError
from adelfl.fleet import MAX_DEVICES
from adelfl.planner.admit import needed_deadlines
from adelfl.planner.problem import MAX_BUDGET, MAX_ROUNDS, MIN_BUDGET, Problem
from adelfl.planner.solve import Solution, plan

Key = Literal["budget", "rounds", "without"]
Floats = NDArray[np.float64]

_SHOWN_GROUPS, _SHOWN_ROUNDS = 400, 100  # the mean depth of more devices and rounds is the same
_BENDS = 0.05  # of the whole fall: a curve that is nowhere so far below its chord has no knee
_CLEAR = 2.0  # how many times as fast errors fall before a knee as after it; if less, the knee is soft


@dataclass(frozen=True)
class Point:
    """One value of a sweep, and what can be expected of it; all numbers are None if there is no plan.

    Attributes
    ----------
    value : float
        Seconds, rounds, or devices left out.
    served : int
        Devices that the plan serves.
    excess, bound : float or None
        As of the Solution.
    uniform_excess, uniform_bound : float or None
        The same for the best uniform deadline.
    depth : float or None
        Expected share of layers that a device finishes, mean over rounds and devices, those who sit out included.
    trouble : str or None
        Why there is no plan.
    """

    value: float
    served: int = 0
    excess: float | None = None
    bound: float | None = None
    uniform_excess: float | None = None
    uniform_bound: float | None = None
    depth: float | None = None
    trouble: str | None = None


@dataclass(frozen=True)
class Knee:
    """Where a curve of errors bends: more than this buys less.

    Attributes
    ----------
    value : float
        Of the sweep.
    before, after : float
        Factors on the error that 10 % more (without: one device more) means up to the knee and beyond it, on average.
    soft : bool
        Whether the error falls less than twice as fast before the knee as after it.
    """

    value: float
    before: float
    after: float
    soft: bool


@dataclass(frozen=True)
class Sweep:
    """Points in rising order, of one key of a problem.

    Attributes
    ----------
    key : {"budget", "rounds", "without"}
        What changes.
    points : tuple of Point
    now : float
        What the problem itself says.
    devices : int
        Of the whole fleet.
    """

    key: Key
    points: tuple[Point, ...]
    now: float
    devices: int

    @property
    def error(self) -> Literal["excess", "bound"]:
        """What is compared: the excess if only the budget changes, else the bound."""
        return "excess" if self.key == "budget" else "bound"

    @cached_property
    def compared(self) -> tuple[Point, ...]:
        """The points that may be compared: the longest stretch of neighbours that serve as many devices.

        The bound gives no price for a device's data, and falls or rises at once when a device joins. If devices are
        left out on purpose, all points with a plan.
        """
        if self.key == "without":
            return tuple(p for p in self.points if p.trouble is None)
        stretches: list[list[Point]] = [[]]
        for point in self.points:
            if stretches[-1] and (point.trouble or point.served != stretches[-1][-1].served):
                stretches.append([])
            if point.trouble is None:
                stretches[-1].append(point)
        longest = max(map(len, stretches))
        return next(tuple(s) for s in reversed(stretches) if len(s) == longest)

    @cached_property
    def lowest(self) -> Point | None:
        """The point of least error among those that may be compared."""
        return min(self.compared, key=lambda p: getattr(p, self.error), default=None)

    @cached_property
    def knee(self) -> Knee | None:
        """The point furthest below the chord from the first point to the lowest, logarithms on both axes.

        (Without: devices as they are, not their logarithm.) For a smooth curve it is where the error falls exactly as
        fast as on average over the whole range: before it, more pays better than that; beyond it, worse. None if no
        point is below the chord by more than a twentieth of the whole fall.
        """
        if self.lowest is None:
            return None
        falling = self.compared[: self.compared.index(self.lowest) + 1]
        x = self._scaled(np.array([p.value for p in falling]))
        errors = np.array([getattr(p, self.error) for p in falling])
        if x.size < 3 or errors.min() <= 0:
            return None
        y = np.log(errors)
        below = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0]) - y
        i = int(below.argmax())
        if below[i] <= _BENDS * (y[0] - y[-1]):
            return None
        before, after = (y[0] - y[i]) / (x[i] - x[0]), (y[i] - y[-1]) / (x[-1] - x[i])
        step = 1.0 if self.key == "without" else math.log(1.1)
        soft = bool(before < _CLEAR * after)
        return Knee(falling[i].value, float(np.exp(-before * step)), float(np.exp(-after * step)), soft)

    def _scaled(self, x: Floats) -> Floats:
        return x if self.key == "without" else np.log(x)

    def words(self, value: float) -> str:
        """A value with its unit."""
        if self.key == "budget":
            return f"{value:.4g} s"
        if self.key == "rounds":
            return f"{value:.0f} rounds"
        return f"{value:.0f} left out"

    @property
    def outcome(self) -> str:
        """What the sweep says, in words."""
        found = [self._about_knee(), self._about_lowest(), self._about_compared(), self._about_infeasible()]
        return " ".join(filter(None, found))

    def _about_knee(self) -> str:
        if self.lowest is None:
            return ""
        what = {
            "budget": "10% more time lowers the plannable part of the bound by",
            "rounds": "10% more rounds lower the bound by",
            "without": "each device left out lowers the bound by",
        }[self.key]
        if self.knee is None:
            return "No knee in this range."
        article = "A soft knee" if self.knee.soft else "Knee"
        before, after = (f"{100 * (1 - v):.2g}%" for v in (self.knee.before, self.knee.after))
        return f"{article} at {self.words(self.knee.value)}: up to there, {what} {before}, beyond it by {after}."

    def _about_lowest(self) -> str:
        if self.lowest is None or self.key == "budget":
            return ""
        if self.key == "without" and self.lowest.value == 0:
            return "The bound is lowest if nobody is left out."
        return f"The bound is lowest at {self.words(self.lowest.value)}."

    def _about_compared(self) -> str:
        feasible = [p for p in self.points if p.trouble is None]
        if self.key == "without" or len(self.compared) == len(feasible):
            return ""
        return f"Compared: {self._range(self.compared)}, where the same {self.compared[0].served} devices are served."

    def _about_infeasible(self) -> str:
        without = [p for p in self.points if p.trouble is not None]
        if not without:
            return ""
        return f"No plan at {len(without)} of {len(self.points)} points, {self._range(without)}: {without[0].trouble}."

    def _range(self, points: Sequence[Point]) -> str:
        first, last = self.words(points[0].value), self.words(points[-1].value)
        return first if len(points) == 1 else f"{first} to {last}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "key": self.key,
            "now": self.now,
            "devices": self.devices,
            "error": self.error,
            "points": [asdict(p) for p in self.points],
            "knee": asdict(self.knee) if self.knee else None,
            "lowest": self.lowest.value if self.lowest else None,
            "outcome": self.outcome,
        }


def values_between(key: Key, low: float, high: float, points: int = 25) -> list[float]:
    """Values for a sweep, both ends among them: evenly spaced logarithms, or (without) evenly spaced numbers.

    Parameters
    ----------
    key : {"budget", "rounds", "without"}
    low, high : float
        The ends; whole numbers unless they are seconds.
    points : int
        How many at most; fewer if there are not so many whole numbers.
    """
    _check_key(key)
    least, most = {"budget": (MIN_BUDGET, MAX_BUDGET), "rounds": (1, MAX_ROUNDS), "without": (0, MAX_DEVICES)}[key]
    if not (math.isfinite(low) and math.isfinite(high) and least <= low < high <= most):
        allowed = {
            "budget": f"positive numbers of seconds, at most {most:g}",
            "rounds": f"at least 1 and at most {most:,}",
            "without": "0 or more",
        }[key]
        raise ConfigError(f"{key}={low:g}:{high:g}: the ends must be {allowed}, the lower one first")
    if points < 2:
        raise ConfigError(f"{key}={low:g}:{high:g}: a sweep needs at least 2 points, not {points}")
    if key == "budget":
        inner = dict.fromkeys(float(f"{v:.4g}") for v in np.geomspace(low, high, points)[1:-1])
        return [low, *(v for v in inner if low < v < high), high]
    if low != round(low) or high != round(high):
        raise ConfigError(f"{key}={low:g}:{high:g}: the ends must be whole numbers")
    spaced = np.linspace(low, high, points) if key == "without" else np.geomspace(low, high, points)
    whole: list[float] = np.unique(spaced.round()).tolist()
    return whole


def _check_key(key: str) -> None:
    if key not in get_args(Key):
        raise ConfigError(f"{key!r} cannot be swept; allowed are {', '.join(get_args(Key))}")


def what_if(problem: Problem, key: Key, values: Sequence[float], solve: Callable[[Problem], Solution] = plan) -> Sweep:
    """Plan a problem once for each value of one of its keys.

    Parameters
    ----------
    problem : Problem
        What stays the same.
    key : {"budget", "rounds", "without"}
        Seconds in all; rounds that share them; or how many of the slowest devices are left out, in the order of the
        deadline that each needs (docs/planner.md, "When is there a plan?").
    values : sequence of float
        In rising order, as :func:`values_between` makes them.
    solve : callable
        What makes a plan of a problem.

    Returns
    -------
    Sweep
    """
    _check_key(key)
    if len(values) < 2 or np.any(np.diff(values) <= 0):
        raise ConfigError(f"{key}: a sweep needs at least 2 values, in rising order")
    if key != "budget" and any(v != round(v) for v in values):
        raise ConfigError(f"{key}: values must be whole numbers")
    if key == "without" and max(values) > problem.fleet.size - 2:
        raise ConfigError(
            f"without: at most {problem.fleet.size - 2} of the fleet's {problem.fleet.size} devices can be left out, "
            f"not {max(values):g}"
        )
    now = {"budget": problem.budget, "rounds": float(problem.rounds), "without": 0.0}[key]
    return Sweep(key, tuple(_point(_changed(problem, key, v), v, solve) for v in values), now, problem.fleet.size)


def _changed(problem: Problem, key: Key, value: float) -> Problem:
    if key == "budget":
        return problem.with_budget(value)
    if key == "rounds":
        return replace(problem, rounds=int(value))
    return without_slowest(problem, int(value))


def without_slowest(problem: Problem, devices: int) -> Problem:
    """The same problem without the devices that need the longest deadlines."""
    fleet = problem.fleet
    slowest_first = np.argsort(-needed_deadlines(problem, fleet.size), kind="stable")
    before = np.cumsum(fleet.count[slowest_first]) - fleet.count[slowest_first]
    left = fleet.count.copy()
    left[slowest_first] -= np.clip(devices - before, 0, fleet.count[slowest_first])
    keep = left > 0
    cohort = None if problem.cohort is None else min(problem.cohort, int(left.sum()))
    sigma2 = problem.constants.sigma2
    if np.size(sigma2) > 1:
        sigma2 = tuple(problem.sigma2[keep].tolist())
    return replace(
        problem,
        fleet=replace(fleet.subset(keep), count=left[keep]),
        constants=replace(problem.constants, sigma2=sigma2),
        cohort=cohort,
    )


def _point(problem: Problem, value: float, solve: Callable[[Problem], Solution]) -> Point:
    try:
        found = solve(problem)
    except InfeasibleBudgetError as trouble:
        return Point(value, trouble=trouble.binding)
    rounds = np.unique(np.linspace(0, problem.rounds - 1, min(_SHOWN_ROUNDS, problem.rounds)).round().astype(int))
    depths = found.schedule.thinned(_SHOWN_GROUPS).expected_depth(rounds)
    return Point(
        value,
        served=problem.fleet.size - sum(s.count for s in found.sitting_out),
        excess=found.excess,
        bound=found.bound,
        uniform_excess=found.uniform.excess,
        uniform_bound=found.uniform.bound,
        depth=float(depths.mean()) / problem.layers,
    )
