"""Leaderboard of all straggler methods: final accuracy by data set, fleet and time budget.

For every method, learning rate and local steps are chosen first, on phones together with the encoding of uploads. Next
come the length of its rounds or its batch size, one parameter of the method, and the server step. All choices are made
on validation data, with the same number of trials for every method; the oracle has fewer.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from adelfl.experiments.results import StudyResults
from adelfl.experiments.study import Cell, Study
from adelfl.strategies import find_strategy
from studies.figures import draw_board

METHODS = (
    *("adel", "adel-paper", "salf", "drop", "wait", "heterofl"),
    *("timelyfl", "anytime", "fedprox", "fednova"),
    *("over-selection", "fedcs", "oort", "scaffold"),
    *("fedasync", "fedbuff", "fedcompass"),
)
REFERENCES = ("clairvoyant", "oracle")
"""Upper references, which no real method can implement."""

LEVEL = 0.9
"""Share of the clairvoyant's final accuracy to which times are measured."""

SELF_PACED = {"wait", "timelyfl", "over-selection", "oort", "scaffold", "fedasync", "fedbuff", "fedcompass"}
"""Methods whose rounds have no fixed length."""

_PARAMETERS = {
    "adel": ("replan=false",),
    "adel-paper": ("correction=none", "average_over=all"),
    "salf": ("correction=none", "average_over=all"),
    "timelyfl": ("share=0.25", "share=0.75"),
    "anytime": ("chunk=4", "chunk=16"),
    "fedprox": ("proximal=0.01", "proximal=1.0"),
    "over-selection": ("factor=2.0", "factor=4.0"),
    "oort": ("factor=2.0", "factor=3.0"),
    "fedasync": ("mixing=0.3", "mixing=0.9"),
    "fedbuff": ("buffer=2", "buffer=5"),
    "fedcompass": ("latest=1.0", "latest=2.0"),
}
"""Two more values of one parameter. With unequal amounts of data, other methods may weigh devices equally."""


def _work(steps: int | str, rounds: int | str) -> str:
    return f"training.local_iterations={steps} training.rounds={rounds}"


_CODECS = ("", " training.codec=qsgd[bits=4]", " training.codec=qsgd[bits=8]")
"""Encodings of uploads."""


def _encodes(cell: Cell, method: str) -> bool:
    """Return whether uploads take time, so that their encoding matters."""
    return method != "oracle" and cell.key.startswith("phones")


