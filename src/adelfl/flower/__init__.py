"""ADEL-FL and its baselines on Flower, with real deadlines (extra ``[flower]``).

On the server, :class:`DeadlineStrategy` replaces Flower's ``FedAvg``. On the client, :class:`Job` makes a training loop
stop in time, and :func:`train` is a complete training function. Names are loaded when they are first used, so that a
server does not need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adelfl.flower.client import Job as Job
    from adelfl.flower.client import train as train
    from adelfl.flower.strategy import DeadlineStrategy as DeadlineStrategy

_HOME = {
    "DeadlineStrategy": "adelfl.flower.strategy",
    "Job": "adelfl.flower.client",
    "train": "adelfl.flower.client",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "flwr":
            raise
        from adelfl.errors import MissingExtraError

        raise MissingExtraError("flwr", "flower") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
