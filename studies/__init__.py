"""Studies of the figures and tables in section IV of the paper, and our own; ``adelfl reproduce NAME`` runs them.

``adelfl reproduce`` calls :func:`find_studies` of the package ``studies`` in the working directory.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial

from adelfl.errors import ConfigError
from adelfl.experiments.study import Study
from studies import beyond, cifar, leaderboard, paper

_SCALED: dict[str, Callable[[str], Study]] = {
    "cifar-vgg11": partial(cifar.deep, "vgg11"),
    "cifar-vgg13": partial(cifar.deep, "vgg13"),
    **{name: partial(cifar.robust, name) for name in cifar.ROBUST},
    "table-2": cifar.table_2,
    "table-2-batch16": cifar.table_2_batch_16,
    **{name: partial(leaderboard.study, name) for name in leaderboard.NAMES},
}
_FIXED = paper.STUDIES | beyond.STUDIES

NAMES = ("mnist-mlp", "mnist-cnn", *_SCALED, "ablation", "map", *beyond.STUDIES)
"""Names of studies for :func:`find_study`, in the paper's order; those from "ablation" on are ours."""


def find_study(name: str, scale: str = "cpu") -> Study:
    """Return a study by its name, at a size for a CPU ("cpu") or at the paper's size ("full")."""
    if name in _FIXED:
        return _FIXED[name]
    if name in _SCALED:
        return _SCALED[name](scale)
    near = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"allowed are {', '.join(NAMES)}, leaderboard, all"
    raise ConfigError(f"study {name!r} is unknown; {hint}")


def find_studies(name: str, scale: str) -> list[Study]:
    """Return the study of a name, or those of "leaderboard" or "all"."""
    several = {"all": NAMES, "leaderboard": leaderboard.NAMES}
    return [find_study(each, scale) for each in several.get(name, (name,))]
