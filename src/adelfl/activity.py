"""Detection of whether a process writes a run, from the lock on its folder and the age of its files."""

from __future__ import annotations

import os
import re
from pathlib import Path

RECENT = 15.0
"""Seconds after its last change for which a run counts as being written; the lock may be another machine's."""


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
