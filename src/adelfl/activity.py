"""Whether a process writes a run: told by the lock on its folder and the age of its files, touching neither."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

Activity = Literal["locked", "recent", "stopped"]

RECENT = 15.0
"""Seconds in which a file that grew is taken for one that is still being written."""


def locked_inodes() -> set[int]:
    """Files that a process of this machine has locked.

    A writer locks its folder. To try the lock would tell as well, and everywhere, but could get in the way of a writer
    that begins at that moment. Devices are not compared: some file systems tell two stories about theirs.
    """
    try:
        text = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(inode) for inode in re.findall(r" FLOCK .* WRITE -?\d+ [0-9a-f]+:[0-9a-f]+:(\d+) ", text)}


def activity(folder: Path, silence: float, patience: float, locked: set[int]) -> Activity:
    """Tell whether an unfinished run is being written.

    Parameters
    ----------
    folder : Path
        Of the run.
    silence : float
        Seconds since one of its files changed.
    patience : float
        Seconds of silence after which a run without a lock is taken for stopped: a process of another machine may
        write it, whose locks are not seen here.
    locked : set of int
        What :func:`locked_inodes` returned.
    """
    try:
        if os.stat(folder).st_ino in locked:
            return "locked"
    except OSError:
        pass
    return "recent" if silence < patience else "stopped"


def patience_for(clock: str, deadline: float) -> float:
    """Seconds of silence that do not mean that a run has stopped: two rounds, on a real clock."""
    return max(RECENT, 2.0 * deadline) if clock == "real" else RECENT
