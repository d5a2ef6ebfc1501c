"""HTML of tables and pages, and the base stylesheet.

All text of a page passes through `text`, which escapes it.

A page loads nothing: no script, font or picture.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from tidegate.core.harmless import harmless
from tidegate.report import palette
from tidegate.report.chart import Table
from tidegate.report.figures import count

BASE_STYLE = (
    palette.variables()
    + """
:root { --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans",
  sans-serif; --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 var(--sans); }
main { max-width: 70rem; margin: 0 auto; padding: 3rem 1.5rem 4rem; }
h1 { font-size: 2.1rem; line-height: 1.15; letter-spacing: -.02em; margin: 0 0 .4rem; }
h2 { font-size: 1.4rem; line-height: 1.25; letter-spacing: -.01em; margin: 0 0 .3rem; }
h3 { font-size: 1rem; line-height: 1.35; margin: 0 0 .15rem; }
p { margin: 0 0 .8rem; }
a { color: var(--blue); }
section { border-top: 1px solid var(--pale); padding: 2rem 0 .8rem; }
figure { margin: 0 0 1.4rem; }
figcaption, .caption { color: var(--soft); font-size: .9rem; padding: .35rem 0; margin: 0; }
.scroll { overflow-x: auto; margin: 0 0 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .7rem; border-bottom: 1px solid var(--grid); text-align: right;
  vertical-align: baseline; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; padding-left: 0; }
.words { text-align: left; white-space: normal; }
td.words { min-width: 12rem; }
td:first-child { min-width: 7rem; }
thead th { color: var(--soft); font-weight: 600; border-bottom-color: var(--axis); }
.soft, .notes { color: var(--soft); }
.notes { font-size: .9rem; padding-left: 1.1rem; }
@media (max-width: 40rem) { main { padding: 1.6rem 1rem 3rem; } h1 { font-size: 1.6rem; } }
"""
)

# Cells of at least this length count as text, which may wrap.
_WORDS_FROM = 28


def text(words: str) -> str:
    """Return the text escaped for HTML and without control characters."""
    return html.escape(harmless(words))


def table(table: Table) -> str:
    """Return a table as HTML; its caption says how many rows are not shown."""
    classes = [_class_of(index, table.rows) for index in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{text(column)}</th>'
        for column, kind in zip(table.columns, classes, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(row, classes, strict=True))
        + "</tr>"
        for row in table.rows
    )
    caption = table.caption
    if table.rows_in_all is not None and table.rows_in_all > len(table.rows):
        caption += f" Shown are {count(len(table.rows))} of {count(table.rows_in_all)} rows."
    return (
        # Outside the scrolling element, so that a phone shows all of it.
        f'<p class="caption">{text(caption)}</p>'
        f'<div class="scroll" tabindex="0"><table aria-label="{text(caption)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _class_of(column: int, rows: Sequence[Sequence[str]]) -> str:
    """Return the class of a column: text is left-aligned, numbers are right-aligned."""
    return ' class="words"' if any(len(row[column]) >= _WORDS_FROM for row in rows) else ""


def page(title: str, style: str, body: str) -> str:
    """Return a complete HTML page around `body`."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Names in the data cannot make the page load or run anything.
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">",
            f"<title>{text(title)}</title><style>{style}</style></head><body><main>",
            body,
            "</main></body></html>\n",
        ]
    )
