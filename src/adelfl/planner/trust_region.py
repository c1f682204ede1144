"""The paper's solver of Problem 2, a general trust-region method on all R+1 variables; the reference.

It needs hundreds of steps where :mod:`adelfl.planner.exact` needs one search over m, and may stop short of the
minimum. Its result is repaired to satisfy every constraint, so that the two can be compared.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, minimize
from scipy.sparse import csr_matrix, diags, eye, hstack

from adelfl.array_types import Floats
from adelfl.planner.exact import Optimum
from adelfl.theory.bound import RoundCost, excess, excess_gradient


def minimise(cost: RoundCost, a: Floats, budget: float, *, start: Optimum | None = None) -> Optimum:
    """Minimise the excess with SciPy's trust-constr over (T_1..T_R, m).

    ``start`` is the first point; by default uniform deadlines and the middle of the feasible m. The excess is infinite
    where a real batch size is 1 or less, so this needs no constraint: steps that go there are refused.
    """
    R, mean = a.size, budget / a.size
    start = start or _middle(cost, R, budget)
    scale, unit = np.append(np.full(R, mean), start.m), excess(cost, a, start.T, start.m)

    def value(y: Floats) -> float:
        T, m = np.split(y * scale, [R])
        relative = excess(cost, a, T, float(m[0])) / unit
        return relative if math.isfinite(relative) else 1e30

    def gradient(y: Floats) -> Floats:
        T, m = np.split(y * scale, [R])
        with np.errstate(all="ignore"):
            dT, dm = excess_gradient(cost, a, T, float(m[0]))
        slope: Floats = np.append(dT, dm) * scale / unit
        return np.nan_to_num(slope, nan=0.0, posinf=1e30, neginf=-1e30)

    order = diags([np.ones(R - 1), -np.ones(R - 1)], [0, 1], shape=(R - 1, R + 1))
    coverage = hstack([eye(R), csr_matrix(np.full((R, 1), -cost.x_min * start.m / mean))])
    constraints = [
        LinearConstraint(csr_matrix(np.append(np.ones(R), 0.0)), -np.inf, R),
        LinearConstraint(coverage, 0.0, np.inf, keep_feasible=True),
        *([LinearConstraint(order, 0.0, np.inf)] if R > 1 else []),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of trust-constr about its own rank-deficient Jacobians
        result = minimize(
            value,
            np.append(start.T, start.m) / scale,
            jac=gradient,
            method="trust-constr",
            bounds=Bounds(np.append(np.zeros(R), 1.0 / float(cost.P.min()) / start.m), np.inf, keep_feasible=True),
            constraints=constraints,
            options={"maxiter": 2000, "gtol": 1e-10, "xtol": 1e-12},
        )
    T, m = np.split(np.asarray(result.x, dtype=np.float64) * scale, [R])
    return min((_repaired(cost, budget, T, float(m[0])), start), key=lambda o: excess(cost, a, o.T, o.m))


def _middle(cost: RoundCost, R: int, budget: float) -> Optimum:
    """Return uniform deadlines and the geometric middle of the m that they allow."""
    T = budget / R
    low, high = float(np.max(T / (cost.P * (T - cost.B)))), T / cost.x_min
    return Optimum(np.full(R, T), math.sqrt(low * high))


def _repaired(cost: RoundCost, budget: float, T: Floats, m: float) -> Optimum:
    """Undo the solver's rounding: order the deadlines, raise them to the smallest one, and keep to the budget."""
    T = np.minimum.accumulate(T)
    floor = cost.smallest_deadline(m)
    above = np.maximum(T - floor, 0.0)
    room = budget - T.size * floor
    if above.sum() > room > 0:
        above = above * (room / above.sum())
    return Optimum(floor + above, m)
