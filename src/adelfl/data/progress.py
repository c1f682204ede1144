"""Progress bar of long jobs, on stderr if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def with_bar(items: Iterable[T], title: str, total: int) -> Iterator[T]:
    """Yield the items, and show how many of them were taken."""
    # isatty rather than rich's own test, which is true for a log file if FORCE_COLOR is set.
    if sys.stderr is None or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total, console=Console(stderr=True), transient=True)
