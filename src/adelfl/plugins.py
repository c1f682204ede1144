"""Import of optional packages, and import and call of a user's code; errors are one sentence."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from adelfl.errors import AdelError, ConfigError, MissingExtraError


def optional(module: str, package: str, extra: str = "data") -> Any:  # noqa: ANN401 - a module
    """Import a module of a package that belongs to an extra of adelfl."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingExtraError(package, extra) from None
    except ImportError as error:  # such as a package for another version of Python or NumPy
        raise ConfigError(f"{package} is installed but cannot be imported ({error}); reinstall it") from None


def import_object(key: str, path: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    """Import ``package.module:name``; modules may be in the working directory, as with ``python -m``.

    ``sys.path`` is the same afterwards; the command line adds the working directory permanently.
    """
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"{key}: {path!r} must look like package.module:name")
    with _working_directory(), users_code(f"{key}: {path!r} cannot be imported"):
        return getattr(import_module(module), attribute)


def call_factory(key: str, path: str, *arguments: object) -> Any:  # noqa: ANN401 - any object of a user's code
    """Call a user's function by its import path."""
    factory = import_object(key, path)
    names = {3: "(input_shape, classes, seed)", 1: "(dataset)"}.get(len(arguments), "()")
    with users_code(f"{key}: {path}{names} fails"):
        return factory(*arguments)


@contextmanager
def _working_directory() -> Iterator[None]:
    """Add the working directory to ``sys.path`` temporarily."""
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
    """Turn an error of a user's code into a ConfigError of one sentence, with the error as its cause."""
    try:
        yield
    except AdelError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} ({in_words(error)})") from error


def in_words(error: BaseException) -> str:
    """Return the type of an error, the first line of its message, and its place in the user's code."""
    try:
        message = str(error).strip()
    except Exception:  # of a broken __str__
        message = ""
    text = f"{type(error).__name__}: {(message or 'no reason given').splitlines()[0]}"
    if isinstance(error, SyntaxError):
        return text  # the message has the place
    places = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    users = [f"{file.name}, line {line}" for file, line in places if _is_users(file)]
    return f"{text}; {users[-1]}" if users else text


def _is_users(file: Path) -> bool:
    """Return whether a file is part of neither adelfl, nor Python, nor an installed package."""
    ours, pythons = Path(__file__).parent, Path(os.__file__).parent
    return file.is_file() and not {ours, pythons} & {*file.parents} and "site-packages" not in file.parts
