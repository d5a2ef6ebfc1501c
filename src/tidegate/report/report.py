"""Build a report from the newest run of `tidegate learn`, and write it to files.

The sections follow the order of a reader's questions: service level, HTTP services, queues,
violations, time spent, models, anomalies, origin of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.agreement.document import Agreement
from tidegate.report.chart import Document, Section
from tidegate.report.consumers import consumers_section
from tidegate.report.figures import count, moment
from tidegate.report.glance import glance_section
from tidegate.report.learned import Learned
from tidegate.report.models import models_section
from tidegate.report.oddities import oddities_section
from tidegate.report.origin import left_out, origin_section, rows_read
from tidegate.report.phases import phases_section
from tidegate.report.provisioning import provisioning_section
from tidegate.report.queues import QUEUES_MAX, queue_sections, traffic_by_queue
from tidegate.report.services import governed_by, service_sections
from tidegate.report.violations import turns, violations_section

TITLE = "Service level report"


def document_of(
    learned: Learned, queues_max: int = QUEUES_MAX, agreements: Sequence[Agreement] = ()
) -> Document:
    """Return the report on the newest run, as a document without layout.

    `agreements` add the promised limits to the results. At most `queues_max` queues get a section.
    """
    run = learned.run
    traffic = traffic_by_queue(learned)
    noticed = turns(learned)
    services = service_sections(learned, noticed, agreements)
    sections = [glance_section(learned, agreements), *services]
    # Without queues, a note about their absence would only distract users who host HTTP services.
    if traffic or not services:
        sections += queue_sections(learned, traffic, queues_max, agreements)
    told = governed_by(learned, agreements)
    if (rest := violations_section(noticed, told, run.until)) is not None:
        sections.append(rest)
    others: tuple[Callable[[Learned], Section | None], ...] = (
        phases_section,
        consumers_section,
        provisioning_section,
        models_section,
        oddities_section,
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


def write_report(document: Document, html: Path, pdf: Path | None = None) -> None:
    """Write the page to `html`, and to `pdf` if given; replace each file atomically."""
    from tidegate.report.page import html_of
    from tidegate.report.pdf import write_pdf

    html.parent.mkdir(parents=True, exist_ok=True)
    partial = html.with_name(f".{html.name}.partial")
    partial.write_text(html_of(document), encoding="utf-8")
    partial.replace(html)
    if pdf is not None:
        pdf.parent.mkdir(parents=True, exist_ok=True)
        partial = pdf.with_name(f".{pdf.name}.partial")
        write_pdf(document, partial)
        partial.replace(pdf)
