"""Writing .npz files that are either whole or absent, and reading them without pickle."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

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
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    _sweep(path)


def _sweep(path: Path) -> None:
    """Remove what killed writers of the same file left; their age is told by the file just written."""
    with suppress(OSError):
        now = path.stat().st_mtime
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            if now - left.stat().st_mtime > _ABANDONED:
                left.unlink()
