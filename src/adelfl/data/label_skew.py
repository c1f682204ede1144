"""Number of samples of each label on each device, for label shares drawn from a Dirichlet distribution.

T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", arXiv:1909.06335, 2019, section 3: device u draws q_u ~ Dir(α p), where p are the label shares of the
training set, and then the label of each of its samples from q_u.

The paper does not define what happens when the samples of a label run out. Here the devices, in random order, draw
their samples one by one without replacement; a sample of label c has the weight q_u[c] / p[c]. The labels of the first
device follow q_u, the weight of a label falls as it is used up, and every sample is used. α → ∞ is a random partition.
With α → 0 every device holds one label, except for the few in whose turn a label runs out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adelfl.data.arrays import Ints

_TURNS = 64
"""Largest number of turns; in a larger fleet, several devices draw in the same turn."""


def draw_label_counts(rng: np.random.Generator, pool: Ints, sizes: Ints, alpha: float) -> Ints:
    """Draw a table of shape (devices, labels), with rows that add up to ``sizes`` and columns that add up to ``pool``.

    ``sizes`` and ``pool`` have the same sum, ``pool`` is positive, and ``alpha`` is the concentration α.
    """
    p = pool / pool.sum()
    shape = (sizes.size, pool.size)
    # log q up to a constant per device, from logarithms of Gamma(αp) variables, written as Gamma(αp + 1) U^(1/αp):
    # the variables themselves underflow for small α.
    log_q = np.log(rng.standard_gamma(alpha * p + 1.0, shape)) - rng.standard_exponential(shape) / (alpha * p)
    log_weight = log_q - np.log(p)
    counts = np.zeros(shape, dtype=np.int64)
    wanted, left = sizes.astype(np.int64), pool.astype(np.int64)
    for turn in np.array_split(rng.permutation(sizes.size), min(sizes.size, _TURNS)):
        while turn.size:
            drawn = _draw_alone(rng, log_weight[turn], wanted[turn], left)
            taken = np.diff(np.minimum(np.cumsum(drawn, axis=0), left), axis=0, prepend=0)
            counts[turn] += taken
            wanted[turn] -= taken.sum(axis=1)
            left -= taken.sum(axis=0)
            turn = turn[wanted[turn] > 0]
    return counts


def _draw_alone(rng: np.random.Generator, log_weight: NDArray[np.float64], wanted: Ints, left: Ints) -> Ints:
    """Draw each device's samples without replacement, independently of other devices; shape (devices, labels).

    Weighted draws without replacement select the samples with the smallest exponential times, whose rates are the
    weights. Among k samples of weight 1 the next one follows after an Exp(k) time, so a cumulative sum gives the times
    of a label in order.
    """
    devices, labels = log_weight.shape
    most = int(wanted.max())
    depth = int(min(most, left.max()))
    waiting = left[:, None] - np.arange(depth)
    times = np.cumsum(rng.standard_exponential((devices, labels, depth)) / np.maximum(waiting, 1), axis=2)
    with np.errstate(divide="ignore"):  # a time of exactly 0 comes first
        log_times = np.log(times) - log_weight[:, :, None]
    log_times[:, waiting < 1] = np.inf
    first = np.argpartition(log_times.reshape(devices, -1), np.unique(wanted) - 1, axis=1)[:, :most]
    cell = labels * np.arange(devices)[:, None] + first // depth
    counts = np.bincount(cell[np.arange(most) < wanted[:, None]], minlength=devices * labels)
    return counts.reshape(devices, labels).astype(np.int64, copy=False)
