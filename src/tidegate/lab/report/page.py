"""One HTML page that holds everything: figures inside it, no script, nothing fetched."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tidegate.lab.bench.compare_report import Bar
from tidegate.lab.report.section import Drawing, Section, TableData


class Page(msgspec.Struct, frozen=True):
    """A report of several experiments."""

    title: str
    # What the system of the paper is called.
    theirs: str
    introduction: str
    sections: Sequence[Section]
    environment: Mapping[str, str]
    when: str


_STYLE = """
:root { color-scheme: light dark; --ink:#1f2328; --soft:#57606a; --line:#d8dee4; --page:#ffffff;
  --panel:#f6f8fa; --good:#1a7f37; --bad:#cf222e; --open:#9a6700; --accent:#1f6fb2; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6edf3; --soft:#9da7b1; --line:#30363d;
  --page:#0d1117; --panel:#161b22; --good:#3fb950; --bad:#f85149; --open:#d29922;
  --accent:#58a6ff; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--page); color:var(--ink);
  font:16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height:1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.3rem; margin: 0 0 .2rem; }
.when, .source { color: var(--soft); font-size: .9rem; margin: 0 0 1rem; }
section { border-top: 1px solid var(--line); padding: 2rem 0 .5rem; }
.beside { display:grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: 0 0 1.2rem; }
.beside > div { background: var(--panel); border-radius: 8px; padding: .8rem 1rem; }
.beside h3 { margin:0 0 .2rem; font-size:.8rem; letter-spacing:.05em; text-transform:uppercase;
  color: var(--soft); }
.beside p { margin: 0; }
@media (max-width: 44rem) { .beside { grid-template-columns: 1fr; } }
figure { margin: 0 0 1.4rem; }
figure img { width:100%; height:auto; background:#fff; border:1px solid var(--line);
  border-radius:8px; }
figcaption, caption { color: var(--soft); font-size: .9rem; text-align:left; padding:.35rem 0; }
.scroll { overflow-x:auto; margin: 0 0 1.2rem; }
table { border-collapse: collapse; width:100%; font-size:.92rem;
  font-variant-numeric: tabular-nums; }
th, td { padding:.35rem .7rem; border-bottom:1px solid var(--line); text-align:right;
  white-space:nowrap; }
th:first-child, td:first-child { text-align:left; white-space:normal; }
thead th { color: var(--soft); font-weight:600; }
.met { color: var(--good); font-weight:600; } .unmet { color: var(--bad); font-weight:600; }
.open { color: var(--open); font-weight:600; }
.notes { color: var(--soft); font-size:.92rem; padding-left:1.1rem; }
a { color: var(--accent); }
"""


def write_page(page: Page, folder: Path, name: str = "index.html") -> Path:
    """Write the page; drawings are read from the same folder and put into it."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(page.title)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>{_text(page.title)}</h1>",
        f'<p class="when">{_text(page.when)} · {_text(_environment(page.environment))}</p>',
        f"<p>{_text(page.introduction)}</p>",
        _summary(page.sections),
        *(_section(section, page.theirs, folder) for section in page.sections),
        "</main></body></html>",
    ]
    file = folder / name
    file.write_text("\n".join(parts), encoding="utf-8")
    return file


def _text(words: str) -> str:
    return html.escape(words)


def _environment(environment: Mapping[str, str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in environment.items())


def _summary(sections: Sequence[Section]) -> str:
    rows = [
        (f'<a href="#{section.name}">{_text(section.title)}</a>', bar)
        for section in sections
        for bar in section.bars
    ]
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td>{where}</td><td>{_text(bar.bar)}</td>{_bar_cells(bar)}</tr>"
        for where, bar in rows
    )
    return (
        '<div class="scroll"><table><thead><tr><th>experiment</th><th>shown when</th>'
        f"<th>wanted</th><th>found</th><th></th></tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _bar_cells(bar: Bar) -> str:
    sign = "≤" if bar.at_most else "≥"
    wanted = "–" if bar.limit is None else f"{sign} {bar.limit:.4g} {bar.unit}"
    found = "–" if bar.figure is None else f"{bar.figure:.4g} {bar.unit}"
    kind, verdict = {
        True: ("met", "met"),
        False: ("unmet", "not met"),
        None: ("open", "not measured"),
    }[bar.met]
    return f'<td>{_text(wanted)}</td><td>{_text(found)}</td><td class="{kind}">{verdict}</td>'


def _section(section: Section, theirs: str, folder: Path) -> str:
    notes = "".join(f"<li>{_text(note)}</li>" for note in section.notes)
    bars = "".join(f"<tr><td>{_text(bar.bar)}</td>{_bar_cells(bar)}</tr>" for bar in section.bars)
    return "\n".join(
        [
            f'<section id="{section.name}"><h2>{_text(section.title)}</h2>',
            f'<p class="source">{_text(section.source)}</p>',
            '<div class="beside">',
            f"<div><h3>{_text(theirs)}</h3><p>{_text(section.paper)}</p></div>",
            f"<div><h3>Tidegate</h3><p>{_text(section.ours)}</p></div></div>",
            *(_figure(drawing, folder) for drawing in section.drawings),
            *(_table(table) for table in section.tables),
            '<div class="scroll"><table><thead><tr><th>shown when</th><th>wanted</th>'
            f"<th>found</th><th></th></tr></thead><tbody>{bars}</tbody></table></div>"
            if bars
            else "",
            f'<ul class="notes">{notes}</ul>' if notes else "",
            "</section>",
        ]
    )


def _figure(drawing: Drawing, folder: Path) -> str:
    image = base64.b64encode((folder / drawing.file).read_bytes()).decode()
    return (
        f'<figure><img alt="{_text(drawing.caption)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{_text(drawing.caption)}</figcaption></figure>"
    )


def _table(table: TableData) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return (
        f'<div class="scroll"><table><caption>{_text(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
