"""A report as one HTML page, for screens, phones and paper.

Theory of operation

A report is made in three steps, each without knowledge of the others.

1. `LearnedModels` reads tables and models of the newest run of `tidegate learn`. A table that is
   missing or unreadable is recorded as a problem and treated as absent.
2. The modules of the sections (`queues`, `services`, `summary` and others) turn rows into a
   `Document`: sections with text, charts and tables. All numbers are already formatted as text.
3. This module writes the document as HTML, `pdf` writes it as PDF.

A chart is a function that draws into matplotlib axes. On a page it becomes SVG whose colours are
variables of the stylesheet, so that it follows the reader's light or dark mode. Every chart has a
sentence with its finding above it, and a table of its numbers below it. The page is therefore
useful to readers who cannot see the charts.

The page contains everything it needs: no script, font or picture is loaded. A content security
policy forbids loading, even if the name of a queue contains HTML. All text is escaped in
`markup.text`.

Charts are about as wide as a phone; wider screens show two next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tidegate.report.chart import Card, Chart, Document, Section, Standing
from tidegate.report.drawing import svg_of
from tidegate.report.markup import BASE_STYLE, page, table, text
from tidegate.report.palette import VERDICTS

_STYLE = (
    BASE_STYLE
    + """
h1, h2, h3, td, dd { overflow-wrap: anywhere; }
.eyebrow { color: var(--soft); font-size: .8rem; letter-spacing: .14em; text-transform: uppercase;
  margin: 0 0 .5rem; }
.subtitle { font-size: 1.15rem; color: var(--soft); margin: 0 0 1.6rem; }
dl { margin: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr));
  gap: 1rem 1.6rem; margin: 0 0 1.4rem; }
.facts dt, .card dt { color: var(--soft); font-size: .82rem; }
.facts dd { margin: 0; font-size: 1.05rem; font-variant-numeric: tabular-nums; }
nav { font-size: .92rem; margin: 0 0 1.8rem; line-height: 2; }
nav a { margin-right: .9rem; text-decoration: none; overflow-wrap: anywhere; }
nav a:hover { text-decoration: underline; }
.lead { max-width: 44rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr));
  gap: 1.2rem; margin: 1rem 0 1.4rem; }
.card { background: var(--panel); border-radius: 10px; padding: 1.1rem 1.2rem 1rem;
  border-top: 3px solid var(--standing); break-inside: avoid; }
.card h3 { font-size: 1.1rem; display: flex; justify-content: space-between; gap: 1rem; }
.standing { color: var(--standing); white-space: nowrap; font-weight: 600; }
.standing svg { width: .72em; height: .72em; margin-right: .35em; }
.says { color: var(--soft); font-size: .88rem; margin: .1rem 0 .9rem; }
.budget { height: 6px; border-radius: 3px; background: var(--pale); overflow: hidden;
  margin: .25rem 0 .9rem; }
.budget span { display: block; height: 100%; background: var(--standing); }
.ribbon { display: block; width: 100%; height: 26px; margin: 0 0 .1rem; }
.card dl > div { display: flex; justify-content: space-between; gap: 1rem; padding: .12rem 0; }
.card dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; }
.small { color: var(--soft); font-size: .8rem; margin: 0 0 .8rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr));
  gap: 1.4rem 2.6rem; margin: 1.1rem 0 .6rem; }
/* Sentence, picture and numbers of neighbours lie on the same lines. */
.chart { break-inside: avoid; margin: 0; min-width: 0; display: grid; grid-row: span 3;
  grid-template-rows: subgrid; row-gap: 0; }
.chart h3 { color: var(--ink); }
.chart p { color: var(--soft); font-size: .92rem; line-height: 1.45; margin: 0 0 .5rem; }
.chart svg { display: block; width: 100%; height: auto; font-family: var(--sans);
  stroke-linejoin: round; }
details { font-size: .9rem; margin: .2rem 0 0; }
summary { color: var(--soft); cursor: pointer; font-size: .82rem; }
.missing { background: var(--panel); border-radius: 8px; padding: .9rem 1.1rem;
  color: var(--soft); }
code { font: .92em var(--mono); }
footer { border-top: 1px solid var(--pale); color: var(--soft); font-size: .85rem;
  padding-top: 1rem; margin-top: 1.5rem; }
