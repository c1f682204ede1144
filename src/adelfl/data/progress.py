"""Progress of long jobs: a user's callback, or a bar on stderr if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@contextmanager
def reporting(progress: Progress | None, title: str) -> Iterator[Progress]:
    """Yield a function of (done, total)."""
    if progress is not None:
        yield progress
    # isatty rather than rich's own test, which is true for a log file if FORCE_COLOR is set.
    elif sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield lambda done, total: None
