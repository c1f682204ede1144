"""Devices that are alike count once: the cost of a plan does not grow with the fleet.

Equal devices are merged exactly. If too many groups remain (a fleet drawn from a continuous distribution), near
ones are merged too, and :func:`grouping_error` tells what that costs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from adelfl.planner.problem import Problem
from adelfl.theory.bound import RoundCost

Floats = NDArray[np.float64]

SPEED_BINS, UPLOAD_BINS = 48, 8
MAX_GROUPS = SPEED_BINS * UPLOAD_BINS


def exact_cost(problem: Problem, keep: NDArray[np.bool_]) -> RoundCost:
    """f_m of the devices that take part, one entry per group of the fleet."""
    count = problem.fleet.count[keep].astype(np.float64)
    return RoundCost(
        L=problem.layers,
        U=problem.cohort_of(int(count.sum())),
        P=problem.speed[keep],
        B=problem.fleet.upload[keep],
        share=problem.sigma2[keep] * (count / count.sum()),
        G2=np.asarray(problem.constants.G2, dtype=np.float64),
    )


def slowest_front(P: Floats, B: Floats) -> NDArray[np.int64]:
    """Devices that no other one matches in both slowness and upload: they alone set the smallest deadline."""
    order = np.argsort(P, kind="stable")
    longest_so_far = np.maximum.accumulate(B[order])
    first = np.concatenate([[True], longest_so_far[1:] > longest_so_far[:-1]])
    front: NDArray[np.int64] = order[first]
    return front


def merge_equal(cost: RoundCost) -> RoundCost:
    """The same cost with equal devices counted once, sorted from slow to fast."""
    order = np.argsort(cost.P, kind="stable")
    if np.any(np.diff(cost.P[order]) == 0):
        order = np.lexsort((cost.B, cost.P))
    P, B, share = cost.P[order], cost.B[order], cost.share[order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(P) != 0) | (np.diff(B) != 0)]))
    return replace(cost, P=P[first], B=B[first], share=np.add.reduceat(share, first))


def merge_near(cost: RoundCost) -> RoundCost:
    """Nearly the same cost from at most some MAX_GROUPS groups; itself if it has no more.

    The slowest front stays exact, so the constraints do too. Others are binned by rank in speed (finer towards
    the slow end, where 1/(m P − 1) is steepest), then by rank in upload; a bin is represented by its mean of 1/P
    and of B, weighted by σ²: what makes its first-order error vanish.

    Parameters
    ----------
    cost : RoundCost
        Sorted from slow to fast, as :func:`merge_equal` leaves it.
    """
    P, B, share = cost.P, cost.B, cost.share
    if P.size <= MAX_GROUPS:
        return cost
    front = slowest_front(P, B)
    bulk = np.delete(np.arange(P.size), front)
    edges = np.round(bulk.size * np.linspace(0.0, 1.0, SPEED_BINS + 1) ** 3).astype(np.int64)
    label = np.empty(bulk.size, dtype=np.int64)
    for i, (low, high) in enumerate(pairwise(edges)):
        by_upload = low + np.argsort(B[bulk[low:high]], kind="stable")
        label[by_upload] = i * UPLOAD_BINS + np.arange(high - low) * UPLOAD_BINS // max(1, high - low)
    w = share[bulk]
    total = np.bincount(label, weights=w, minlength=MAX_GROUPS)
    some = total > 0
    mean_inverse_P = np.bincount(label, weights=w / P[bulk], minlength=MAX_GROUPS)[some] / total[some]
    mean_B = np.bincount(label, weights=w * B[bulk], minlength=MAX_GROUPS)[some] / total[some]
    return replace(
        cost,
        P=np.concatenate([P[front], 1.0 / mean_inverse_P]),
        B=np.concatenate([B[front], mean_B]),
        share=np.concatenate([share[front], total[some]]),
    )


def grouping_error(exact: RoundCost, grouped: RoundCost, T: Floats, m: float) -> float:
    """Largest relative error of b_t that grouping makes, over eight of the plan's deadlines; 0 if none was made."""
    if grouped is exact:
        return 0.0
    some = np.quantile(T, np.linspace(0.0, 1.0, 8 if T.min() < T.max() else 1))
    errors = []
    for deadline in some:
        at = np.array([deadline])
        true, near = exact.batch_variance(at, m)[0][0], grouped.batch_variance(at, m)[0][0]
        errors.append(abs(near / true - 1.0))
    return float(max(errors))
