"""HTML from text: everything is escaped unless it was made here; one style sheet for screen, dark screen and paper."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""No script, no other file: not even if a record had found a way in."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dfe3e8; --page: #ffffff; --card: #f6f7f9;
  --accent: #0072b2; --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b4; --line: #313a47; --page: #12161c;
  --card: #1a2029; --accent: #56b4e9; --bad: #ff8a80; --warn: #f0b95a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.5rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 3rem 0 .5rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.lede { font-size: 1.08rem; }
.soft, figcaption, .caption { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 1.2rem 0 0; font-size: .92rem; }
nav a { white-space: nowrap; color: var(--accent); text-decoration: none; }
nav a:hover { text-decoration: underline; }
figure { margin: 1rem 0 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; padding: .7rem; }
figcaption, .caption { font-size: .9rem; line-height: 1.5; margin: .55rem 0 0; max-width: 52rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
.number { text-align: right; }
td.number { white-space: nowrap; }
tbody tr:hover { background: var(--card); }
.name { font-weight: 600; }
.strategy { display: flex; align-items: baseline; gap: .6em; min-width: 9rem; }
.name { overflow-wrap: anywhere; }
.path { display: inline-block; min-width: 15rem; overflow-wrap: anywhere;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .86em; }
.swatch { flex: none; width: 1.3em; height: 0; position: relative; top: -.3em; }
.bad { color: var(--bad); } .warn { color: var(--warn); }
.note { background: var(--card); border-left: 3px solid var(--warn); border-radius: 4px; padding: .5rem .9rem;
  margin: .5rem 0; max-width: 52rem; overflow-wrap: anywhere; }
.settings { columns: 15rem 3; column-gap: 2rem; margin: .6rem 0 0; }
.settings div { break-inside: avoid; margin-bottom: 1rem; }
.settings b { display: block; color: var(--soft); font-size: .86rem; }
.settings code { display: block; font: .84rem/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; padding-left: 1em; text-indent: -1em; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: .86rem; }
@page { size: A4; margin: 14mm; }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --line: #ccc; --page: #fff; --card: #fff; --accent: #000;
    --bad: #8c1d18; --warn: #6b4600; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  h2 { margin-top: 1.2rem; padding-top: .6rem; }
  .swatch { print-color-adjust: exact; }
  h2, h3 { break-after: avoid; }
  h2 + p { break-after: avoid; }
  figure, tr, .note { break-inside: avoid; }
  thead { display: table-header-group; }
  figure img { border: 0; padding: 0; max-height: 235mm; object-fit: contain; }
  .wide { overflow: visible; }
  th, td { padding: .3rem .45rem; }
}
"""

_EMPTY = ("meta", "img")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *inside: str, **attributes: str) -> Html:
    """Make an element; plain text inside and attributes are escaped. ``kind`` stands for ``class``."""
    said = "".join(f' {key.replace("kind", "class")}="{_text(value)}"' for key, value in attributes.items())
    if name in _EMPTY:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{''.join(map(_text, inside))}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Put pieces one after another; plain text among them is escaped."""
    return Html("".join(map(_text, parts)))


def _text(text: str) -> str:
    if isinstance(text, Html):
        return text
    seen = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return html.escape(seen, quote=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = (), caption: str = "") -> Html:
    """Make a table; the columns in ``numbers`` are aligned to the right."""

    def line(kind: str, cells: Sequence[str]) -> Html:
        found = (tag(kind, c, kind="number") if i in numbers else tag(kind, c) for i, c in enumerate(cells))
        return tag("tr", *found)

    body = tag("tbody", *(line("td", row) for row in rows))
    found = tag("div", tag("table", tag("thead", line("th", head)), body), kind="wide")
    return joined([found, tag("p", caption, kind="caption")]) if caption else found


def picture(svg: bytes, alt: str, caption: str) -> Html:
    """Make a figure whose image is part of the page. Inside ``img`` an SVG can run no script and load nothing."""
    source = Html("data:image/svg+xml;base64," + base64.b64encode(svg).decode())
    return tag("figure", tag("img", src=source, alt=alt), tag("figcaption", caption))


def page(title: str, *inside: str) -> str:
    """Make a whole document, which needs no other file."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}<body>{tag("main", *inside)}</body></html>\n'
