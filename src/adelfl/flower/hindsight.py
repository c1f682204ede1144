"""What a round taught: how long each node computed and the rest took, and how far their updates were apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from adelfl.flower.nodes import Node
from adelfl.flower.terms import Plan, Round
from adelfl.strategies.rounds import Floats, Outcome
from adelfl.theory.gradient_stats import GradientStats
from adelfl.updates import Shape


def look_back(current: Round, plan: Plan, nodes: Mapping[int, Node], shape: Shape, rate: float, left: float) -> None:
    """Tell the method what happened; what the gradients were like too, if it wants to know."""
    strategy = plan.strategy
    outcome = outcome_of(current, plan, nodes, left)
    strategy.observe(outcome)
    if strategy.looks_at(outcome.t):
        strategy.learn(spread_of(current, shape, rate, strategy.problem.spread.sigma2))


def outcome_of(current: Round, plan: Plan, nodes: Mapping[int, Node], left: float) -> Outcome:
    """A round as its strategy learns from it; devices are positions in the plan.

    Of a node whose reply was not used, nothing came. What it says of its times was checked before it was noted.
    """
    ids = [plan.nodes[i] for i in current.devices]
    length = current.end - current.begin
    seconds, upload = np.empty(len(ids)), np.full(len(ids), math.nan)
    z, batch = np.zeros(len(ids), dtype=np.int64), current.batches(ids)
    for i, n in enumerate(ids):
        seconds[i] = max(0.0, length - nodes[n].upload)
        if n in current.took and current.done.get(n, 0) > 0:
            z[i] = current.done[n]
            seconds[i], upload[i] = current.took[n]
    return Outcome(current.number - 1 - plan.first, current.devices, batch, z, seconds, upload, left)


def spread_of(current: Round, shape: Shape, rate: float, sigma2: Floats) -> GradientStats:
    """ζ² and ‖ḡ‖² of each layer, from how far the updates of the nodes that delivered it are apart.

    The variance of one sample, which they share with the luck of their batches, is taken as it is known.
    """
    L = len(shape.layers)
    count, noise, squares, of_sum = np.zeros((4, L))
    for l, names in enumerate(shape.layers):
        found = [u for u in current.updates if u.depth > 0 and all(name in u.changes for name in names)]
        count[l] = len(found)
        noise[l] = sum(1.0 / current.tasks[u.node].batch for u in found)
        for name in names:
            changes = [np.asarray(u.changes[name], dtype=np.float64) / rate for u in found]
            squares[l] += sum(float(np.square(change).sum()) for change in changes)
            of_sum[l] += float(np.square(sum(changes)).sum()) if changes else 0.0
    seen = GradientStats.from_devices(count, sigma2, noise, squares, of_sum)
    return replace(seen, sigma2=np.full(L, np.nan))