@page { margin: 14mm; }
@media print { body { font-size: 11px; } main { max-width: none; padding: 0; }
  nav, details { display: none; } .charts { grid-template-columns: 1fr 1fr; gap: 1rem 1.6rem; }
  .cards { grid-template-columns: 1fr 1fr; } section { padding: 1.2rem 0 .4rem; }
  h2, h3 { break-after: avoid; } .card { border: 1px solid var(--pale);
  border-top: 3px solid var(--standing); }
  .budget, .card { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)

STANDING_WORDS = {
    Standing.MET: "Met",
    Standing.WARNED: "Warned",
    Standing.BREACHED: "Breached",
    Standing.NO_DATA: "No data",
}
# Each status has a shape, a colour and a word, for readers who do not distinguish the colours.
_SHAPES = {
    Standing.MET: '<circle cx="6" cy="6" r="5.4" fill="currentColor"/>',
    Standing.WARNED: '<path d="M6 .4 11.8 11.4H.2z" fill="currentColor"/>',
    Standing.BREACHED: '<path d="M.8.8h10.4v10.4H.8z" fill="currentColor"/>',
    Standing.NO_DATA: '<circle cx="6" cy="6" r="4.6" fill="none" stroke="currentColor" '
    'stroke-width="1.6"/>',
}
RIBBON_HEIGHTS = {
    Standing.MET: 0.38,
    Standing.WARNED: 0.68,
    Standing.BREACHED: 1.0,
    Standing.NO_DATA: 0.1,
}


def html_of(document: Document) -> str:
    """Return the whole page."""
    return page(document.title, _STYLE, "\n".join(_body(document)))


def _body(document: Document) -> Iterator[str]:
    yield '<header><p class="eyebrow">Tidegate</p>'
    yield f"<h1>{text(document.title)}</h1>"
    yield f'<p class="subtitle">{text(document.subtitle)}</p>'
    facts = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(fact)}</dd></div>" for name, fact in document.facts
    )
    yield f'<dl class="facts">{facts}</dl></header>'
    links = " ".join(
        f'<a href="#{section.anchor}">{text(section.title)}</a>' for section in document.sections
    )
    yield f'<nav aria-label="Sections">{links}</nav>'
    for section in document.sections:
        yield from _section(section)
    yield f"<footer>{_notes(document.notes)}</footer>"


def _section(section: Section) -> Iterator[str]:
    heading = f"{section.anchor}-title"
    yield f'<section id="{section.anchor}" aria-labelledby="{heading}">'
    yield f'<h2 id="{heading}">{text(section.title)}</h2>'
    if section.sentence:
        yield f'<p class="lead">{text(section.sentence)}</p>'
    if section.cards:
        yield f'<div class="cards">{"".join(_card(card) for card in section.cards)}</div>'
    if section.charts:
        charts = (
            _chart(chart, f"{section.anchor}-{position}")
            for position, chart in enumerate(section.charts, start=1)
        )
        yield f'<div class="charts">{"".join(charts)}</div>'
    yield from (table(one) for one in section.tables)
    if section.missing:
        yield f'<p class="missing">{_with_commands(section.missing)}</p>'
    yield _notes(section.notes)
    yield "</section>"


def _chart(chart: Chart, name: str) -> str:
    picture = svg_of(chart, name, f"{chart.title}. {chart.sentence}")
    return (
        f'<figure class="chart"><figcaption><h3>{text(chart.title)}</h3>'
        f"<p>{text(chart.sentence)}</p></figcaption>{picture}"
        f"<details><summary>The numbers</summary>{table(chart.table)}</details></figure>"
    )


def _card(card: Card) -> str:
    colour = VERDICTS[card.standing].variable
    facts = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(fact)}</dd></div>" for name, fact in card.facts
    )
    return (
        f'<article class="card" style="--standing:{colour}"><h3><span>{text(card.name)}</span>'
        f'<span class="standing"><svg viewBox="0 0 12 12" aria-hidden="true">'
        f"{_SHAPES[card.standing]}</svg>{STANDING_WORDS[card.standing]}</span></h3>"
        f'<p class="says">{text(card.says)}</p>{_ribbon(card)}{_budget(card)}<dl>{facts}</dl>'
        "</article>"
    )


def _budget(card: Card) -> str:
    if card.budget_left is None:
        return ""
    width = 100 * min(max(card.budget_left, 0.0), 1.0)
    return f'<div class="budget" aria-hidden="true"><span style="width:{width:.1f}%"></span></div>'


def _ribbon(card: Card) -> str:
    """Return the verdicts over time as an SVG bar; a worse verdict is taller."""
    if not card.ribbon:
        return ""
    bars, begin = [], 0
    for standing, run in groupby(card.ribbon):
        length, height = len(list(run)), RIBBON_HEIGHTS[standing]
        bars.append(
            f'<rect x="{begin}" y="{1 - height:.2f}" width="{length}" height="{height:.2f}" '
            f'fill="{VERDICTS[standing].variable}"/>'
        )
        begin += length
    return (
        f'<svg class="ribbon" viewBox="0 0 {begin} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(card.ribbon_says)}">{"".join(bars)}</svg>'
        f'<p class="small">{text(card.ribbon_says)}</p>'
    )


def _notes(notes: Sequence[str]) -> str:
    lines = "".join(f"<li>{_with_commands(note)}</li>" for note in notes)
    return f'<ul class="notes">{lines}</ul>' if lines else ""


def _with_commands(words: str) -> str:
    """Escape text, and set the parts between backquotes as code."""
    parts = words.split("`")
    return "".join(
        f"<code>{text(part)}</code>" if position % 2 else text(part)
        for position, part in enumerate(parts)
    )
