"""Random generators, one per named draw of a run."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np

_WORD = 1 << 32


def rng_for(seed: int, *path: str | int) -> np.random.Generator:
    """Return the generator of one named draw, such as ``rng_for(seed, "latency", t, u)``.

    A draw depends on the seed and its name (words and non-negative integers) only, never on earlier draws, so that
    strategies with the same seed share their random numbers.
    """
    words = [seed]
    for part in path:
        words += _name(part) if isinstance(part, str) else (1, part)
    if min(words) >= 0 and max(words) < _WORD:  # the same generator as from a list of integers, in half the time
        return np.random.default_rng(np.array(words, np.uint32))
    return np.random.default_rng(words)


@lru_cache(maxsize=1024)
def _name(part: str) -> tuple[int, int]:
    """Return a word as numbers; the leading 0 (1 for integers) keeps the word "a" and the integer crc32("a") apart."""
    return 0, zlib.crc32(part.encode())
