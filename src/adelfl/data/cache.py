"""Cache of decoded images, checked on every read and rebuilt if anything is wrong."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adelfl.atomic import replacing
from adelfl.data.arrays import Ints

Bytes = NDArray[np.uint8]
Split = tuple[Bytes, Ints]
"""Pixels, shape (N, channels, height, width), and labels, shape (N,)."""

_FORMAT = 1  # raise it when the decoder's output changes
_ABANDONED = 3600.0  # seconds after which a temporary file belongs to a process that was killed


def cache_file(folder: str | Path | None, name: str, sources: Iterable[Path]) -> Path:
    """Return the cache file of a data set, whose name depends on the sizes and times of change of its sources.

    The folder is the given one, or $ADELFL_CACHE, or ~/.cache/adelfl.
    """
    folder = Path(folder or os.environ.get("ADELFL_CACHE") or "~/.cache/adelfl").expanduser()
    stats = [(path.name, path.stat()) for path in sources]
    key = repr([_FORMAT, name, *((n, s.st_size, s.st_mtime_ns) for n, s in stats)])
    return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def cached(path: Path, shape: Sequence[int], decode: Callable[[], tuple[Split, Split]]) -> tuple[Split, Split]:
    """Return (train, test) from the cache file, or decode them and write it; failing to write is a warning."""
    if (splits := _read(path, shape)) is not None:
        return splits
    splits = decode()
    (x_train, y_train), (x_test, y_test) = splits
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True) as temporary, open(temporary, "wb") as file:
            np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        _remove_abandoned(path)
    except OSError as error:
        warnings.warn(
            f"{path}: decoded images cannot be kept ({error.strerror or error}) and will be decoded again next "
            "time; name a folder that can be written as cache_dir or in $ADELFL_CACHE",
            stacklevel=3,
        )
    return splits


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files that killed processes left behind."""
    with suppress(OSError):
        now = path.stat().st_mtime
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            if now - left.stat().st_mtime > _ABANDONED:
                left.unlink()


def _read(path: Path, shape: Sequence[int]) -> tuple[Split, Split] | None:
    """Read (train, test); None if the file is absent or damaged."""
    if not path.is_file():
        return None
    try:
        # Opened here, since np.load does not close a file that turns out to be no archive; reading checks each CRC-32.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            splits = (archive["x_train"], archive["y_train"]), (archive["x_test"], archive["y_test"])
    except Exception:  # of zipfile, zlib, struct or numpy; decoding again repairs it
        return None
    for x, y in splits:
        if x.dtype != np.uint8 or y.dtype != np.int64 or x.shape != (y.size, *shape) or y.ndim != 1:
            return None
    return splits
