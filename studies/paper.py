"""Studies of MNIST and digits: Fig. 2 of the paper, an ablation of its plan, and a map of when a plan pays."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from adelfl.experiments.results import StudyResults
from adelfl.experiments.study import Cell, Claim, Study
from studies.figures import draw_gain

SALF_OVER_ALL = "salf[average_over=all]"
ALL_METHODS = ("adel-paper", "adel", "salf", SALF_OVER_ALL, "heterofl", "drop", "wait", "oracle")


_REGIMES = {0.5: "stated", 0.15: "inferred"}
"""Regimes of Fig. 2 by depth. The text has no accuracy of a baseline, but says that Drop-Stragglers stalls."""


def _mnist_cells(depths: tuple[float, ...], rates: tuple[str, ...], slow_rounds: int) -> tuple[Cell, ...]:
    """Return cells with 100 rounds, as in the released code, or with more rounds and a slower decay of the rate."""
    inverse, tau = "learning_rate.schedule=inverse", slow_rounds // 5
    known = {
        "paper": ("η₀/(1+t)", ("training.rounds=100", inverse, "learning_rate.time_scale=1")),
        "slow": (f"η₀/(1+t/{tau})", (f"training.rounds={slow_rounds}", inverse, f"learning_rate.time_scale={tau}")),
        "constant": ("constant η₀", ("training.rounds=100", "learning_rate.schedule=constant")),
    }
    return tuple(
        Cell(
            f"depth{100 * depth:.0f}-{rate}",
            f"{depth:.0%} depth, {known[rate][0]}",
            (f"training.depth={depth}", *known[rate][1]),
            regime=_REGIMES.get(depth, "") if rate == "paper" else "",
        )
        for depth, rate in product(depths, rates)
    )


_MNIST_CLAIMS = (
    Claim("SALF remains less efficient than ADEL-FL", "adel-paper", "salf"),
    *(
        Claim("ADEL-FL substantially outperforms Drop-Stragglers, Wait Stragglers and HeteroFL", "adel-paper", baseline)
        for baseline in ("drop", "wait", "heterofl")
    ),
)
_AT_180 = "over 20 points above SALF on the MLP at 180 s (60 % of the budget)"

_MNIST_MLP = Study(
    name="mnist-mlp",
    title="MNIST, MLP 784-32-16-10",
    source="Fig. 2 (a), (b)",
    changes=("data.name=mnist", "training.batch=16", "model.name=mlp"),
    cells=_mnist_cells((0.5, 0.25, 0.15), ("paper", "slow", "constant"), 500),
    strategies=ALL_METHODS,
    claims=(Claim(_AT_180, "adel-paper", "salf", 20.0, at="60%"), *_MNIST_CLAIMS),
    tuning=("data.validation=0.16666667", "training.evaluations=10", "data.test_samples=5000"),
    tuning_seeds=3,
    falling=True,
)

_MNIST_CNN = replace(
    _MNIST_MLP,
    finalists=2,
    name="mnist-cnn",
    title="MNIST, CNN",
    source="Fig. 2 (c)",
    changes=("data.name=mnist", "training.batch=16", "model.name=cnn", "training.evaluations=25"),
    cells=_mnist_cells((0.5, 0.15), ("paper", "slow"), 300),
    claims=_MNIST_CLAIMS,
)

_PARTS = {
    "adel-paper": "full plan",
    "adel-paper[deadlines=uniform]": "planned batch sizes only",
    "adel-paper[batches=fixed]": "planned deadlines only",
    "adel-paper[deadlines=uniform;batches=proportional]": "no plan, batch ∝ speed",
    "adel-paper[correction=none]": "full plan, no correction",
    "adel-paper[average_over=all]": "full plan, average over all",
    "salf": "no plan",
    "salf[correction=none]": "no plan, no correction",
    SALF_OVER_ALL: "no plan, average over all",
    "oracle": "oracle",
}

_ABLATION = replace(
    _MNIST_MLP,
    name="ablation",
    title="Ablation of ADEL-FL (MNIST, MLP)",
    source="ours",
    cells=_mnist_cells((0.5, 0.25, 0.15), ("slow", "constant"), 500),
    strategies=tuple(_PARTS),
    claims=(),
    falling=False,
    drawing="dots",
    words=_PARTS,
)


def map_gains(outcome: StudyResults) -> dict[str, dict[tuple[int, int, float], tuple[float, float]]]:
    """Return the points gained by the first strategy over each other one, by (devices, layers, depth)."""
    gains: dict[str, dict[tuple[int, int, float], tuple[float, float]]] = {}
    ours, *others = outcome.study.strategies
    for baseline in others:
        for cell in outcome.study.cells:
            U, L, depth = map(int, re.findall(r"\d+", cell.key))
            gain = outcome.difference(cell, ours, baseline)
            error = 0.0 if np.isnan(gain.error) else gain.error
            gains.setdefault(baseline, {})[U, L, depth / 100] = (gain.mean, error)
    return gains


def _map_picture(outcome: StudyResults, _: Path) -> dict[str, Figure]:
    return {"map.png": draw_gain(map_gains(outcome), outcome.study.title)}


_MAP_DEPTHS = (0.1, 0.15, 0.25, 0.35, 0.5, 0.7)
_MAP_HIDDEN = {2: "[32]", 3: "[32,16]", 5: "[32,32,32,16]", 8: "[32,32,32,32,32,32,16]"}

_MAP = Study(
    name="map",
    title="When does a deadline plan pay?",
    source="ours",
    changes=(
        *("data.name=digits", "model.name=mlp", "model.init=he"),
        *("learning_rate.schedule=inverse", "learning_rate.time_scale=20"),
    ),
    cells=tuple(
        Cell(
            f"U{U}-L{L}-depth{100 * depth:.0f}",
            f"{U} devices, {L} layers, {depth:.0%} depth",
            (f"fleet.devices={U}", f"model.hidden={hidden}", f"training.depth={depth}"),
        )
        for U, (L, hidden), depth in product((5, 10, 30, 100), _MAP_HIDDEN.items(), _MAP_DEPTHS)
    ),
    strategies=("adel-paper", "salf", "drop"),
    tuning=("data.validation=0.2", "training.evaluations=10"),
    tuning_seeds=2,
    drawing=None,
    pictures=_map_picture,
)

STUDIES = {study.name: study for study in (_MNIST_MLP, _MNIST_CNN, _ABLATION, _MAP)}
