"""Studies beyond the paper: plans that minimise the noise of the rounds, and replanning."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from adelfl.experiments.results import StudyResults
from adelfl.experiments.study import Cell, Study
from adelfl.report.studies import draw_study
from adelfl.report.time_series import evaluated

PAPER = "adel-paper"
STATIC = "adel[replan=false]"
LEARNING = "adel"

_WORDS = {PAPER: "adel-paper", STATIC: "adel, no replanning", LEARNING: "adel"}
_STRATEGIES = ("wait", "drop", "salf", "heterofl", *_WORDS, "oracle")

_PARTITIONS = {
    "iid": ("IID", ("data.partition=iid",)),
    "dir05": ("Dirichlet 0.5", ("data.partition=dirichlet", "data.alpha=0.5")),
    "dir01": ("Dirichlet 0.1", ("data.partition=dirichlet", "data.alpha=0.1")),
}
_RATES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Finer than the paper's rates: between 0.1 and 0.5 many strategies go from too slow to unstable, and those whose first
layers receive few updates are stable only at much lower rates. Up to three more rates are tried at either end."""

_FLEETS = {"twoclass": ("two classes", "fleet.kind=two-class"), "phones": ("phones", "fleet.kind=phones")}

_CONSTANT, _INVERSE = "learning_rate.schedule=constant", "learning_rate.schedule=inverse"


def _rates(rounds: int) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        "constant": ("constant rate", (_CONSTANT,)),
        "inverse": (f"η₀/(1+t/{rounds // 5})", (_INVERSE, f"learning_rate.time_scale={rounds / 5:g}")),
    }


def _cells(
    depths: tuple[float, ...],
    partitions: tuple[str, ...] = ("iid",),
    rates: tuple[str, ...] = ("constant",),
    rounds: int = 100,
) -> tuple[Cell, ...]:
    """Return a cell for every combination."""
    return tuple(
        Cell(
            f"depth{100 * depth:.0f}-{partition}-{rate}",
            f"{depth:.0%} depth, {_PARTITIONS[partition][0]}, {_rates(rounds)[rate][0]}",
            (f"training.depth={depth}", *_PARTITIONS[partition][1], *_rates(rounds)[rate][1]),
        )
        for partition, rate, depth in product(partitions, rates, depths)
    )


_ALL_DEPTHS = (0.15, 0.25, 0.5, 0.85)

_DIGITS_STUDY = Study(
    name="beyond-digits",
    title="Digits, MLP 64-32-16-10: depth × data × learning rate",
    source="ours",
    changes=("data.name=digits", "model.name=mlp"),
    cells=(*_cells(_ALL_DEPTHS, tuple(_PARTITIONS)), *_cells(_ALL_DEPTHS, rates=("inverse",))),
    strategies=(*_STRATEGIES, "clairvoyant"),
    tuning=("data.validation=0.16666667", "training.evaluations=10"),
    rates=_RATES,
    wider=3,
    tuning_seeds=3,
    finalists=3,
    drawing="dots",
    words=_WORDS,
    # The upper end is the clairvoyant: the oracle processes more samples than the budget permits.
    gap=("salf", "clairvoyant"),
)

_FLEETS_STUDY = replace(
    _DIGITS_STUDY,
    name="beyond-fleets",
    title="Digits, MLP: fleets",
    cells=tuple(
        Cell(
            f"{fleet}-depth{100 * depth:.0f}-{partition}",
            f"{_FLEETS[fleet][0]}, {depth:.0%} depth, {_PARTITIONS[partition][0]}",
            (f"training.depth={depth}", _FLEETS[fleet][1], *_PARTITIONS[partition][1]),
        )
        for fleet, partition, depth in product(_FLEETS, ("iid", "dir01"), (0.15, 0.5))
    ),
)


def _law(name: str, spread: float) -> tuple[str, ...]:
    return (f"latency.law={name}", f"latency.spread={spread}", "latency.known=false")


_WRONG = {
    "known": ("speeds known", ()),
    "fast2": ("speeds estimated 2 × too high", ("fleet.misjudged=2.0",)),
    "slow2": ("speeds estimated 2 × too low", ("fleet.misjudged=0.5",)),
    "each2": ("speed of each device estimated 2 × too high or too low", ("fleet.misjudged_each=2.0",)),
    "drift": ("speeds drift by 0.7 in the logarithm", ("fleet.drift=0.7",)),
    "throttled": ("half of the devices become 3 × slower", ("fleet.throttled=0.5",)),
    "churn": ("a third of the devices leave, a third join", ("fleet.churn=0.33",)),
    "dropout": ("a fifth of the devices drop out of each round", ("fleet.dropout=0.2",)),
    "lognormal": ("lognormal layer times, planned as exponential", _law("lognormal", 1.5)),
    "gamma": ("gamma layer times, planned as exponential", _law("gamma", 0.3)),
}

