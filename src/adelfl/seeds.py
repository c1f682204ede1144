"""One integer seed per run; every draw has a generator of its own, named by what it is for."""

from __future__ import annotations

import zlib

import numpy as np

_WORD = 1 << 32


def rng_for(seed: int, *path: str | int) -> np.random.Generator:
    """Build the generator of one named draw.

    A draw depends on the seed and its name only, never on what was drawn before, so strategies that
    are compared on one seed meet the same luck.

    Parameters
    ----------
    seed : int
        The run's seed, non-negative.
    *path : str or int
        The draw's name, for example ``"latency", t, u``. Integers are non-negative.

    Returns
    -------
    numpy.random.Generator
        A generator that equal arguments always rebuild in the same state.
    """
    # The leading 0 or 1 keeps the word "a" and the integer crc32("a") apart.
    words = [w for part in path for w in ((0, zlib.crc32(part.encode())) if isinstance(part, str) else (1, part))]
    words.insert(0, seed)
    if all(0 <= word < _WORD for word in words):  # the same generator, in half the time that a list of integers takes
        return np.random.default_rng(np.array(words, np.uint32))
    return np.random.default_rng(words)
