"""Adapt the HTML of pages for the site; mkdocs calls the hook at the end."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:mod|class|meth|func|attr|data|exc|obj):(<code>)~?(?:[\w.]+\.)?(\w+)")
_FIGURE = re.compile(r'<p>(<img [^>]*?src="([^"]+)"[^>]*>)</p>')
_CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
_PERCENT = re.compile(r"(<pre\b.*?</pre>)|(?<=\d) %", re.DOTALL)  # not in code
_LONG = 40  # characters of a table cell that holds a sentence


def _cell(match: re.Match[str]) -> str:
    text = re.sub(r"<[^>]+>", "", match[1])
    return f'<td class="long">{match[1]}</td>' if len(text) > _LONG else match[0]


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 - mkdocs calls it with more than is needed
    """Show roles such as :func:`plan` as names, link figures to their files, and keep ``a ± b`` and ``c %`` whole."""
    html = _ROLE.sub(r"\1\2", html).replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    html = _FIGURE.sub(r'<p><a class="figure" href="\2">\1</a></p>', html)
    html = _PERCENT.sub(lambda match: match[1] or "\N{NO-BREAK SPACE}%", html)
    return _CELL.sub(_cell, html)
