"""Merging of similar devices, so that the cost of planning does not grow with the fleet.

Equal devices are merged exactly. If too many groups remain (a fleet drawn from a continuous distribution), similar
devices are merged too, and :func:`grouping_error` measures the error.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from adelfl.array_types import Floats
from adelfl.theory.bound import RoundCost

SPEED_BINS, UPLOAD_BINS = 48, 8
MAX_GROUPS = SPEED_BINS * UPLOAD_BINS


def merge_equal(cost: RoundCost) -> RoundCost:
    """Return the same cost with equal devices merged, sorted from slow to fast."""
    order = np.argsort(cost.P, kind="stable")
    if np.any(np.diff(cost.P[order]) == 0):
        order = np.lexsort((cost.B, cost.P))
    P, B, share = cost.P[order], cost.B[order], cost.share[order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(P) != 0) | (np.diff(B) != 0)]))
    return replace(cost, P=P[first], B=B[first], share=np.add.reduceat(share, first))


def merge_near(cost: RoundCost) -> RoundCost:
    """Return an approximation with about MAX_GROUPS groups; ``cost`` itself (sorted from slow to fast) if it has fewer.

    Devices that no other one exceeds in both slowness and upload stay exact, and with them the smallest deadline. The
    others are binned by rank in speed (finer for slow devices, where 1/(m P − 1) is steepest), then by rank in upload.
    A bin has the mean of 1/P and of B, weighted by σ², so that its first-order error vanishes.
    """
    P, B, share = cost.P, cost.B, cost.share
    if P.size <= MAX_GROUPS:
        return cost
    by_speed = np.argsort(P, kind="stable")
    longest_so_far = np.maximum.accumulate(B[by_speed])
    front = by_speed[np.concatenate([[True], np.diff(longest_so_far) > 0])]
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
    """Return the largest relative error of b_t over eight of the plan's deadlines; 0 if nothing was merged."""
    if grouped is exact:
        return 0.0
    deadlines = np.quantile(T, np.linspace(0.0, 1.0, 8 if T.min() < T.max() else 1))
    true, approximate = ([cost.batch_variance(np.array([T]), m)[0][0] for T in deadlines] for cost in (exact, grouped))
    return float(np.max(np.abs(np.divide(approximate, true) - 1.0)))
