"""Every figure and table of section IV, and two studies of ours that explain them."""

from __future__ import annotations

import difflib
from dataclasses import replace
from itertools import product

from adelfl.errors import ConfigError
from adelfl.experiments import beyond
from adelfl.experiments.study import Cell, Claim, Study

SALF_OVER_ALL = "salf[average_over=all]"
EVERYBODY = ("adel-paper", "salf", SALF_OVER_ALL, "heterofl", "drop", "wait", "oracle")

# -- learning rates: the paper's, and one that trains


_PAPER_RATE = ("learning_rate.schedule=inverse", "learning_rate.time_scale=1")
_CONSTANT = ("learning_rate.schedule=constant",)


def _slow_rate(rounds: int) -> tuple[str, ...]:
    return ("learning_rate.schedule=inverse", f"learning_rate.time_scale={rounds / 5:g}")


# -- MNIST (Fig. 2)


def _mnist_cells(depths: tuple[float, ...], rates: tuple[str, ...], slow_rounds: int) -> tuple[Cell, ...]:
    """The released code's 100 rounds, and more of them with the rate that trains."""
    known = {
        "paper": ("η₀/(1+t)", ("training.rounds=100", *_PAPER_RATE)),
        "slow": (f"η₀/(1+t/{slow_rounds // 5})", (f"training.rounds={slow_rounds}", *_slow_rate(slow_rounds))),
        "constant": ("constant η₀", ("training.rounds=100", *_CONSTANT)),
    }
    return tuple(
        Cell(
            f"depth{depth:.0%}-{rate}".replace("%", ""),
            f"{depth:.0%} depth, {known[rate][0]}",
            (f"training.depth={depth}", *known[rate][1]),
            paper=depth == 0.5 and rate == "paper",
        )
        for depth, rate in product(depths, rates)
    )


def _above(names: tuple[str, ...], sentence: str) -> tuple[Claim, ...]:
    return tuple(Claim(sentence, "adel-paper", name) for name in names)


_MNIST_CLAIM = "ADEL-FL substantially outperforms Drop-Stragglers, Wait Stragglers and HeteroFL"
_MNIST = ("data.name=mnist", "training.batch=16")
_SIXTH = ("data.validation=0.16666667", "training.evaluations=10", "data.test_samples=5000")

_MNIST_MLP = Study(
    name="mnist-mlp",
    title="MNIST, MLP 784-32-16-10",
    source="Fig. 2 (a), (b)",
    changes=(*_MNIST, "model.name=mlp"),
    cells=_mnist_cells((0.5, 0.25, 0.15), ("paper", "slow", "constant"), 500),
    strategies=EVERYBODY,
    claims=(
        Claim(
            "over 20 points above SALF on the MLP at 180 s (60 % of the budget)", "adel-paper", "salf", 20.0, at="60%"
        ),
        Claim("SALF remains less efficient than ADEL-FL", "adel-paper", "salf"),
        *_above(("drop", "wait", "heterofl"), _MNIST_CLAIM),
    ),
    tuning=_SIXTH,
    tuning_seeds=3,
    falling=True,
    headline=("depth50-slow", "depth25-slow", "depth15-slow"),
)

_MNIST_CNN = replace(
    _MNIST_MLP,
    headline=(),
    finalists=2,
    name="mnist-cnn",
    title="MNIST, CNN",
    source="Fig. 2 (c)",
    changes=(*_MNIST, "model.name=cnn", "training.evaluations=25"),
    cells=_mnist_cells((0.5, 0.15), ("paper", "slow"), 300),
    claims=(
        Claim("SALF remains less efficient than ADEL-FL", "adel-paper", "salf"),
        *_above(("drop", "wait", "heterofl"), _MNIST_CLAIM),
    ),
)

# -- CIFAR-10 (Fig. 3, Fig. 4, Table II)

_CIFAR_BASELINES = ("salf", "drop", "wait")


