"""A user's own code, by import path, and what goes wrong in it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from adelfl.errors import AdelError, ConfigError


def import_object(key: str, path: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    """Import ``package.module:name``; modules in the working directory are found, as with ``python -m``.

    ``sys.path`` is the same afterwards; the command line adds the working directory for good.
    """
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"{key}: {path!r} must look like package.module:name")
    with _working_directory(), users_code(f"{key}: {path!r} cannot be imported"):
        return getattr(import_module(module), attribute)


@contextmanager
def _working_directory() -> Iterator[None]:
    """Let modules be imported from the working directory, for a while."""
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Let what goes wrong in a user's code be one sentence, with the whole of it as its cause."""
    try:
        yield
    except AdelError:
        raise
    except (Exception, SystemExit) as trouble:
        raise ConfigError(f"{what} ({in_words(trouble)})") from trouble


def in_words(trouble: BaseException) -> str:
    """The kind of an error, the first line of its message, and where in the user's code it came up."""
    try:
        message = str(trouble).strip()
    except Exception:  # it takes all kinds
        message = ""
    said = f"{type(trouble).__name__}: {(message or 'no reason given').splitlines()[0]}"
    if isinstance(trouble, SyntaxError):
        return said  # its message has the place
    places = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(trouble.__traceback__)]
    users = [f"{file.name}, line {line}" for file, line in places if _is_users(file)]
    return f"{said}; {users[-1]}" if users else said


def _is_users(file: Path) -> bool:
    """Whether code is neither ours, nor Python's own, nor installed."""
    ours, pythons = Path(__file__).parent, Path(os.__file__).parent
    return file.is_file() and not {ours, pythons} & {*file.parents} and "site-packages" not in file.parts
