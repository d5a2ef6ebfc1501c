"""A report as one HTML page, for screens, phones and paper.

Theory of operation

A report is made in three steps, each without knowledge of the others.

1. `LearnedModels` reads tables and models of the newest run of `tidegate learn`. A table that is
   missing or unreadable is recorded as a problem and treated as absent.
2. The modules of the sections (`queues`, `services`, `summary` and others) turn rows into a
   `Document`: sections with text, charts and tables. All numbers are already formatted as text.
3. The template `report.html.j2` turns the document into HTML. Its stylesheet has rules for paper:
   a browser prints the page, or saves it as PDF.

A chart is a function that draws into matplotlib axes. On a page it becomes SVG whose colours are
variables of the stylesheet, so that it follows the reader's light or dark mode. Every chart has a
sentence with its finding above it, and a table of its numbers below it. The page is therefore
useful to readers who cannot see the charts.

The page contains everything it needs: no script, font or picture is loaded. A content security
policy forbids loading, even if the name of a queue contains HTML. The templates escape all text.

Charts are about as wide as a phone; wider screens show two next to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tidegate.agreements.document import Agreement
from tidegate.core.text import escape_control_characters
from tidegate.report import charts
from tidegate.report.agreements import summary_section, violation_records, violations_section
from tidegate.report.charts import (
    VERDICTS,
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

# Templates of pages (`templates/*.html.j2`), and the values that they need.
#
# Jinja escapes every text, and `_harmless` makes control characters visible. Only charts and the
# colours of the stylesheet are `Markup`, which Jinja does not escape.


# A column with a cell of at least this length counts as text.
_WORDS_FROM = 28
_RIBBON_HEIGHTS = {
    StatusLight.MET: 0.38,
    StatusLight.WARNED: 0.68,
    StatusLight.BREACHED: 1.0,
    StatusLight.NO_DATA: 0.1,
}


class RibbonBar(NamedTuple):
    """Neighbours of a ribbon with the same verdict."""

    standing: StatusLight
    begin: int
    width: int
    height: float


def render(template: str, packages: Sequence[str] = (), **values: object) -> str:
    """Return a page made by a template of `tidegate.report` or of one of the packages."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(one) for one in (*packages, "tidegate.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(
        colours=Markup(charts.variables()),
        caption_of=_caption_of,
        text_columns=_text_columns,
    )
    return environment.get_template(template).render(values)


def _harmless(value: object) -> object:
    """Return a text without control characters; everything else as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escape_control_characters(value)
    return value


def html_of(document: Document) -> str:
    """Return the report as a whole page."""
    return render(
        "report.html.j2",
        document=document,
        bars_of=_bars_of,
        colour_of=_colour_of,
        picture_of=_picture_of,
    )


def _caption_of(table: ReportTable) -> str:
    """Return the caption of a table, which says how many rows are not shown."""
    if table.rows_in_all is None or table.rows_in_all <= len(table.rows):
        return table.caption
    return f"{table.caption} Shown are {count(len(table.rows))} of {count(table.rows_in_all)} rows."


def _text_columns(table: ReportTable) -> list[bool]:
    """Return for each column whether it is text, which is left-aligned and may wrap."""
    return [
        any(len(row[column]) >= _WORDS_FROM for row in table.rows)
        for column in range(len(table.columns))
    ]


def _colour_of(standing: StatusLight) -> str:
    return VERDICTS[standing].variable


def _picture_of(chart: Chart, name: str) -> Markup:
    return Markup(svg_of(chart, name, f"{chart.title}. {chart.sentence}"))


def _bars_of(ribbon: Sequence[StatusLight]) -> Iterator[RibbonBar]:
    begin = 0
    for standing, run in groupby(ribbon):
        width = len(list(run))
        yield RibbonBar(standing, begin, width, _RIBBON_HEIGHTS[standing])
        begin += width


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
