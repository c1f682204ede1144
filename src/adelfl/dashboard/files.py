"""Guarded access to a run's files: links are not followed, pipes not waited for, non-finite numbers not passed on."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from adelfl.errors import AdelError

T = TypeVar("T")

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_MAX_BYTES = 1 << 26  # of a JSON file
_MAX_CHARACTERS = 300  # of a text that is shown
_MAX_NUMBER = 1e300


class CorruptRunError(AdelError):
    """A run's folder holds what adelfl does not write."""


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file; a link is an error, since it could lead out of the folder that is shown."""
    with open(os.open(path, _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a plain file")
        yield file


def parse(text: bytes, convert: Callable[[object], T]) -> T:
    """Parse and check JSON; NaN and Infinity are read, and :func:`finite` keeps them from the browser."""
    try:
        return convert(json.loads(text))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise CorruptRunError("it is not JSON") from None
    except ValueError as error:
        raise CorruptRunError(str(error)) from None


def read_json(path: Path, convert: Callable[[object], T]) -> T:
    """Read and check a JSON file."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                raise CorruptRunError("it is too large")
            return parse(file.read(), convert)
    except CorruptRunError as error:
        raise CorruptRunError(f"{path.name} does not belong to a run: {error}") from None
    except OSError as error:
        raise CorruptRunError(f"{path.name} cannot be read ({error.strerror})") from None


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold, or None."""
    return value if value is not None and -_MAX_NUMBER < value < _MAX_NUMBER else None


def short(text: str) -> str:
    """Return a text of a length that can be shown."""
    return text[:_MAX_CHARACTERS]
