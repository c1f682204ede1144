"""Docstrings name other objects with Sphinx's roles, as in :func:`plan`; pages of the site show the name alone."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc|obj):(<code>)~?(?:[\w.]+\.)?(\w+)")


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs calls it with more than is needed
    """Called by mkdocs with each page's HTML."""
    return _ROLE.sub(r"\1\2", html)
