"""The HTML page of a run: figures are embedded, nothing is loaded, and there is no script."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tidegate.lab.bench.bars import Bar
from tidegate.lab.report.section import Drawing, Section
from tidegate.report.markup import BASE_STYLE, table, text
from tidegate.report.markup import page as whole_page


class Page(msgspec.Struct, frozen=True):
    """The contents of a page about several experiments."""

    title: str
    # The name of the system that the paper describes.
    theirs: str
    introduction: str
    sections: Sequence[Section]
    environment: Mapping[str, str]
    when: str
    # Experiments that were not completed, with the reason.
    failed: Mapping[str, str] = {}


_STYLE = (
    BASE_STYLE
    + """
main { max-width: 62rem; }
.when, .source { color: var(--soft); font-size: .9rem; margin: 0 0 1rem; }
.beside { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: 0 0 1.2rem; }
.beside > div { background: var(--panel); border-radius: 8px; padding: .8rem 1rem; }
.beside h3 { font-size: .8rem; letter-spacing: .05em; text-transform: uppercase;
  color: var(--soft); }
.beside p { margin: 0; }
@media (max-width: 44rem) { .beside { grid-template-columns: 1fr; } }
figure img { width: 100%; height: auto; background: #fff; border: 1px solid var(--pale);
  border-radius: 8px; }
.met { color: var(--teal); font-weight: 600; } .unmet { color: var(--brick); font-weight: 600; }
.open { color: var(--amber); font-weight: 600; }
"""
)


def write_page(page: Page, folder: Path, name: str = "index.html") -> Path:
    """Write the page; drawings are read from the same folder and embedded."""
    body = [
        f"<h1>{text(page.title)}</h1>",
        f'<p class="when">{text(page.when)} · {text(_environment(page.environment))}</p>',
        _missed(page),
        f"<p>{text(page.introduction)}</p>",
        _summary(page.sections),
        *(_section(section, page.theirs, folder) for section in page.sections),
    ]
    file = folder / name
    file.write_text(whole_page(page.title, _STYLE, "\n".join(body)), encoding="utf-8")
    return file


def _environment(environment: Mapping[str, str]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in environment.items())


def _missed(page: Page) -> str:
    """Return the bars that were missed or not measured: the reader has to know these first."""
    lines = [f"{name} did not come to its end: {why}" for name, why in page.failed.items()]
    for section in page.sections:
        for bar in section.bars:
            if bar.met is False:
                found = _found(bar) if bar.distinguishable else f"{_found(bar)}, {bar.verdict}"
                lines.append(f"{section.title}: {bar.bar}: {found}, wanted {_wanted(bar)}")
            elif bar.met is None:
                lines.append(f"{section.title}: {bar.bar}: not measured")
    if not lines:
        return (
            '<p class="met">Every bar was met.</p>'
            if any(section.bars for section in page.sections)
            else ""
        )
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<div class="missed"><p class="unmet">Missed:</p><ul>{items}</ul></div>'


def _summary(sections: Sequence[Section]) -> str:
    rows = [
        (f'<a href="#{section.name}">{text(section.title)}</a>', bar)
        for section in sections
        for bar in section.bars
    ]
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td>{where}</td><td>{text(bar.bar)}</td>{_bar_cells(bar)}</tr>" for where, bar in rows
    )
    return (
        '<div class="scroll"><table><thead><tr><th>experiment</th><th>shown when</th>'
        f"<th>wanted</th><th>found</th><th></th></tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _wanted(bar: Bar) -> str:
    return "–" if bar.limit is None else f"{bar.sign} {bar.limit:.4g} {bar.unit}"


def _found(bar: Bar) -> str:
    if bar.figure is None:
        return "–"
    half = "" if bar.half_width is None else f" ± {bar.half_width:.4g}"
    return f"{bar.figure:.4g}{half} {bar.unit}"


def _bar_cells(bar: Bar) -> str:
    kind = {True: "met", False: "unmet", None: "open"}[bar.met]
    return (
        f"<td>{text(_wanted(bar))}</td><td>{text(_found(bar))}</td>"
        f'<td class="{kind}">{bar.verdict}</td>'
    )


def _section(section: Section, theirs: str, folder: Path) -> str:
    notes = "".join(f"<li>{text(note)}</li>" for note in section.notes)
    bars = "".join(f"<tr><td>{text(bar.bar)}</td>{_bar_cells(bar)}</tr>" for bar in section.bars)
    return "\n".join(
        [
            f'<section id="{section.name}"><h2>{text(section.title)}</h2>',
            f'<p class="source">{text(section.source)}</p>',
            '<div class="beside">',
            f"<div><h3>{text(section.theirs or theirs)}</h3><p>{text(section.paper)}</p></div>",
            f"<div><h3>Tidegate</h3><p>{text(section.ours)}</p></div></div>",
            *(_figure(drawing, folder) for drawing in section.drawings),
            *(table(one) for one in section.tables),
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
        f'<figure><img alt="{text(drawing.caption)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{text(drawing.caption)}</figcaption></figure>"
    )
