"""Random numbers that models draw in training: dropout masks, random slopes, stochastic depth.

Torch draws them from global generators, which are seeded here for each device and round. A run can then be repeated and
resumed with the same bytes, and the masks of a device do not depend on the order of the devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adelfl.seeds import rng_for


def mask_seeds(seed: int, t: int, devices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the mask seed of each device in round t (from 0)."""
    return np.array([rng_for(seed, "masks", t, int(u)).integers(2**63) for u in devices], dtype=np.int64)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[list[torch.Generator]]:
    """Seed torch's generators of the CPU and of ``device``, and restore their states at the end; None has no effect."""
    generators = [] if seed is None else _generators(device)
    before = [generator.get_state() for generator in generators]
    try:
        yield [generator.manual_seed(seed or 0) for generator in generators]
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def draws_numbers(model: nn.Module, example: Tensor) -> bool:
    """Return whether a forward pass of the model draws from torch's generators; ``example`` is a batch."""
    with seeded(0, example.device) as generators, torch.no_grad():
        before = [generator.get_state() for generator in generators]
        with suppress(Exception):  # a model that cannot be copied or run is reported elsewhere
            deepcopy(model)(example.clone())
        return any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before, strict=True))


def _generators(device: torch.device) -> list[torch.Generator]:
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[device.index or 0])
    elif device.type == "mps":
        generators.append(torch.mps._get_default_mps_generator())
    return generators
