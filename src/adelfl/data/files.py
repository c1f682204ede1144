"""Writing .npz files that are either whole or absent, and reading them without pickle."""

from __future__ import annotations

import os
import uuid
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_ABANDONED = 3600.0  # seconds after which a temporary file belongs to a process that was killed


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays so that ``path`` appears whole or not at all, whenever the process dies.

    Raises
    ------
    OSError
        The file cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        # Opened by name rather than by tempfile, whose 0600 would shut others out of a shared cache.
        with open(temporary, "xb") as file:
            _write(file, arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    _sweep(path)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read every array; the CRC-32 that a zip archive keeps of each is checked on the way.

    Damage shows in many ways: zipfile, zlib, struct and numpy's header parser each raise errors of their own.
    """
    # Opened here, since np.load forgets to close a file that turns out to be no archive.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)


def _write(file: BinaryIO, arrays: Mapping[str, NDArray[Any]]) -> None:
    # What np.savez does, but it takes allow_pickle only since numpy 2.1, and before that for the name of an array.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _sweep(path: Path) -> None:
    """Remove what killed writers of the same file left; their age is told by the file just written."""
    with suppress(OSError):
        now = path.stat().st_mtime
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            if now - left.stat().st_mtime > _ABANDONED:
                left.unlink()
