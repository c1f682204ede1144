"""The paper's solver of Problem 2, a general trust-region method on all R+1 variables; the reference.

It needs hundreds of steps where :mod:`adelfl.planner.exact` needs one search over m, and may stop short of the
minimum. Its result is repaired to satisfy every constraint, so that the two can be compared.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, NonlinearConstraint, minimize
from scipy.sparse import csr_matrix, diags, eye, hstack, vstack

from adelfl.planner.exact import Optimum
from adelfl.planner.grouping import slowest_front
from adelfl.theory.bound import RoundCost, excess, excess_gradient

Floats = NDArray[np.float64]
Gradients = Literal["exact", "finite-difference"]


def minimise(
    cost: RoundCost,
    a: Floats,
    budget: float,
    *,
    start: Optimum | None = None,
    gradients: Gradients = "exact",
) -> Optimum:
    """Minimise the excess with SciPy's trust-constr over (T_1..T_R, m).

    Parameters
    ----------
    cost, a, budget
        The problem, as for the exact solver.
    start : Optimum, optional
        First point; by default uniform deadlines and the middle of the feasible m.
    gradients : {"exact", "finite-difference"}
        Exact derivatives of the bound, or numerical ones.
    """
    R = a.size
    mean = budget / R
    start = start or _middle(cost, R, budget)
    scale_m = start.m

    # Variables of order one: y = (T / mean, m / scale_m).
    def unpack(y: Floats) -> tuple[Floats, float]:
        return y[:R] * mean, float(y[R]) * scale_m

    unit = excess(cost, a, start.T, start.m)

    def value(y: Floats) -> float:
        relative = excess(cost, a, *unpack(y)) / unit
        return relative if math.isfinite(relative) else 1e30

    def gradient(y: Floats) -> Floats:
        with np.errstate(all="ignore"):
            dT, dm = excess_gradient(cost, a, *unpack(y))
        return np.nan_to_num(np.append(dT * mean, dm * scale_m) / unit, nan=0.0, posinf=1e30, neginf=-1e30)

    ones, zero = csr_matrix(np.ones((1, R))), csr_matrix((1, 1))
    coverage = hstack([eye(R), csr_matrix(np.full((R, 1), -cost.x_min * scale_m / mean))])
    constraints = [
        LinearConstraint(hstack([ones, zero]), -np.inf, R),
        LinearConstraint(coverage, 0.0, np.inf, keep_feasible=True),
    ]
    if R > 1:
        order = diags([np.ones(R - 1), -np.ones(R - 1)], [0, 1], shape=(R - 1, R))
        constraints.append(LinearConstraint(hstack([order, csr_matrix((R - 1, 1))]), 0.0, np.inf))
    limit = _one_sample(cost, R, mean, scale_m)
    lowest_m = 1.0 / float(cost.P.min()) / scale_m
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of trust-constr about its own rank-deficient Jacobians
        result = minimize(
            value,
            np.append(start.T / mean, start.m / scale_m),
            jac=gradient if gradients == "exact" else "2-point",
            method="trust-constr",
            bounds=Bounds(np.append(np.zeros(R), lowest_m), np.inf, keep_feasible=True),
            constraints=[*constraints, *limit],
            options={"maxiter": 2000, "gtol": 1e-10, "xtol": 1e-12},
        )
    repaired = _repaired(cost, budget, *unpack(np.asarray(result.x, dtype=np.float64)))
    return min((repaired, start), key=lambda o: excess(cost, a, o.T, o.m))


def _middle(cost: RoundCost, R: int, budget: float) -> Optimum:
    """Return uniform deadlines and the geometric middle of the m that they allow."""
    T = budget / R
    low, high = float(np.max(T / (cost.P * (T - cost.B)))), T / cost.x_min
    return Optimum(np.full(R, T), math.sqrt(low * high))


def _one_sample(cost: RoundCost, R: int, mean: float, scale_m: float) -> list[NonlinearConstraint]:
    """Require m P_u (T_t − B_u)/T_t ≥ 1 of the devices with an upload, as T (m P_u − 1) − m P_u B_u ≥ 0."""
    with_upload = cost.B > 0
    if not with_upload.any():
        return []
    P, B = cost.P[with_upload], cost.B[with_upload]
    front = slowest_front(P, B)  # the few devices that can be the tightest
    P, B = P[front], B[front]

    def slack(y: Floats) -> Floats:
        T, m = y[:R] * mean, y[R] * scale_m
        above: Floats = (T * (m * P - 1.0)[:, None] - (m * P * B)[:, None]).reshape(-1) / mean
        return above

    def jacobian(y: Floats) -> csr_matrix:
        T, m = y[:R] * mean, y[R] * scale_m
        by_T = [diags([np.full(R, m * P_u - 1.0)], [0]) for P_u in P]
        by_m = [csr_matrix(((T * P_u - P_u * B_u) * scale_m / mean)[:, None]) for P_u, B_u in zip(P, B, strict=True)]
        return vstack([hstack([dT, dm]) for dT, dm in zip(by_T, by_m, strict=True)]).tocsr()

    return [NonlinearConstraint(slack, 0.0, np.inf, jac=jacobian, keep_feasible=True)]


def _repaired(cost: RoundCost, budget: float, T: Floats, m: float) -> Optimum:
    """Undo the solver's rounding: order the deadlines, raise them to the smallest one, and keep to the budget."""
    T = np.minimum.accumulate(T)
    floor = cost.smallest_deadline(m)
    above = np.maximum(T - floor, 0.0)
    room = budget - T.size * floor
    if above.sum() > room > 0:
        above = above * (room / above.sum())
    return Optimum(floor + above, m)
