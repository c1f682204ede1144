"""Reads a run's files as strangers wrote them: no link followed, no pipe waited for, every number finite."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from adelfl.errors import AdelError

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LARGEST = 1 << 26  # bytes of a JSON file
_LONGEST = 300  # characters of a text that is shown


class CorruptRunError(AdelError):
    """A run's folder holds what no run writes."""


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain file; a link is an error, since it could lead out of the folder that is shown."""
    with open(os.open(path, _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a plain file")
        yield file


def parse(text: bytes) -> dict[str, Any]:
    """One JSON object; what JSON has no word for (NaN, Infinity) becomes None."""
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise CorruptRunError("it is not JSON") from None
    if not isinstance(found, dict):
        raise CorruptRunError("it is not a JSON object")
    return found


def read_json(path: Path, keys: frozenset[str]) -> dict[str, Any]:
    """Read a JSON file that must have some keys."""
    try:
        with open_file(path) as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise CorruptRunError("it is too large")
        found = parse(text)
        if missing := keys - found.keys():
            raise CorruptRunError(f"it lacks {', '.join(sorted(missing))}")
    except CorruptRunError as trouble:
        raise CorruptRunError(f"{path.name} is not a run's: {trouble}") from None
    except OSError as trouble:
        raise CorruptRunError(f"{path.name} cannot be read ({trouble.strerror})") from None
    return found


def as_number(value: object) -> float | None:
    """Return a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def as_count(value: object) -> int:
    """Return a whole number that is not negative, or 0 for anything else."""
    found = as_number(value)
    return 0 if found is None else max(0, int(found))


def as_text(value: object) -> str:
    """Return a text of a length that can be shown; what is neither text nor number is none."""
    return str(value)[:_LONGEST] if isinstance(value, str | int | float) else ""


def as_texts(value: object) -> list[str]:
    """Return a list of texts."""
    return [as_text(v) for v in value] if isinstance(value, list) else []
