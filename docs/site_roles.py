"""Show Sphinx roles in docstrings, such as :func:`plan`, as plain names on the site."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc|obj):(<code>)~?(?:[\w.]+\.)?(\w+)")


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs calls it with more than is needed
    """Replace the roles in the HTML of a page; mkdocs calls this hook."""
    return _ROLE.sub(r"\1\2", html)
