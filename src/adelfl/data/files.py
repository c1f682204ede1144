"""Atomic writing of .npz files, and reading them without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adelfl.atomic import replacing

_ABANDONED = 3600.0  # seconds after which a temporary file belongs to a process that was killed


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays such that ``path`` is complete or absent, even if the process is killed.

    Temporary files that killed processes left behind are removed.

    Raises
    ------
    OSError
        The file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, shared=True) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for allow_pickle
    with suppress(OSError):
        now = path.stat().st_mtime
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            if now - left.stat().st_mtime > _ABANDONED:
                left.unlink()


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read every array, which also checks the CRC-32 of each.

    A damaged file raises errors of zipfile, zlib, struct or numpy.
    """
    # Opened here, since np.load does not close a file that turns out to be no archive.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)
