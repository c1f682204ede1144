"""History of arrivals for every program: which device delivers when, and from which version of the weights it started.

The update of a device is a fixed change of the weights from which it started. Programs that merge in the same way
therefore produce the same sequence of weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float64]]

DEVICES, ARRIVALS, BUFFER, ROUNDS = 5, 40, 3, 12
SHAPES = {"weight": (3, 4), "bias": (3,)}
MIXING, DECAY, HINGE = 0.6, 0.5, (10.0, 4.0)
SERVER = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "tau": 1e-3}

_RNG = np.random.default_rng(20)


def _draw(scale: float) -> Weights:
    return {name: scale * _RNG.standard_normal(shape) for name, shape in SHAPES.items()}


FIRST = _draw(1.0)
CHANGES = [_draw(0.1) for _ in range(ARRIVALS)]
"""w_u − w_start of each arrival."""
ORDER = [int(u) for u in _RNG.choice(DEVICES, ARRIVALS, p=[0.4, 0.25, 0.2, 0.1, 0.05])]
"""Device of each arrival. Fast devices arrive often, slow devices start from old weights."""
ROUND_CHANGES = [[_draw(0.1) for _ in range(DEVICES)] for _ in range(ROUNDS)]
"""The changes of all devices in each round of a synchronous method."""


def asynchronous(deliver: Callable[[int, int, Weights], Weights | None]) -> list[Weights]:
    """Deliver all arrivals in order, and return the weights after each merge.

    ``deliver(k, u, start)`` passes the k-th update, of device u, to a program, together with the weights from which the
    device started. It returns the new weights if the program has merged. A device starts again from the newest weights.
    """
    history, started = [FIRST], dict.fromkeys(range(DEVICES), FIRST)
    for k, u in enumerate(ORDER):
        merged = deliver(k, u, started[u])
        if merged is not None:
            history.append(merged)
        started[u] = history[-1]
    return history[1:]


def write(histories: dict[str, list[Weights]]) -> None:
    """Write the weights of every method to the file named on the command line."""
    plain = {
        method: [{n: np.asarray(v).tolist() for n, v in weights.items()} for weights in history]
        for method, history in histories.items()
    }
    Path(sys.argv[1]).write_text(json.dumps(plain))
