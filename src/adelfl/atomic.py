"""Atomic replacement of files, locks on folders, and detection of processes that hold them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from adelfl.errors import AdelError, ConfigError

Weights = dict[str, NDArray[Any]]

RECENT = 15.0
"""Seconds after its last change for which a run counts as being written; the lock may be another machine's."""


class RunBusyError(AdelError):
    """Another process is writing this run."""


class RunFinishedError(AdelError):
    """Another process has finished this run in the meantime."""


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path``, or the file behind a link, on success and is removed on failure.

    If the file is ``shared``, several processes may replace it at once; each has its own temporary file.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}{f'.{os.getpid()}' if shared else ''}.tmp")
    try:
        yield temporary
        with open(temporary, "r+b") as written:
            os.fsync(written.fileno())  # otherwise a power failure may leave an empty file
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def write_output(path: Path, content: str | bytes) -> None:
    """Write a user's file atomically; raise ConfigError, and leave an earlier file as it was, if that fails."""
    try:
        with replacing(path, shared=True) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_weights(path: Path, weights: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    """Write safetensors atomically."""
    # Not save_file: its temporary file would stay after a kill, and is readable by its owner only.
    content = save({name: np.asarray(w, order="C") for name, w in weights.items()}, metadata=metadata)
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def lock(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed; return None where locks are not supported."""
    try:
        import fcntl
    except ImportError:  # pragma: no cover - Windows has no flock
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
    except OSError:  # the file system does not support locks
        os.close(descriptor)
        return None
    return descriptor


def locked_inodes() -> set[int]:
    """Return the inodes that processes of this machine have locked.

    Trying the lock could disturb a writer that begins at that moment. Devices are not compared, since some file systems
    report different numbers.
    """
    try:
        text = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(inode) for inode in re.findall(r" FLOCK .* WRITE -?\d+ [0-9a-f]+:[0-9a-f]+:(\d+) ", text)}


def is_written(folder: Path, silence: float, locked: set[int]) -> bool:
    """Return whether an unfinished run is being written, ``silence`` seconds after the last change of its files."""
    return silence < RECENT or (folder.exists() and os.stat(folder).st_ino in locked)