def local_work(cell: Cell, method: str, _best: str, *, rounds: int = 100) -> tuple[str, ...]:
    """Return numbers of local steps, with fewer rounds for more steps; the plan of adel may choose both.

    Where uploads take time, each is combined with plain and with encoded uploads: these allow more rounds.
    """
    last = _work("auto", "auto") if method == "adel" else _work(16, rounds // 4)
    works: tuple[str, ...] = (_work(1, rounds), _work(4, rounds // 2), last)
    if method in ("wait", "scaffold"):  # they stop after this number of rounds
        works = tuple(_work(steps, 5000) for steps in (1, 4, 16))
    cohort = " training.cohort=10" if method == "oort" else ""
    codecs = _CODECS[:2] if _encodes(cell, method) else ("",)
    return tuple(work + cohort + codec for codec, work in product(codecs, works))


def encoding(cell: Cell, method: str, best: str) -> tuple[str, ...]:
    """Return the two other encodings of uploads, for a fleet whose uploads take time."""
    if not _encodes(cell, method):
        return ()
    plain, _, codec = best.partition(" training.codec=")
    return tuple(plain + other for other in _CODECS if other.removeprefix(" training.codec=") != codec)


def pace(_cell: Cell, method: str, best: str) -> tuple[str, ...]:
    """Return longer and shorter rounds, or other batch sizes if a method sets the length of its rounds itself."""
    if method == "oracle":  # it gains nothing from a choice of rounds
        return ()
    rounds = dict(pair.split("=", 1) for pair in best.split())["training.rounds"]
    if method in SELF_PACED or rounds == "auto":
        return tuple(f"{best} training.batch={batch}" for batch in (4, 8, 32))
    return tuple(best.replace(f"rounds={rounds}", f"rounds={int(int(rounds) * times)}") for times in (0.5, 2, 4))


def parameter(_cell: Cell, method: str, best: str, *, unequal: bool = False) -> tuple[str, ...]:
    """Return more values of the method's parameter; ``unequal`` if devices hold unequal amounts of data."""
    options = _PARAMETERS.get(method, ())
    if unequal and len(options) < 2:
        options = (*options, "weigh=equally")
    return tuple(f"{best} strategy.options.{option}" for option in options)


def server_step(_cell: Cell, method: str, best: str) -> tuple[str, ...]:
    """The server step that is not the method's own: an average of the iterates, or none."""
    other = "sgd" if find_strategy(method).server_step == "average" else "average"
    return (f"{best} server.step={other}",)


_Partitions = dict[str, tuple[str, tuple[str, ...]]]
_USERS: _Partitions = {"users": ("by user", ())}
_SKEW: _Partitions = {
    "iid": ("IID", ("data.partition=iid",)),
    "dir01": ("Dirichlet 0.1", ("data.partition=dirichlet", "data.alpha=0.1")),
}
_TIMES = ("starved", "tight", "ample")
_FEWER = "data.test_samples=2000"
_DATA = {
    "digits": ("Digits, MLP", ("data.name=digits", "model.name=mlp"), (40, 95, 390), (4, 10, 30)),
    "wisdm": ("WISDM (36 people), MLP", ("model.name=mlp",), (40, 95, 390), (4, 10, 30)),
    "mnist": ("MNIST, CNN", ("data.name=mnist", "model.name=cnn", _FEWER), (20, 50, 190), (5, 10, 40)),
    "cifar": ("CIFAR-10, CNN", ("data.name=cifar10", "model.name=cnn", _FEWER), (20, 50, 190), (5, 10, 40)),
}
"""Title, setting, and starved, tight and ample budgets in seconds for lognormal devices and for phones."""

NAMES = tuple(f"leaderboard-{data}" for data in _DATA)


def study(name: str, _scale: str = "cpu") -> Study:
    """Return the leaderboard of a data set; files of devices and users are read from $ADELFL_DATA."""
    folder = Path(os.environ.get("ADELFL_DATA", "."))
    data = name.removeprefix("leaderboard-")
    title, setting, lognormal, phones = _DATA[data]
    if data == "wisdm":
        file = folder / "users/wisdm.csv"
        setting = (*setting, f"data.file={file}", "data.user_column=user", "data.label_column=class")
    traces = (
        *("fleet.kind=traces", f"fleet.speeds={folder / 'devices/phone_training_ms.csv'}", "fleet.network=lenet"),
        f"fleet.bandwidth={folder / 'devices/bandwidth_traces_3g.csv'}",
        *(f"fleet.availability={folder / 'devices/availability_flash.csv'}", "fleet.start_hour=24.0"),
        *("training.cohort=10", *(() if data == "wisdm" else ("fleet.devices=100",))),
    )
    cells = []
    for fleet, (key, (words, partition)), (i, time) in product(
        ("lognormal", "phones"), (_USERS if data == "wisdm" else _SKEW).items(), enumerate(_TIMES)
    ):
        budget = (lognormal if fleet == "lognormal" else phones)[i]
        devices = (
            (*traces, f"fleet.speedup={86400 / budget}") if fleet == "phones" else ()
        )  # the budget spans a day of the phones
        changes = (f"training.budget={budget}", *partition, *devices)
        cells.append(Cell(f"{fleet}-{key}-{time}", f"{fleet}, {words}, {time}", changes))
    return Study(
        name=name,
        title=f"{title}: all straggler methods",
        source="ours",
        changes=(*setting, "training.evaluations=20"),
        cells=tuple(cells),
        strategies=(*METHODS, *REFERENCES),
        tuning=("data.validation=0.25", "training.evaluations=10"),
        rates=(0.06, 0.2, 0.6, 1.5),
        choices=(
            partial(local_work, rounds=40 if _FEWER in setting else 100),
            encoding,
            pace,
            partial(parameter, unequal=data == "wisdm"),
            server_step,
        ),
        tuning_seeds=3,
        finalists=5,
        drawing=None,
        pictures=_board,
    )


def finished(outcome: StudyResults) -> list[Cell]:
    """Return the cells with the same number of seeds for every method."""
    counts = {cell: {len(outcome.of(cell, word)) for word in outcome.study.strategies} for cell in outcome.study.cells}
    return [cell for cell, seeds in counts.items() if len(seeds) == 1 and 0 not in seeds]


def _board(_: StudyResults, folder: Path) -> dict[str, Figure]:
    """Draw all leaderboards of a folder in one figure."""
    columns = []
    for name in NAMES:
        if not (folder / f"{name}.csv").is_file():
            continue
        outcome = StudyResults.read(study(name), folder / name)
        for cell in finished(outcome):
            fleet, data, time = cell.title.split(", ")
            summaries = {word: outcome.summary(cell, word) for word in outcome.study.strategies}
            scores = {word: (s.mean, s.error) for word, s in summaries.items()}
            columns.append((f"{outcome.study.title.partition(',')[0]}, {fleet}, {data}", time, scores))
    return {"leaderboard.png": draw_board(columns, REFERENCES)} if columns else {}
