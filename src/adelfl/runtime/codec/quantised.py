"""Stochastic quantisation: few bits for each number, right on average.

Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and encoding", NeurIPS 2017;
Wen et al., "TernGrad: Ternary gradients to reduce communication in distributed deep learning", NeurIPS 2017.

    v → scale · sign(v) · ξ/s,     ξ = ⌊s |v|/scale + random number below 1⌋,     scale = largest |v| of a bucket

QSGD with b bits has s = 2^(b−1) − 1 levels. As in the paper's experiments, numbers are scaled in buckets, by their
largest rather than by their norm. TernGrad has s = 1, and one bucket for each parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from adelfl.errors import ConfigError
from adelfl.runtime.codec.base import Array, Codec, Decoded, Floats, Memory, count, through_numpy

_SCALE = 4  # bytes


def _buckets(numbers: int, size: int | None) -> int:
    return min(1, numbers) if size is None else -(-numbers // size)


class _Quantised(Codec):
    """Round numbers to a few levels, up or down at random."""

    bits: int
    bucket: int | None

    @property
    def levels(self) -> int:
        """s."""
        return int(2 ** (self.bits - 1)) - 1

    def bytes(self, update: Mapping[str, Array]) -> int:
        """Return the bytes of all numbers, and of the scale of each bucket."""
        sizes = [count(value) for value in update.values()]
        return sum(-(-n * self.bits // 8) + _SCALE * _buckets(n, self.bucket) for n in sizes)

    def encode(self, update: Mapping[str, Array], rng: np.random.Generator, memory: Memory) -> Decoded:
        """Round at random."""

        def rounded(numbers: Floats) -> Floats:
            size, n = self.bucket or numbers.size, numbers.size
            padded = np.zeros(_buckets(n, self.bucket) * size)
            padded[:n] = numbers
            values = padded.reshape(-1, size or 1)
            scale = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
            level = np.abs(values) / np.where(scale > 0, scale, 1.0) * self.levels
            decoded = scale / self.levels * np.sign(values) * np.floor(level + rng.random(values.shape))
            flat: Floats = decoded.ravel()[:n]
            return flat

        return Decoded({name: through_numpy(value, rounded) for name, value in update.items()}, memory)


@dataclass(frozen=True)
class QSGD(_Quantised):
    """Send each number with a few bits.

    Attributes
    ----------
    bits : int
        Bits for each number, with its sign: from 2 to 16, usually 8 or 4.
    bucket : int
        Numbers that share a scale.
    """

    bits: int = 8
    bucket: int | None = 512
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise ConfigError(f"codec qsgd: bits must be a whole number from 2 to 16, not {self.bits!r}")
        if not isinstance(self.bucket, int) or self.bucket < 1:
            raise ConfigError(f"codec qsgd: bucket must be a whole number of at least 1, not {self.bucket!r}")
        more = "" if self.bucket == 512 else f";bucket={self.bucket}"
        object.__setattr__(self, "name", f"qsgd[bits={self.bits}{more}]")


class TernGrad(_Quantised):
    """Send each number as −s, 0 or s."""

    name, bits, bucket = "terngrad", 2, None
