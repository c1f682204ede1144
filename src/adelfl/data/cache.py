"""Cache of decoded images; a damaged cache is decoded again."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.atomic import replacing

_FORMAT = 1  # raise it when the decoder's output changes


def cache_file(folder: str | Path | None, name: str, sources: Iterable[Path]) -> Path:
    """Return the cache file of a data set, whose name depends on the sizes and times of change of its sources.

    The folder is the given one, or $ADELFL_CACHE, or ~/.cache/adelfl.
    """
    folder = Path(folder or os.environ.get("ADELFL_CACHE") or "~/.cache/adelfl").expanduser()
    stats = [(path.name, path.stat()) for path in sources]
    key = repr([_FORMAT, name, *((n, s.st_size, s.st_mtime_ns) for n, s in stats)])
    return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def cached(path: Path, decode: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the cache file, or decode and write them; failing to write is a warning."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            # Reading also checks the CRC-32 of each array.
            return {f"{kind}_{split}": archive[f"{kind}_{split}"] for kind in "xy" for split in ("train", "test")}
    except Exception:  # zipfile, zlib, struct and numpy raise many kinds for a damaged file
        arrays = decode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True) as temporary, open(temporary, "wb") as new:
            np.savez(new, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for allow_pickle
    except OSError as error:
        warnings.warn(
            f"{path}: decoded images cannot be kept ({error.strerror or error}) and will be decoded again next "
            "time; name a folder that can be written as cache_dir or in $ADELFL_CACHE",
            stacklevel=3,
        )
    return arrays
