"""A report as one HTML page, for screens, phones and paper.

Theory of operation

A report is made in three steps, each without knowledge of the others.

1. `LearnedModels` reads tables and models of the newest run of `tidegate learn`. A table that is
   missing or unreadable is recorded as a problem and treated as absent.
2. The modules of the sections (`queues`, `services`, `summary` and others) turn rows into a
   `Document`: sections with text, charts and tables. All numbers are already formatted as text.
3. This module writes the document as HTML. Its stylesheet has rules for paper: a browser prints
   the page, or saves it as PDF.

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

import html
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tidegate.agreements.document import Agreement
from tidegate.core.text import escape_control_characters
from tidegate.report import charts
from tidegate.report.agreements import summary_section, violation_records, violations_section
from tidegate.report.charts import (
    VERDICTS,
    Card,
    Chart,
    Document,
    ReportSection,
    ReportTable,
    StatusLight,
    count,
    counted,
    duration,
    moment,
    svg_of,
)
from tidegate.report.models import (
    anomalies_section,
    consumers_section,
    models_section,
    provisioning_section,
)
from tidegate.report.queues import QUEUES_MAX, phases_section, queue_sections, traffic_by_queue
from tidegate.report.services import governed_by, service_sections
from tidegate.telemetry.learned import LearnedModels
from tidegate.telemetry.models import LearningRun

# HTML of tables and pages, and the base stylesheet.
#
# All text of a page passes through `text`, which escapes it.
#
# A page loads nothing: no script, font or picture.


BASE_STYLE = (
    charts.variables()
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
    return html.escape(escape_control_characters(words))


def table(table: ReportTable) -> str:
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
@media print { html { font-size: 11px; } body { font-size: 1rem; }
  main { max-width: none; padding: 0; }
  nav, details { display: none; } .charts { grid-template-columns: 1fr 1fr; gap: 1rem 1.6rem; }
  .cards { grid-template-columns: 1fr 1fr 1fr; } section { padding: 1.2rem 0 .4rem; }
  h2, h3, .lead, .caption { break-after: avoid; } tr { break-inside: avoid; }
  /* Paper cannot be scrolled: cells wrap instead. */
  .scroll { overflow: visible; } th, td { white-space: normal; } td.words { min-width: 0; }
  td:not(:first-child, .words) { overflow-wrap: normal; }
  .card { border: 1px solid var(--pale); border-top: 3px solid var(--standing); }
  .budget, .card { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
)

STATUS_WORDS = {
    StatusLight.MET: "Met",
    StatusLight.WARNED: "Warned",
    StatusLight.BREACHED: "Breached",
    StatusLight.NO_DATA: "No data",
}
# Each status has a shape, a colour and a word, for readers who do not distinguish the colours.
_SHAPES = {
    StatusLight.MET: '<circle cx="6" cy="6" r="5.4" fill="currentColor"/>',
    StatusLight.WARNED: '<path d="M6 .4 11.8 11.4H.2z" fill="currentColor"/>',
    StatusLight.BREACHED: '<path d="M.8.8h10.4v10.4H.8z" fill="currentColor"/>',
    StatusLight.NO_DATA: '<circle cx="6" cy="6" r="4.6" fill="none" stroke="currentColor" '
    'stroke-width="1.6"/>',
}
RIBBON_HEIGHTS = {
    StatusLight.MET: 0.38,
    StatusLight.WARNED: 0.68,
    StatusLight.BREACHED: 1.0,
    StatusLight.NO_DATA: 0.1,
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


def _section(section: ReportSection) -> Iterator[str]:
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
        f"{_SHAPES[card.standing]}</svg>{STATUS_WORDS[card.standing]}</span></h3>"
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


# Build a report from the newest run of `tidegate learn`, and write it to files.
#
# The sections follow the order of a reader's questions: service level, HTTP services, queues,
# violations, time spent, models, anomalies, origin of the numbers.


TITLE = "Service level report"


def document_of(
    learned: LearnedModels, queues_max: int = QUEUES_MAX, agreements: Sequence[Agreement] = ()
) -> Document:
    """Return the report on the newest run, as a document without layout.

    `agreements` add the promised limits to the results. At most `queues_max` queues get a section.
    """
    run = learned.run
    traffic = traffic_by_queue(learned)
    noticed = violation_records(learned)
    services = service_sections(learned, noticed, agreements)
    sections = [summary_section(learned, agreements), *services]
    # Without queues, a note about their absence would only distract users who host HTTP services.
    if traffic or not services:
        sections += queue_sections(learned, traffic, queues_max, agreements)
    told = governed_by(learned, agreements)
    if (rest := violations_section(noticed, told, run.until)) is not None:
        sections.append(rest)
    others: tuple[Callable[[LearnedModels], ReportSection | None], ...] = (
        phases_section,
        consumers_section,
        provisioning_section,
        models_section,
        anomalies_section,
        # Last: the other sections may add problems, which this one lists.
        origin_section,
    )
    sections += [section for make in others if (section := make(learned)) is not None]
    return Document(
        title=TITLE,
        subtitle=f"{moment(run.since)} to {moment(run.until)} UTC",
        facts=(
            ("Learned", f"{moment(run.learned_at)} UTC"),
            ("Rows read", count(rows_read(run))),
            ("Left out", left_out(run)),
            ("Queues", count(len(traffic))),
            *([("HTTP services", count(len(services)))] if services else []),
            ("Agreements", count(len(run.agreements))),
        ),
        sections=sections,
        notes=(
            f"Made by `tidegate report` from run {run.run}. All times are UTC.",
            "Nothing on this page was fetched; it may be kept and sent as one file.",
        ),
    )


def write_report(document: Document, html: Path) -> None:
    """Write the page to a file, and replace the file atomically."""
    html.parent.mkdir(parents=True, exist_ok=True)
    partial = html.with_name(f".{html.name}.partial")
    partial.write_text(html_of(document), encoding="utf-8")
    partial.replace(html)


# The section on the origin of the numbers: rows read, rows left out, results of the jobs.


def rows_read(run: LearningRun) -> int:
    """Return how many rows of telemetry the run used."""
    return sum(reading.rows for reading in run.reading.values())


def left_out(run: LearningRun) -> str:
    """Describe how many rows and files were left out, by reason."""
    rows: dict[str, int] = {}
    files: dict[str, int] = {}
    for reading in run.reading.values():
        for why, many in reading.rows_left_out.items():
            rows[why] = rows.get(why, 0) + many
        for why, many in reading.files_left_out.items():
            files[why] = files.get(why, 0) + many
    parts = [f"{counted(many, 'row')} {why}" for why, many in sorted(rows.items())]
    parts += [f"{counted(many, 'file')} {why}" for why, many in sorted(files.items())]
    return "; ".join(parts) or "nothing"


def origin_section(learned: LearnedModels) -> ReportSection:
    """Return tables of the telemetry and of the jobs, with the problems found while reading."""
    run = learned.run
    failed = [job for job in run.jobs if job.failure]
    return ReportSection(
        "origin",
        "Where this comes from",
        f"The lake {run.lake}, read and learned from within {duration(run.seconds)}."
        + (f" {counted(len(failed), 'job')} failed." if failed else ""),
        tables=[
            ReportTable(
                "Telemetry that was read, and what was left out of it.",
                ("rows of", "files", "rows read", "rows left out", "files left out"),
                [
                    (
                        kind.replace("_", " "),
                        count(reading.files),
                        count(reading.rows),
                        _reasons(reading.rows_left_out),
                        _reasons(reading.files_left_out),
                    )
                    for kind, reading in sorted(run.reading.items())
                ],
            ),
            ReportTable(
                "What each job of `tidegate learn` made of it.".replace("`", ""),
                ("job", "took", "rows of tables", "models", "failed"),
                [
                    (
                        job.job,
                        duration(job.seconds),
                        ", ".join(f"{name} {count(rows)}" for name, rows in job.tables.items())
                        or "–",
                        f"{count(job.models_accepted)} accepted, "
                        f"{count(sum(job.models_refused.values()))} refused"
                        if job.models_accepted or job.models_refused
                        else "–",
                        job.failure or "–",
                    )
                    for job in run.jobs
                ],
            ),
        ],
        notes=learned.complaints,
    )


def _reasons(reasons: dict[str, int]) -> str:
    return "; ".join(f"{count(many)} {why}" for why, many in sorted(reasons.items())) or "–"
