"""A user's own code, by import path."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from adelfl.errors import ConfigError


def import_object(key: str, path: str) -> Any:  # noqa: ANN401 - whatever the user's module holds
    """Import ``package.module:name``; modules in the working directory are found, as with ``python -m``."""
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        raise ConfigError(f"{key}: {path!r} must look like package.module:name")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as trouble:
        raise ConfigError(f"{key}: {path!r} cannot be imported ({trouble})") from None