def _cifar(name: str, scale: str, partition: str, local_iterations: int = 1) -> tuple[tuple[str, ...], int]:
    """Changes that all studies of CIFAR-10 share, and the number of rounds."""
    steps = f"training.local_iterations={local_iterations}"
    skew = ("data.alpha=0.5",) if partition == "dirichlet" else ()
    common = ("data.name=cifar10", f"model.name={name}", f"data.partition={partition}", *skew, steps)
    if scale == "full":
        rounds = 2000 // local_iterations
        return (*common, f"training.rounds={rounds}", "training.batch=16"), rounds
    # Several local steps leave the fused engine, and take three times as long each.
    rounds = (150 if local_iterations == 1 else 90) // local_iterations
    narrow = ("model.width=0.125", "training.batch=4", "training.evaluations=12", "data.test_samples=2000")
    return (*common, f"training.rounds={rounds}", *narrow), rounds


def _cifar_tuning(scale: str) -> tuple[str, ...]:
    samples = () if scale == "full" else ("data.test_samples=1000",)
    return ("data.validation=0.1", "training.evaluations=10", *samples)


def _shares(rounds: int, *shares: float, rate: tuple[str, ...] | None = None) -> tuple[Cell, ...]:
    """Shares of the budget at which the mean depth is 85 %, with a learning rate that trains, or another."""
    chosen = _slow_rate(rounds) if rate is None else rate
    words = {1.0: "85 % depth", 0.5: "half of that time"}
    return tuple(
        Cell(
            f"share{share:.0%}".replace("%", ""),
            words.get(share, f"{share:.0%} of the 85 % budget"),
            ("training.depth=0.85", f"training.budget_share={share:.9g}", *chosen),
            paper=share == 1.0,
        )
        for share in shares
    )


def _deep(name: str, scale: str) -> Study:
    changes, rounds = _cifar(name, scale, "dirichlet")
    slow, *less = (
        replace(cell, key=f"{cell.key}-slow", title=f"{cell.title}, η₀/(1+t/{rounds // 5})", paper=False)
        for cell in _shares(rounds, 1.0, 0.5)
    )
    (paper,) = _shares(rounds, 1.0, rate=_PAPER_RATE)
    paper = replace(paper, key="share100-paper", title="85 % depth, η₀/(1+t)")
    points = 13.0 if name == "vgg11" else None
    said = "66 % for ADEL-FL against 53 % for SALF" if points else "ADEL-FL consistently outperforms SALF"
    return Study(
        name=f"cifar-{name}",
        title=f"CIFAR-10, {name.upper()}, Dirichlet 0.5",
        source="Fig. 3 (a), (b)" if name == "vgg11" else "Fig. 3 (c), (d)",
        changes=changes,
        cells=(paper, slow, *less),
        strategies=EVERYBODY,
        claims=(
            Claim(said, "adel-paper", "salf", points),
            *_above(("drop", "wait"), "ADEL-FL consistently outperforms Drop-Stragglers and Wait Stragglers"),
        ),
        seeds=3,
        tuning=_cifar_tuning(scale),
        tuning_seeds=2,
        finalists=2,
        falling=True,
    )


_ROBUST = {
    "robust-l2": ("ℓ2 regularisation (10⁻⁴)", "Fig. 4 (a)", 1, ("training.weight_decay=0.0001",), None),
    "robust-constant": ("constant learning rate", "Fig. 4 (b)", 1, (), _CONSTANT),
    "robust-e3": ("3 local iterations", "Fig. 4 (c)", 3, (), None),
    "robust-e5": ("5 local iterations", "Fig. 4 (d)", 5, (), None),
}


def _robust(name: str, scale: str) -> Study:
    what, source, iterations, more, rate = _ROBUST[name]
    changes, rounds = _cifar("vgg11", scale, "dirichlet", iterations)
    return Study(
        name=name,
        title=f"CIFAR-10, VGG11, Dirichlet 0.5, {what}",
        source=source,
        changes=(*changes, *more),
        cells=_shares(rounds, 1.0, 0.5, rate=rate),
        strategies=EVERYBODY,
        claims=_above(_CIFAR_BASELINES, "ADEL-FL maintains advantages over SALF, Wait-Stragglers and Drop-Stragglers"),
        seeds=3,
        tuning=_cifar_tuning(scale),
        tuning_seeds=2 if iterations == 1 else 1,
        finalists=2,
    )


_TABLE_2 = {1200: (61, 36, 14, 30), 1600: (66, 50, 16, 46), 2000: (68, 61, 17, 57), 2400: (69, 66, 20, 63)}


