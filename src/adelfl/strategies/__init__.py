"""Strategies, one method per file, and their names.

Other packages register strategies as entry points of the group ``adelfl.strategies``.
"""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points

from adelfl.errors import ConfigError
from adelfl.planner import Problem
from adelfl.plugins import import_object
from adelfl.strategies.base import Strategy
from adelfl.strategies.rounds import Orders, Progress, RoundStrategy

__all__ = [
    "BUILT_IN",
    "Orders",
    "Problem",
    "Progress",
    "RoundStrategy",
    "Strategy",
    "code_of",
    "find_strategy",
    "strategy_names",
]

BUILT_IN = {
    "oracle": "adelfl.strategies.oracle:Oracle",
    "clairvoyant": "adelfl.strategies.clairvoyant:Clairvoyant",
    "adel": "adelfl.strategies.adel:Adel",
    "adel-paper": "adelfl.strategies.adel_paper:AdelPaper",
    "salf": "adelfl.strategies.salf:Salf",
    "heterofl": "adelfl.strategies.heterofl:HeteroFL",
    "drop": "adelfl.strategies.drop:Drop",
    "wait": "adelfl.strategies.wait:Wait",
    "fedbuff": "adelfl.strategies.fedbuff:FedBuff",
    "fedasync": "adelfl.strategies.fedasync:FedAsync",
    "fedcompass": "adelfl.strategies.fedcompass:FedCompass",
    "timelyfl": "adelfl.strategies.timelyfl:TimelyFL",
    "anytime": "adelfl.strategies.anytime:Anytime",
    "fedprox": "adelfl.strategies.fedprox:FedProx",
    "fednova": "adelfl.strategies.fednova:FedNova",
    "over-selection": "adelfl.strategies.over_selection:OverSelection",
    "fedcs": "adelfl.strategies.fedcs:FedCS",
    "oort": "adelfl.strategies.oort:Oort",
    "scaffold": "adelfl.strategies.scaffold:Scaffold",
}


def _registered() -> dict[str, str]:
    outside = {point.name: point.value for point in entry_points(group="adelfl.strategies")}
    return outside | BUILT_IN


def strategy_names() -> list[str]:
    """Return the names that :func:`find_strategy` knows."""
    return list(_registered())


def code_of(name: str) -> str | None:
    """Return the import path of a strategy from outside the package; None for a built-in or unknown name."""
    if name in BUILT_IN:
        return None
    path = _registered().get(name, name)
    return path if ":" in path else None


def find_strategy(name: str) -> type[Strategy]:
    """Find a strategy class by its name, or by an import path ``package.module:Class``."""
    # Reading the entry points of all installed packages takes 10 ms, and is not needed for built-in names.
    path = BUILT_IN.get(name) or _registered().get(name, name)
    if ":" not in path:
        known = _registered()
        similar = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"known are {', '.join(known)}."
        raise ConfigError(f"strategy {name!r} is not known; {hint} Others are given as package.module:Class")
    kind = import_object("strategy", path)
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise ConfigError(f"strategy {name!r} is not a subclass of adelfl.strategies.Strategy")
    if unfinished := sorted(kind.__abstractmethods__):
        raise ConfigError(f"strategy {name!r} is abstract: it does not define {', '.join(unfinished)}")
    if not isinstance(getattr(kind, "name", None), str):
        raise ConfigError(f'strategy {name!r} has no name: give its class an attribute name = "..."')
    return kind
