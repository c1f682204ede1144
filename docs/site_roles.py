"""Hooks of the site: plain names in place of Sphinx roles, and no line breaks within ``a ± b``."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc|obj):(<code>)~?(?:[\w.]+\.)?(\w+)")


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs calls it with more than is needed
    """Return the HTML of a page with readable roles and errors that stay beside their means; mkdocs calls this hook."""
    return _ROLE.sub(r"\1\2", html).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