def _table_2(scale: str) -> Study:
    changes, rounds = _cifar("vgg11", scale, "iid")
    near = {1600: "T1200", 2000: "T2400"}
    cells = tuple(
        replace(cell, key=f"T{seconds}", title=f"T_max = {seconds}", paper=True, rates_of=near.get(seconds, ""))
        for seconds in _TABLE_2
        for cell in _shares(rounds, seconds / 2400)
    )
    claims = tuple(
        Claim(
            f"T_max = {seconds}: {adel} % against {other} %",
            "adel-paper",
            name,
            float(adel - other),
            cells=(f"T{seconds}",),
        )
        for seconds, (adel, *others) in _TABLE_2.items()
        for name, other in zip(_CIFAR_BASELINES, others, strict=True)
    )
    return Study(
        name="table-2",
        title="CIFAR-10, VGG11, IID, four budgets",
        source="Table II",
        changes=changes,
        cells=cells,
        strategies=EVERYBODY,
        claims=claims,
        seeds=3,
        tuning=_cifar_tuning(scale),
        tuning_seeds=2,
        finalists=2,
    )


# -- ours: why, and when

_PARTS = {
    "adel-paper": "the whole plan",
    "adel-paper[deadlines=uniform]": "m alone",
    "adel-paper[batches=fixed]": "deadlines alone",
    "adel-paper[deadlines=uniform;batches=proportional]": "batch ∝ speed alone",
    "adel-paper[correction=none]": "the plan, no correction",
    "adel-paper[average_over=all]": "the plan, average over all",
    "salf": "no plan",
    "salf[correction=none]": "no plan, no correction",
    SALF_OVER_ALL: "no plan, average over all",
    "oracle": "everybody delivers",
}

_ABLATION = replace(
    _MNIST_MLP,
    name="ablation",
    title="What each part of ADEL-FL is worth (MNIST, MLP)",
    source="ours",
    cells=_mnist_cells((0.5, 0.25, 0.15), ("slow", "constant"), 500),
    strategies=tuple(_PARTS),
    claims=(),
    falling=False,
    headline=(),
    drawing="dots",
    words=_PARTS,
)

MAP_DEPTHS = (0.1, 0.15, 0.25, 0.35, 0.5, 0.7)
MAP_DEVICES = (5, 10, 30, 100)
MAP_HIDDEN = {2: "[32]", 3: "[32,16]", 5: "[32,32,32,16]", 8: "[32,32,32,32,32,32,16]"}

_MAP = Study(
    name="map",
    title="When does a deadline plan pay?",
    source="ours",
    changes=("data.name=digits", "model.name=mlp", "model.init=he", *_slow_rate(100)),
    cells=tuple(
        Cell(
            f"U{U}-L{L}-depth{depth:.0%}".replace("%", ""),
            f"{U} devices, {L} layers, {depth:.0%} depth",
            (f"fleet.devices={U}", f"model.hidden={hidden}", f"training.depth={depth}"),
        )
        for U, (L, hidden), depth in product(MAP_DEVICES, MAP_HIDDEN.items(), MAP_DEPTHS)
    ),
    strategies=("adel-paper", "salf", "drop"),
    tuning=("data.validation=0.2", "training.evaluations=10"),
    tuning_seeds=2,
    drawing="map",
)

NAMES = (
    "mnist-mlp",
    "mnist-cnn",
    "cifar-vgg11",
    "cifar-vgg13",
    *_ROBUST,
    "table-2",
    "ablation",
    "map",
    *beyond.STUDIES,
)
"""What :func:`find_study` knows, in the paper's order; from "ablation" on they are ours."""


def find_study(name: str, scale: str = "cpu") -> Study:
    """A study by its name, at the size of a laptop ("cpu") or of the paper ("full")."""
    fixed = {study.name: study for study in (_MNIST_MLP, _MNIST_CNN, _ABLATION, _MAP)} | beyond.STUDIES
    if name in fixed:
        return fixed[name]
    if name in ("cifar-vgg11", "cifar-vgg13"):
        return _deep(name.removeprefix("cifar-"), scale)
    if name in _ROBUST:
        return _robust(name, scale)
    if name == "table-2":
        return _table_2(scale)
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(NAMES)}, all"
    raise ConfigError(f"study {name!r} is not known; {hint}")
