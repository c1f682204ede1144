"""How far a long job has come: a user's callback, or a bar on stderr if a person is looking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@contextmanager
def reporting(progress: Progress | None, title: str) -> Iterator[Progress]:
    """Yield what to call with (done, total)."""
    if progress is not None:
        yield progress
    # isatty rather than rich's own guess, which FORCE_COLOR turns to yes in a log file.
    elif sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield lambda done, total: None