_BELIEFS_STUDY = replace(
    _DIGITS_STUDY,
    name="beyond-beliefs",
    title="Digits, MLP: wrong beliefs about the fleet",
    changes=(*_DIGITS_STUDY.changes, _CONSTANT),
    cells=tuple(
        Cell(f"{key}-depth15", f"{words}, 15% depth", ("training.depth=0.15", *changes))
        for key, (words, changes) in _WRONG.items()
    ),
    strategies=("salf", PAPER, STATIC, LEARNING, "oracle", "clairvoyant"),
    seeds=10,
)


def _headline(outcome: StudyResults, _: Path) -> dict[str, Figure]:
    """Draw accuracy against time at three depths, without variants of adel; nothing if runs have no curves."""
    keys = ("depth50-iid-constant", "depth25-iid-constant", "depth15-iid-constant")
    titles = [cell.title for cell in outcome.study.cells if cell.key in keys]
    panels = [
        (title, evaluated([c for c in contenders if not c.name.startswith("adel[")]))
        for title, contenders in outcome.contenders()
        if title in titles
    ]
    if not all(contenders for _, contenders in panels):
        return {}
    return {"beyond-mnist-headline.png": draw_study(panels, outcome.study.title, deadlines=False)}


_MNIST_STUDY = replace(
    _DIGITS_STUDY,
    name="beyond-mnist",
    title="MNIST, MLP 784-32-16-10",
    changes=("data.name=mnist", "model.name=mlp", "training.evaluations=20", "data.test_samples=5000"),
    cells=(
        *_cells((0.15, 0.25, 0.5)),
        *_cells((0.15,), ("dir01",)),
        *_cells((0.15, 0.85), rates=("inverse",)),
    ),
    strategies=_STRATEGIES,
    gap=("salf", "oracle"),
    pictures=_headline,
)

_CNN_STUDY = replace(
    _MNIST_STUDY,
    name="beyond-cnn",
    title="MNIST, CNN",
    changes=("data.name=mnist", "model.name=cnn", "training.evaluations=12", "data.test_samples=2000"),
    cells=(*_cells((0.15,), rates=("inverse",)), *_cells((0.25,), ("dir05",), ("inverse",))),
    tuning=("data.validation=0.16666667", "training.evaluations=10", "data.test_samples=1000"),
    pictures=None,
)

_CIFAR_STUDY = replace(
    _CNN_STUDY,
    name="beyond-cifar",
    title="CIFAR-10, CNN",
    changes=(
        *("data.name=cifar10", "model.name=cnn", "training.rounds=200"),
        *("training.evaluations=12", "data.test_samples=2000", "training.batch=8"),
    ),
    cells=_cells((0.15,), rates=("inverse",), rounds=200),
    tuning=("data.validation=0.1", "training.evaluations=10", "data.test_samples=1000"),
)

_STEPS = {"sgd": "last iterate", "average": "average"}
_AVERAGED = {"digits": (), "mnist": ("data.test_samples=5000",)}

_AVERAGE_STUDY = replace(
    _DIGITS_STUDY,
    name="beyond-average",
    title="With and without an average of the iterates (MLP)",
    changes=("model.name=mlp", "training.evaluations=20"),
    cells=tuple(
        Cell(
            f"{data}-{cell.key}-{step}",
            f"{data}, {cell.title}; {words}",
            (f"data.name={data}", *_AVERAGED[data], *cell.changes, f"server.step={step}"),
        )
        for data, cell, (step, words) in product(_AVERAGED, _cells((0.15, 0.5)), _STEPS.items())
    ),
    strategies=("drop", "salf", PAPER, LEARNING, "oracle"),
    gap=(),
)

STUDIES = {
    study.name: study
    for study in (_DIGITS_STUDY, _FLEETS_STUDY, _BELIEFS_STUDY, _MNIST_STUDY, _CNN_STUDY, _CIFAR_STUDY, _AVERAGE_STUDY)
}
"""Studies by name."""
