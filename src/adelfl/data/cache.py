"""Decoded images on disk: decoded once, checked on every read, rebuilt when anything is wrong."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adelfl.data.arrays import Ints
from adelfl.data.files import read_npz, write_npz

Bytes = NDArray[np.uint8]
Split = tuple[Bytes, Ints]
"""Pixels, shape (N, channels, height, width), and labels, shape (N,)."""

_FORMAT = 1  # raise it when the decoder's output changes


def cache_folder(folder: str | Path | None) -> Path:
    """The folder given, or $ADELFL_CACHE, or ~/.cache/adelfl."""
    return Path(folder or os.environ.get("ADELFL_CACHE") or "~/.cache/adelfl").expanduser()


def cache_file(folder: Path, name: str, sources: Iterable[Path]) -> Path:
    """Where the decoded form of these source files lies: told by their names, sizes and times of change."""
    stats = [(path.name, path.stat()) for path in sources]
    key = repr([_FORMAT, name, *((n, s.st_size, s.st_mtime_ns) for n, s in stats)])
    return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def read(path: Path, shape: Sequence[int]) -> tuple[Split, Split] | None:
    """Read (train, test); None if there is no such file, or if it is not whole."""
    if not path.is_file():
        return None
    try:
        archive = read_npz(path)
        train = archive["x_train"], archive["y_train"]
        test = archive["x_test"], archive["y_test"]
    except Exception:  # whatever the damage looks like (see read_npz), decoding again mends it
        return None
    for x, y in (train, test):
        if x.dtype != np.uint8 or y.dtype != np.int64 or x.shape != (y.size, *shape) or y.ndim != 1:
            return None
    return train, test


def cached(path: Path, shape: Sequence[int], decode: Callable[[], tuple[Split, Split]]) -> tuple[Split, Split]:
    """Read the file, or decode and write it. A cache that cannot be written costs a warning, not the run."""
    if (splits := read(path, shape)) is not None:
        return splits
    splits = decode()
    (x_train, y_train), (x_test, y_test) = splits
    try:
        write_npz(path, {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test})
    except OSError as trouble:
        warnings.warn(
            f"{path}: decoded images cannot be kept ({trouble.strerror or trouble}) and will be decoded again next "
            "time; name a folder that can be written as cache_dir or in $ADELFL_CACHE",
            stacklevel=3,
        )
    return splits
