"""Top-k: send the largest numbers, and keep the rest for the next time.

Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018.

    v = Δ + e,     send the k numbers of v that are largest in size,     e ← v − what was sent

k is a share of each parameter, so that layers that a device did not finish do not change what is sent of the others;
their part of e stays. Each number takes its own bytes and four for its position, or all are sent if that takes less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from adelfl.errors import ConfigError
from adelfl.runtime.codec.base import Array, Codec, Decoded, Floats, Memory, count, through_numpy

_POSITION = 4  # bytes


@dataclass(frozen=True)
class TopK(Codec):
    """Send the largest numbers of each parameter.

    Attributes
    ----------
    share : float
        k over the number of parameters, above 0 and at most 1.
    """

    share: float = 0.01
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"codec top-k: share must be above 0 and at most 1, not {self.share!r}")
        object.__setattr__(self, "name", f"top-k[share={self.share:g}]")

    def _kept(self, numbers: int) -> int:
        return max(1, math.ceil(self.share * numbers))

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return the bytes of numbers and positions, of each parameter at most those of all its numbers."""
        sizes = [(count(v), int(v.itemsize)) for v in update.values() if v.nbytes]
        return sum(min(self._kept(n) * (each + _POSITION), n * each) for n, each in sizes)

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Send the largest numbers of what is new and what was not sent before."""
        sent: dict[str, Array] = {}
        rest = dict(memory)
        for name, value in update.items():
            old = memory.get(name)
            whole = value if old is None or old.shape != value.shape else value + old  # HeteroFL's widths may change
            sent[name] = through_numpy(whole, self._largest)
            rest[name] = whole - sent[name]
        return Decoded(sent, rest)

    def _largest(self, numbers: Floats) -> Floats:
        if (k := self._kept(numbers.size)) >= numbers.size:
            return numbers
        largest = np.argpartition(np.abs(numbers), numbers.size - k)[numbers.size - k :]
        sparse = np.zeros_like(numbers)
        sparse[largest] = numbers[largest]
        return sparse
