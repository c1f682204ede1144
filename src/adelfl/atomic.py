"""Files that are there whole or not at all, and folders that one process at a time writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from adelfl.errors import AdelError, ConfigError

Weights = dict[str, NDArray[Any]]


class RunBusyError(AdelError):
    """Another process is writing this run."""


class RunFinishedError(AdelError):
    """Another process has finished this run in the meantime."""


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A file beside ``path`` that takes its place if all goes well, and goes if not.

    Parameters
    ----------
    path : Path
        The file to replace; a link stays, and the file behind it is replaced.
    shared : bool
        Whether other processes may replace the same file at this moment: each then has a temporary file of its own.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}{f'.{os.getpid()}' if shared else ''}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as written:
            os.fsync(written.fileno())  # or a power failure may leave an empty file under the new name
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Write JSON so that readers see the old file or the new one, never half of it."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_output(path: Path, content: str | bytes) -> None:
    """Write what a user asked for so that an earlier file stays whole until the new one is.

    Raises
    ------
    ConfigError
        If it cannot be written; an earlier file is then as it was.
    """
    try:
        with replacing(path, shared=True) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_weights(path: Path, weights: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    """Write safetensors in the same way."""
    # Not save_file: it writes by way of a file of its own, which a kill leaves behind and only its owner may read.
    content = save({name: np.asarray(w, order="C") for name, w in weights.items()}, metadata=metadata)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def lock(folder: Path) -> int | None:
    """Hold a folder against other writers until the descriptor is closed; None where that cannot be done."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows has no flock; two writers are then the user's care
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise RunBusyError(f"{folder}: another process has just removed this run") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunBusyError(f"{folder}: another process is writing this run") from None
    except OSError:  # a disk that knows no locks: two writers are the user's care there too
        os.close(descriptor)
        return None
    return descriptor
