"""Reads a run's files as strangers wrote them: no link followed, no pipe waited for, every number finite."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from adelfl.errors import AdelError

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LARGEST = 1 << 26  # bytes of a JSON file
_LONGEST = 300  # characters of a text that is shown
_MOST = 1e300  # of a number; NaN is not below it either


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
    """One JSON object. NaN and Infinity, for which JSON has no word, are read; :func:`as_number` keeps them back."""
    try:
        found = from_json(text)  # five times as fast as json, but it refuses half a character
    except ValueError:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise CorruptRunError("it is not JSON") from None
    if not isinstance(found, dict):
        raise CorruptRunError("it is not a JSON object")
    return found


def read_json(path: Path, keys: frozenset[str]) -> dict[str, Any]:
    """Read a JSON file that must have some keys."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > _LARGEST:
                raise CorruptRunError("it is too large")
            found = parse(file.read())
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
    return float(value) if -_MOST < value < _MOST else None


def as_count(value: object) -> int:
    """Return a whole number that is not negative, or 0 for anything else."""
    if type(value) is int and 0 <= value < _MOST:
        return value
    found = as_number(value)
    return 0 if found is None else max(0, int(found))


def as_text(value: object) -> str:
    """Return a text of a length that can be shown; what is neither text nor number is none."""
    return str(value)[:_LONGEST] if isinstance(value, str | int | float) else ""


def as_texts(value: object) -> list[str]:
    """Return a list of texts."""
    return [as_text(v) for v in value] if isinstance(value, list) else []
