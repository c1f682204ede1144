"""Detection of whether a process writes a run, from the lock on its folder and the age of its files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

Activity = Literal["locked", "recent", "stopped"]

RECENT = 15.0
"""Seconds after its last change for which a file counts as being written."""


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


def activity(folder: Path, silence: float, patience: float, locked: set[int]) -> Activity:
    """Return whether an unfinished run is being written.

    Parameters
    ----------
    folder : Path
        The run's folder.
    silence : float
        Seconds since the last change of its files.
    patience : float
        Seconds of silence after which a run without a visible lock counts as stopped; a process of another machine
        may be writing it.
    locked : set of int
        Result of :func:`locked_inodes`.
    """
    try:
        if os.stat(folder).st_ino in locked:
            return "locked"
    except OSError:
        pass
    return "recent" if silence < patience else "stopped"


def patience_for(clock: str, deadline: float) -> float:
    """Return the seconds of silence after which a run counts as stopped: two rounds on a real clock."""
    return max(RECENT, 2.0 * deadline) if clock == "real" else RECENT
